"""Learning curves of runs, with every seed visible, drawn from their run directories alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.rundir.run import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
CROWDED = 3  # more runs than this make a panel unreadable
POINTS = 200


def smooth(steps: np.ndarray, returns: np.ndarray, grid: np.ndarray, window: float) -> np.ndarray:
    """Return the mean return of the episodes that ended in the `window` steps before each point; NaN if none did."""
    total = np.concatenate([[0.0], np.cumsum(returns)])
    right = np.searchsorted(steps, grid, side="right")
    left = np.searchsorted(steps, grid - window, side="right")
    count = right - left
    return np.where(count > 0, (total[right] - total[left]) / np.maximum(count, 1), np.nan)


def short_task(run: Run) -> str:
    """Return the short name of a run's task."""
    return dmc.short_name(run.config["task"])


def label(run: Run, runs: Sequence[Run]) -> str:
    """Return a label that tells this run from the others on its task, in the fewest words."""
    config, others = run.config, [other.config for other in runs if short_task(other) == short_task(run)]
    words = [config["algorithm"]]
    for name in ("kappa", "B", "n", "eps", "steps", "seed"):
        if len({str(other[name]) for other in others if other["algorithm"] == config["algorithm"]}) > 1:
            words.append(f"{name}={config[name]}")
    return " ".join(words)


def families(runs: Sequence[Run]) -> list[list[Run]]:
    """Group the runs that share panels: all of them or, if a task has too many for one panel, those of each rule.

    On-policy runs come first, so that a rule's pair has the same two colours in every panel.
    """
    runs = sorted(runs, key=lambda run: ALGORITHMS[run.config["algorithm"]].plan)
    if max(sum(short_task(other) == short_task(run) for other in runs) for run in runs) <= CROWDED:
        return [runs]
    by_rule: dict[str, list[Run]] = {algorithm.rule: [] for algorithm in ALGORITHMS.values()}
    for run in runs:
        by_rule[ALGORITHMS[run.config["algorithm"]].rule].append(run)
    return [family for family in by_rule.values() if family]


def learning_curves(runs: Sequence[Run], path: Path) -> None:
    """Draw return against environment steps: a panel per task, or per task and rule; seeds thin, their mean thick."""
    columns = families(runs)
    tasks = list(dict.fromkeys(map(short_task, runs)))
    panels = [(task, family) for task in tasks for family in columns]
    width = len(columns) if len(columns) > 1 else 2 if len(tasks) == 4 else min(len(tasks), 3)
    height = -(-len(panels) // width)
    figure = Figure(figsize=((4.8 if width > 1 else 6.4) * width, 3.6 * height), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False, sharey="row" if len(columns) > 1 else "none")
    unused = [("", [])] * (axes.size - len(panels))
    for axis, (task, family) in zip(axes.flat, [*panels, *unused], strict=True):
        mine = [run for run in family if short_task(run) == task]
        if not mine:
            axis.remove()
            continue
        names = list(dict.fromkeys(label(run, runs) for run in family))
        for run in mine:
            name = label(run, runs)
            draw(axis, run, name, COLOURS[names.index(name) % len(COLOURS)])
        style(axis, task)
    figure.supxlabel("environment steps per agent (thin: one seed, thick: mean of the seeds)", fontsize="medium")
    figure.supylabel("episode return", fontsize="medium")
    figure.savefig(path, dpi=120)


def draw(axis: Axes, run: Run, name: str, colour: str) -> None:
    """Draw one run's seeds and their mean."""
    curves = [run.episodes(seed) for seed in run.seeds]
    last = max((int(steps[-1]) for steps, _ in curves if len(steps)), default=0)
    if last == 0:
        return
    grid = np.linspace(0, last, POINTS + 1)[1:]
    window = max(last / 25, 5000)
    lines = np.array([smooth(steps, returns, grid, window) for steps, returns in curves])
    for line in lines:
        axis.plot(grid, line, color=colour, lw=0.8, alpha=0.55)
    seen = ~np.isnan(lines).all(axis=0)
    mean = np.nanmean(lines[:, seen], axis=0)
    seeds = f"{len(curves)} seeds" if len(curves) > 1 else "1 seed"
    axis.plot(grid[seen], mean, color=colour, lw=2.4, label=f"{name} ({seeds})")


def thousands(x: float, _: float | None = None) -> str:
    """Return a number of steps as an axis shows it."""
    return f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x else "0"


def style(axis: Axes, title: str) -> None:
    """Set title, axes and legend of one panel."""
    axis.set_title(title)
    axis.xaxis.set_major_formatter(thousands)
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    if axis.lines:  # below the panel, where it hides no curve
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
