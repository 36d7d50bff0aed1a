"""Whether `--trust keep` keeps what was learned (docs/guarantee.md): the table and the figure, from studies or packs.

    gpi study run benchmarks/kept/keep8.toml --out keep8     # 8 tasks, 3 rules, 10 seeds, 1M steps
    python benchmarks/kept.py keep8 benchmarks/study/kappa1.safetensors --figure docs/img/kept.png

A seed that learned (best 50,000 steps above 100) has lost when its last 200,000 steps are below 80 % of that window and
the difference exceeds three standard errors of the two (`gpi.rundir.course`). Final performance is the mean return of
the last 204,800 steps; its difference is the mean over tasks, with an interval over seeds within tasks.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpi.rundir.course import Course, Scale, course_at
from gpi.study.frame import FINISHED, Results, arm_of, results_of
from gpi.study.gathered import gathered, merge
from gpi.study.statistics import aggregate_difference

SCALE = Scale(0.0, 100.0)  # committed before the data: something is learned above 100
RULES = ("geppo", "getrpo", "gevmpo")
MODES = ("paper", "keep")
TASKS = ("walker-walk", "cheetah-run", "reacher-hard", "finger-turn_easy", "cartpole-swingup_sparse", "hopper-stand",
         "cartpole-balance_sparse", "pendulum-swingup")  # fmt: skip


class Seed(NamedTuple):
    """One seed that is finished."""

    task: str
    rule: str
    mode: str
    number: int
    final: float
    course: Course


def load(paths: Sequence[Path]) -> Results:
    """Read studies and packs together; what two of them have counts once."""
    with tempfile.TemporaryDirectory() as temporary:
        merge(Path(temporary) / "study", paths)
        found = gathered(Path(temporary) / "study")
    wanted = [x for x in found if x.config.trust in MODES and arm_of(x.config) in arms()]
    return results_of([x for x in wanted if x.config.short_task in TASKS])


def arms() -> set[str]:
    """The arms that are compared: the paper's settings at kappa = 1."""
    return {f"{rule}-kappa1{ending}" for rule in RULES for ending in ("", "-trustkeep")}


def seeds_of(results: Results) -> list[Seed]:
    """Return every finished seed with what it learned and lost."""
    seeds = []
    for row in results.seeds:
        run = results.runs[row.run]
        if row.state == FINISHED:
            one = course_at(run.curve[row.place], row.steps, SCALE, run.bin)
            seeds.append(Seed(row.task, row.algorithm, run.config.trust, row.seed, row.final, one))
    return seeds


def finals(seeds: Sequence[Seed], rule: str, mode: str, tasks: Sequence[str]) -> dict[str, np.ndarray]:
    """Return final performance by task."""
    return {t: np.array([s.final for s in seeds if (s.task, s.rule, s.mode) == (t, rule, mode)]) for t in tasks}


def shared_tasks(seeds: Sequence[Seed], rule: str) -> list[str]:
    """Return the tasks that a rule has in both modes, with two seeds or more."""
    return [t for t in TASKS if all(len(finals(seeds, rule, mode, [t])[t]) > 1 for mode in MODES)]


def loss_row(name: str, mode: str, mine: Sequence[Seed]) -> list[str]:
    """Return how many seeds of a rule and mode lost what they had learned."""
    learned = [s.course for s in mine if s.course.learned]
    fifth, half = sum(c.lost_fifth for c in learned), sum(c.lost_half for c in learned)
    share = f"{100 * fifth / len(learned):.1f} %" if learned else "-"
    worst = min((c.last.mean / c.best.mean for c in learned), default=float("nan"))
    return [name, mode, str(len(mine)), str(len(learned)), f"{fifth} ({share})", str(half),
            str(sum(c.fell for c in learned)), f"{100 * worst:.0f} %"]  # fmt: skip


def tables(seeds: Sequence[Seed]) -> None:
    """Print losses by rule and mode, then final performance by task."""
    rows = []
    for rule in RULES:
        tasks = shared_tasks(seeds, rule)
        for mode in MODES:
            mine = [s for s in seeds if (s.rule, s.mode) == (rule, mode) and s.task in tasks]
            rows.append(loss_row(rule, mode, mine))
    for mode in MODES:
        mine = [s for s in seeds if s.mode == mode and s.task in shared_tasks(seeds, s.rule)]
        rows.append(loss_row("all", mode, mine))
    header = ["rule", "trust", "seeds", "learned", "lost a fifth", "lost half", "fell after their best", "worst kept"]
    print(markdown(header, rows))
    for seed in seeds:
        if seed.mode == "keep" and seed.course.lost_fifth:
            best, last = seed.course.best, seed.course.last
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
        low, middle, high = difference(seeds, RULES, everywhere)
        print(f"all rules, {len(everywhere)} tasks: {middle:+.1f} [{low:+.1f}, {high:+.1f}]")


def difference(seeds: Sequence[Seed], rules: Sequence[str], tasks: Sequence[str]) -> tuple[float, float, float]:
    """Return the interval of the mean difference keep less paper: its low end, itself, its high end."""
    keep, paper = (
        {f"{rule} {task}": x for rule in rules for task, x in finals(seeds, rule, mode, tasks).items()}
        for mode in ("keep", "paper")
    )
    found = aggregate_difference("mean", keep, paper)
    return float(found.low), float(found.estimate), float(found.high)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def figure(results: Results, path: Path) -> None:
    """Draw every seed's learning curve, a row per rule and a column per task."""
    from matplotlib.figure import Figure

    from gpi.report.curves import COLOURS, thousands
    from gpi.report.pictures import require_picture, save_figure

    picture = Figure(figsize=(2.3 * len(TASKS), 2.2 * len(RULES) + 0.6), layout="constrained")
    axes = picture.subplots(len(RULES), len(TASKS), sharex=True, squeeze=False)
    looks = {"paper": COLOURS[1], "keep": COLOURS[0]}
    for row, rule in enumerate(RULES):
        for column, task in enumerate(TASKS):
            for name, config in results.arms.items():
                if config.algorithm == rule and any((s.task, s.arm) == (task, name) for s in results.seeds):
                    draw(axes[row, column], *results.curves(task, name, points=50), looks[config.trust])
            axes[row, column].set_ylim(bottom=0)
            axes[row, column].spines[["top", "right"]].set_visible(False)
            axes[row, column].xaxis.set_major_formatter(thousands)
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
    tables(seeds_of(results))
    if parsed.figure:
        figure(results, parsed.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
