"""Whether `--trust keep` keeps what was learned (docs/keeping.md): the table and the figure, from studies or packs.

    gpi study run benchmarks/kept/keep8.toml --out keep8     # 8 tasks, 3 rules, 10 seeds, 1M steps
    python benchmarks/kept.py keep8 benchmarks/study/kappa1.safetensors --figure docs/img/kept.png
    python benchmarks/kept.py benchmarks/{kept,default}/*.safetensors benchmarks/study/kappa1.safetensors

The second, of the packs, prints every number of that section, those of the still normaliser alone (`--trust paper
--normaliser still`, seeds 0 to 4) among them, and the updates outside eq (11) by (1 - ratio)+.

A seed that learned (best 50,000 steps above 100) has lost when its last 200,000 steps are below 80 % of that window and
the difference exceeds three standard errors of the two (`gpi.analysis.retention`). Final performance is the mean return
of the last 204,800 steps; its difference is the mean over tasks, with an interval over seeds within tasks, and
Student's over tasks. It is the difference of the best windows and that of what was lost from there to the end.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpi.analysis.retention import Retention, Scale, retention_at
from gpi.analysis.student_t import student
from gpi.config import Config
from gpi.study.frame import FINISHED, Results, arm_of, results_of
from gpi.study.gathered import gathered, merge
from gpi.study.results import Result
from gpi.study.statistics import aggregate_difference

SCALE = Scale(0.0, 100.0)  # committed before the data: something is learned above 100
RULES = ("geppo", "getrpo", "gevmpo")
MODES = ("paper", "keep")
ESTIMATES = {"lost": "(1 - ratio)+", "acted": "(1 - ratio)+, as they act"}  # `penalty_lost` and `penalty_acted`
COMPARED = ("difference", "95 % over seeds", "95 % over tasks")
LOSSES = ("rule", "trust", "seeds", "learned", "lost a fifth", "lost half", "fell after their best", "worst kept")
STILL = "paper, still"  # --trust paper --normaliser still
TASKS = ("walker-walk", "cheetah-run", "reacher-hard", "finger-turn_easy", "cartpole-swingup_sparse", "hopper-stand",
         "cartpole-balance_sparse", "pendulum-swingup")  # fmt: skip


class Seed(NamedTuple):
    """One seed that is finished."""

    task: str
    rule: str
    mode: str
    number: int
    final: float
    retention: Retention


Ends = tuple[float, float, float]  # an estimate and the ends of its interval
Part = Callable[[Seed], float]


def final(seed: Seed) -> float:
    return seed.final


def highest(seed: Seed) -> float:
    """The mean return of the best 50,000 steps."""
    return seed.retention.best.mean


def kept(seed: Seed) -> float:
    """Final performance less that of the best 50,000 steps: what was lost, with a minus."""
    return seed.final - seed.retention.best.mean


def read_together(paths: Iterable[Path]) -> list[Result]:
    """Read studies and packs; what two of them have counts once."""
    with tempfile.TemporaryDirectory() as temporary:
        merge(Path(temporary) / "study", list(paths))
        return gathered(Path(temporary) / "study")


def load(paths: Sequence[Path]) -> Results:
    """Return the results of the arms and tasks that are compared."""
    found = read_together(paths)
    return results_of([x for x in found if arm_of(x.config) in arms() and x.config.short_task in TASKS])


def arms() -> set[str]:
    """The arms that are compared: the paper's settings at kappa = 1."""
    names = ("ppo", "trpo", "vmpo", *(f"{rule}-kappa1" for rule in RULES))
    return {name + ending for name in names for ending in ("", "-trustkeep", "-normaliserstill")}


def mode_of(config: Config) -> str:
    """What is done to keep what was learned."""
    return STILL if (config.trust, config.normaliser) == ("paper", "still") else config.trust


def seeds_of(results: Results) -> list[Seed]:
    """Return every finished seed with what it learned and lost."""
    seeds = []
    for row in results.seeds:
        run = results.runs[row.run]
        if row.state == FINISHED:
            one = retention_at(run.curve[row.place], row.steps, SCALE, run.bin)
            seeds.append(Seed(row.task, row.algorithm, mode_of(run.config), row.seed, row.final, one))
    return seeds


def finals(
    seeds: Sequence[Seed], rule: str, mode: str, tasks: Sequence[str], part: Part = final
) -> dict[str, np.ndarray]:
    """Return final performance by task, or a part of it."""
    return {t: np.array([part(s) for s in seeds if (s.task, s.rule, s.mode) == (t, rule, mode)]) for t in tasks}


def shared_tasks(seeds: Sequence[Seed], rule: str) -> list[str]:
    """Return the tasks that a rule has in both modes, with two seeds or more."""
    return [t for t in TASKS if all(len(finals(seeds, rule, mode, [t])[t]) > 1 for mode in MODES)]


def loss_row(name: str, mode: str, mine: Sequence[Seed]) -> list[str]:
    """Return how many seeds of a rule and mode lost what they had learned."""
    learned = [s.retention for s in mine if s.retention.learned]
    fifth, half = sum(c.lost_fifth for c in learned), sum(c.lost_half for c in learned)
    share = f"{100 * fifth / len(learned):.1f} %" if learned else "-"
    worst = min((c.last.mean / c.best.mean for c in learned), default=float("nan"))
    return [name, mode, str(len(mine)), str(len(learned)), f"{fifth} ({share})", str(half),
            str(sum(c.fell for c in learned)), f"{100 * worst:.0f} %"]  # fmt: skip


def tables(seeds: Sequence[Seed]) -> None:
    """Print losses by rule with reuse and mode, then final performance by task."""
    seeds = [s for s in seeds if s.rule in RULES]
    rows = []
    for rule in RULES:
        tasks = shared_tasks(seeds, rule)
        for mode in MODES:
            mine = [s for s in seeds if (s.rule, s.mode) == (rule, mode) and s.task in tasks]
            rows.append(loss_row(rule, mode, mine))
    for mode in MODES:
        mine = [s for s in seeds if s.mode == mode and s.task in shared_tasks(seeds, s.rule)]
        rows.append(loss_row("all", mode, mine))
    print(markdown(LOSSES, rows))
    for seed in seeds:
        if seed.mode == "keep" and seed.retention.lost_fifth:
            best, last = seed.retention.best, seed.retention.last
            print(f"lost: {seed.task} {seed.rule} seed {seed.number}: {best.mean:.0f} to {last.mean:.0f}")
    rows = []
    for task in TASKS:
        cells = []
        for rule in RULES:
            paper, keep = (finals(seeds, rule, mode, [task])[task] for mode in MODES)
            both = len(paper) > 0 < len(keep)
            cells += [f"{paper.mean():.0f} ({len(paper)})", f"{keep.mean():.0f} ({len(keep)})"] if both else ["–", "–"]
        rows.append([task, *cells])
    cells = []
    for rule in RULES:
        tasks = shared_tasks(seeds, rule)
        if tasks:
            low, middle, high = difference(seeds, [rule], tasks)
            cells += ["", f"{middle:+.0f} [{low:+.0f}, {high:+.0f}]"]
        else:
            cells += ["", "–"]
    rows.append(["keep less paper, mean over tasks", *cells])
    print(markdown(["task", *(f"{rule}, {mode}" for rule in RULES for mode in MODES)], rows))
    everywhere = [t for t in TASKS if all(t in shared_tasks(seeds, rule) for rule in RULES)]
    if everywhere:
        parts = [("final performance", final, ""), ("of it a higher best", highest, ""), ("of it less lost", kept, ""),
                 ("final performance, without cartpole-balance_sparse", final, "cartpole-balance_sparse")]  # fmt: skip
        rows = []
        for name, part, left_out in parts:
            tasks = [t for t in everywhere if t != left_out]
            rows.append([name, *shown(*(scores(seeds, RULES, mode, tasks, part) for mode in ("keep", "paper")))])
        print(markdown([f"keep less paper, all rules, {len(everywhere)} tasks", *COMPARED], rows))
    for rule in RULES:
        above = [finals(seeds, rule, mode, ["cartpole-balance_sparse"], highest).popitem()[1] for mode in MODES]
        counts = [f"{mode} {(x > 900.0).sum()} of {len(x)}" for mode, x in zip(MODES, above, strict=True)]
        print(f"best window above 900 on cartpole-balance_sparse, {rule}: {', '.join(counts)}")


def ablation(seeds: Sequence[Seed]) -> None:
    """Print final performance with the still normaliser alone, on its seeds, beside paper and keep."""
    seeds = [s for s in seeds if s.number < 5]
    there = {(s.rule, s.mode) for s in seeds}
    rules = [rule for rule in ("ppo", "trpo", "vmpo", *RULES) if (rule, STILL) in there]
    columns = [(rule, mode) for rule in rules for mode in ("paper", STILL, "keep") if (rule, mode) in there]
    found = {column: scores(seeds, column[:1], column[1], TASKS) for column in columns}
    rows = [[task, *(f"{mine[f'0 {task}'].mean():.0f}" for mine in found.values())] for task in TASKS]
    rows.append(["mean", *(f"{np.mean([x.mean() for x in mine.values()]):.0f}" for mine in found.values())])
    print("\n" + markdown(["task, seeds 0 to 4", *map(", ".join, columns)], rows))
    pairs = [((rule, one), (rule, other)) for rule in rules for one, other in ((STILL, "paper"), ("keep", STILL))]
    pairs += [((f"ge{rule}", STILL), (rule, STILL)) for rule in rules]
    rows = [[f"{', '.join(one)} less {', '.join(other)}", *shown(found[one], found[other])]
            for one, other in pairs if one in found and other in found]  # fmt: skip
    print(markdown(["seeds 0 to 4", *COMPARED], rows))
    rows = [loss_row(rule, mode, [s for s in seeds if (s.rule, s.mode) == (rule, mode)]) for rule, mode in columns]
    print(markdown(LOSSES, rows))


def audit(results: Results) -> None:
    """Print the updates outside eq (11), without reuse eq (2), by rule, mode and estimate, where, and the worst."""
    rows = []
    runs = [run for run in results.runs if run.audit.get("estimate") in ("lost", "acted")]

    def kind(run: Result) -> tuple[str, str, str]:
        return run.config.algorithm, mode_of(run.config), run.audit["estimate"]

    for rule, mode, estimate in sorted({kind(run) for run in runs}):
        mine = [run for run in runs if kind(run) == (rule, mode, estimate)]
        outside = Counter[str]()
        for run in mine:
            outside[run.config.short_task] += run.audit["penalty_violations"]
        worst = max(float(run.audit["worst"]["penalty"]["ratio"]) for run in mine)
        where = ", ".join(f"{task} {n}" for task, n in outside.most_common() if n)
        updates = f"{sum(run.audit['updates'] for run in mine):,}"
        rows.append([rule, mode, ESTIMATES[estimate], updates, str(outside.total()), f"{worst:.5f}", where or "–"])
    print("\n" + markdown(["rule", "trust", "estimate", "updates", "outside eq (11)", "worst", "where"], rows))


def difference(seeds: Sequence[Seed], rules: Sequence[str], tasks: Sequence[str]) -> tuple[float, float, float]:
    """Return the interval of the mean difference keep less paper: its low end, itself, its high end."""
    keep, paper = (scores(seeds, rules, mode, tasks) for mode in ("keep", "paper"))
    found = aggregate_difference("mean", keep, paper)
    return float(found.low), float(found.estimate), float(found.high)


def scores(
    seeds: Sequence[Seed], rules: Sequence[str], mode: str, tasks: Sequence[str], part: Part = final
) -> dict[str, np.ndarray]:
    """Return final performance, or a part of it, by the place of the rule and task."""
    by_rule = enumerate(finals(seeds, rule, mode, tasks, part) for rule in rules)
    return {f"{i} {task}": x for i, mine in by_rule for task, x in mine.items()}


def compared(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> tuple[Ends, Ends]:
    """Return a mean difference with its interval over seeds, and with Student's over tasks, of the mean over rules.

    The seeds of both are given by names that end in the task.
    """
    found = aggregate_difference("mean", one, other)
    tasks: dict[str, list[float]] = {}
    for name, x in one.items():
        tasks.setdefault(name.split()[-1], []).append(float(x.mean() - other[name].mean()))
    over_tasks = student(np.mean(list(tasks.values()), axis=1))
    return (float(found.estimate), float(found.low), float(found.high)), over_tasks


def shown(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> list[str]:
    """Return a comparison as cells of a table."""
    (middle, *seeds), (_, *tasks) = compared(one, other)
    return [f"{middle:+.1f}", *(f"{low:+.1f} to {high:+.1f}" for low, high in (seeds, tasks))]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def figure(results: Results, path: Path) -> None:
    """Draw every seed's learning curve, a row per rule and a column per task."""
    from matplotlib.figure import Figure

    from gpi.report.curves import COLOURS, step_label
    from gpi.report.pictures import require_picture, save_figure

    picture = Figure(figsize=(2.3 * len(TASKS), 2.2 * len(RULES) + 0.6), layout="constrained")
    axes = picture.subplots(len(RULES), len(TASKS), sharex=True, squeeze=False)
    looks = {"paper": COLOURS[1], "keep": COLOURS[0]}
    for row, rule in enumerate(RULES):
        for column, task in enumerate(TASKS):
            for name, config in results.arms.items():
                there = any((s.task, s.arm) == (task, name) for s in results.seeds)
                if config.algorithm == rule and mode_of(config) in looks and there:
                    draw(axes[row, column], *results.curves(task, name, points=50), looks[config.trust])
            axes[row, column].set_ylim(bottom=0)
            axes[row, column].spines[["top", "right"]].set_visible(False)
            axes[row, column].xaxis.set_major_formatter(step_label)
        axes[row, 0].set_ylabel(rule)
    for axis, task in zip(axes[0], TASKS, strict=True):
        axis.set_title(task, fontsize=9)
    handles = [axes[0, 0].plot([], [], color=colour, label=f"--trust {mode}")[0] for mode, colour in looks.items()]
    picture.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    picture.supylabel("return (thin: every seed; thick: their mean)", fontsize=10)
    save_figure(picture, require_picture(path))


def draw(axis: Any, steps: np.ndarray, returns: np.ndarray, colour: str) -> None:
    """Draw every seed thin and their mean thick."""
    axis.plot(steps, returns.T, color=colour, lw=0.5, alpha=0.45)
    axis.plot(steps, np.nanmean(returns, axis=0), color=colour, lw=1.8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", help="study directories and packs")
    parser.add_argument("--figure", type=Path, metavar="PNG")
    parsed = parser.parse_args()
    results = load(parsed.paths)
    seeds = seeds_of(results)
    tables(seeds)
    if any(seed.mode == STILL for seed in seeds):
        ablation(seeds)
    audit(results)
    if parsed.figure:
        figure(results, parsed.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
