"""Pictures of runs: learning curves with every seed visible. They read run directories only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gpi.training.record import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
POINTS = 200


def smooth(steps: np.ndarray, returns: np.ndarray, grid: np.ndarray, window: float) -> np.ndarray:
    """Mean return of the episodes that ended in the `window` steps before each point; NaN where none did."""
    total = np.concatenate([[0.0], np.cumsum(returns)])
    right = np.searchsorted(steps, grid, side="right")
    left = np.searchsorted(steps, grid - window, side="right")
    count = right - left
    return np.where(count > 0, (total[right] - total[left]) / np.maximum(count, 1), np.nan)


def label(run: Run, runs: Sequence[Run]) -> str:
    """What tells this run from the others, in the fewest words."""
    config, others = run.config, [other.config for other in runs]
    words = [config["algorithm"]]
    for name in ("kappa", "B", "n", "eps", "steps", "seed"):
        if len({str(other[name]) for other in others if other["algorithm"] == config["algorithm"]}) > 1:
            words.append(f"{name}={config[name]}")
    return " ".join(words)


def learning_curves(runs: Sequence[Run], path: Path) -> None:
    """Return against environment steps: one panel per task, a thin line per seed, a thick one for their mean."""
    tasks = list(dict.fromkeys(run.config["task"].removeprefix("dmc/") for run in runs))
    columns = min(len(tasks), 3)
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    names = list(dict.fromkeys(label(run, runs) for run in runs))
    for axis in axes.flat[len(tasks) :]:
        axis.remove()
    for axis, task in zip(axes.flat, tasks, strict=False):
        for run in runs:
            if run.config["task"].removeprefix("dmc/") == task:
                name = label(run, runs)
                draw(axis, run, name, COLOURS[names.index(name) % len(COLOURS)])
        axis.set_title(task)
        axis.set_xlabel("environment steps per agent")
        axis.set_ylabel("episode return")
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x else "0")
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=120)


def draw(axis, run: Run, name: str, colour: str) -> None:
    """One run's seeds and their mean."""
    curves = [run.episodes(seed) for seed in run.seeds]
    last = max((int(steps[-1]) for steps, _ in curves if len(steps)), default=0)
    if last == 0:
        return
    grid = np.linspace(0, last, POINTS + 1)[1:]
    window = max(last / 25, 5000)
    lines = np.array([smooth(steps, returns, grid, window) for steps, returns in curves])
    for line in lines:
        axis.plot(grid, line, color=colour, lw=0.8, alpha=0.5)
    seen = ~np.isnan(lines).all(axis=0)
    mean = np.nanmean(lines[:, seen], axis=0)
    seeds = f"{len(curves)} seeds" if len(curves) > 1 else "1 seed"
    axis.plot(grid[seen], mean, color=colour, lw=2.4, label=f"{name} ({seeds}, mean thick)")
