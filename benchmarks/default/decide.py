"""What the data say of the rules in README.md: every arm, and rules 1 and 2 where their data are complete.

    python benchmarks/default/decide.py benchmarks/*/*.safetensors

Takes studies and packs; what two of them have counts once. The tasks are the eight of ../kept, the runs those of
1,000,000 steps with kappa = 1. An interval over seeds has the tasks fixed, with Student's correction for few seeds; one
over tasks is Student's of the tasks' means.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpi.config import Config
from gpi.study.frame import FINISHED, results_of
from gpi.study.statistics import aggregate
from gpi.training.learner import static_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from kept import TASKS, Ends, compared, read_together

STEPS, CELLS = 1_000_000, ((2, 10), (4, 5), (8, 3), (8, 2), (16, 2))
NOT_READ = ("task", "seed", "seeds", "threads", "checkpoint_every", "eval_every", "eval_episodes", "reset_each_batch")
Finals = dict[str, dict[int, float]]  # by task and seed


class Arm(NamedTuple):
    """The settings that the rules choose."""

    algorithm: str
    trust: str = "keep"
    normaliser: str = "still"
    n: int = 1024
    B: int = 2
    epochs: int = 10
    gamma: float = 0.995
    gae_lambda: float = 0.97

    @property
    def words(self) -> str:
        """What differs from the paper's settings."""
        paper = Arm("", "paper", "paper")
        rest = [f"{k} {v}" for k, v in self._asdict().items() if k != "algorithm" and v != getattr(paper, k)]
        return ", ".join(rest) or "the paper's"


def arm_of(config: Config) -> Arm | None:
    """Return the arm of a run, or nothing where anything else that learning reads differs from the paper's."""
    usual = Config("x").__dict__
    free = {*Arm._fields, *NOT_READ, *([] if config.reuses else ["kappa"])}
    if any(value != usual[name] for name, value in config.__dict__.items() if name not in free):
        return None
    return Arm(*(getattr(config, name) for name in Arm._fields))._replace(normaliser=static_of(config).normaliser)


def read(paths: Iterable[Path]) -> dict[Arm, Finals]:
    """Read the final performance of every finished seed."""
    found: dict[Arm, Finals] = {}
    results = results_of(read_together(paths))
    for row in results.seeds:
        arm = arm_of(results.arms[row.arm])
        if arm and row.task in TASKS and row.goal == STEPS and row.state == FINISHED:
            found.setdefault(arm, {}).setdefault(row.task, {})[row.seed] = row.final
    return found


def complete(found: Mapping[Arm, Finals], arms: Iterable[Arm], seeds: int = 5) -> dict[str, np.ndarray] | None:
    """Return the final returns of some arms by algorithm and task, seeds 0 to 4; nothing where one is missing."""
    finals: dict[str, np.ndarray] = {}
    for arm in arms:
        for task in TASKS:
            known = found.get(arm, {}).get(task, {})
            if not known.keys() >= set(range(seeds)):
                print(f"not decided: {arm.algorithm} with {arm.words} lacks seeds of {task}")
                return None
            finals[f"{arm.algorithm} {task}"] = np.array([known[seed] for seed in range(seeds)])
    return finals


def replaces(found: Mapping[Arm, Finals], new: Iterable[Arm], old: Iterable[Arm]) -> bool | None:
    """Return whether the new settings are better: by the intervals over seeds and over tasks; print both."""
    x, y = complete(found, new), complete(found, old)
    if x is None or y is None:
        return None
    over_seeds, over_tasks = compared(x, y)
    print(f"difference {shown(over_seeds)}, over tasks {shown(over_tasks)}")
    return over_seeds[1] > 0.0 and over_tasks[1] > 0.0


def shown(interval: Ends) -> str:
    """Return a difference and its interval as text."""
    return f"{interval[0]:+.0f} [{interval[1]:+.0f}, {interval[2]:+.0f}]"


def all_of(finals: Finals) -> dict[str, np.ndarray]:
    """Return the final returns of every seed that there is, by task."""
    return {task: np.array(list(seeds.values())) for task, seeds in finals.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="STUDY|PACK")
    found = read(parser.parse_args().paths)
    print("| algorithm | settings that differ from the paper's | tasks | seeds | mean final return |"
          " less the paper's, over seeds | over tasks |\n|---|---|--:|--:|--:|--:|--:|")  # fmt: skip
    for arm, finals in sorted(found.items()):
        usual = found.get(Arm(arm.algorithm, "paper", "paper"), {})
        gaps = ["", ""]
        if usual and usual is not finals and finals.keys() == usual.keys():
            gaps = list(map(shown, compared(all_of(finals), all_of(usual))))
        whole = aggregate("mean", all_of(finals))
        mean = f"{whole.estimate:.0f} [{whole.low:.0f}, {whole.high:.0f}]"
        cells = [arm.algorithm, arm.words, len(finals), sum(map(len, finals.values())), mean, *gaps]
        print(f"| {' | '.join(map(str, cells))} |")
    reusing = ("geppo", "getrpo", "gevmpo")
    print("\nRule 1: does the still normaliser alone replace keep?")
    still = replaces(found, [Arm(name, "paper") for name in reusing], [Arm(name) for name in reusing])
    print({None: "not decided: data are missing", True: "yes", False: "no: keep"}[still])
    trust = "paper" if still else "keep"
    print("\nRule 2: which B and epochs?")
    cells = {cell: complete(found, [Arm("geppo", trust, n=1000, B=cell[0], epochs=cell[1])]) for cell in CELLS}
    known = {cell: aggregate("mean", finals) for cell, finals in cells.items() if finals}
    if len(known) == len(CELLS):
        best = max(known, key=lambda cell: float(known[cell].estimate))
        error = np.sqrt(sum(x.var(ddof=1) / x.size for x in (cells[best] or {}).values())) / len(TASKS)
        near = [cell for cell in CELLS if known[cell].estimate >= known[best].estimate - error]
        print(f"best {best}, standard error {error:.1f}; within one of it: {near}; the cheapest of these is chosen")


if __name__ == "__main__":
    main()
