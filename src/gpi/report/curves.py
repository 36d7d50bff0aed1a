"""Learning curves of runs, with every seed visible, drawn from their run directories alone."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath

from gpi.core.plan import ALGORITHMS
from gpi.report.labels import labels, short_task
from gpi.report.pictures import save_figure
from gpi.rundir.run import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
DASHES = ("-", "--", ":", "-.")  # once the colours are used up
CROWDED = 3  # more runs than this make a panel unreadable
POINTS = 200
FONT = 10.0  # points, of a legend
LINE_INCHES, ROW_INCHES = 0.167, 0.08  # height of a line of a legend, and what comes between its entries
HANDLE_INCHES = 0.75  # width of a legend's line and of the gaps around it
NOTHING_YET = "no finished episode yet"


def smooth(steps: np.ndarray, returns: np.ndarray, grid: np.ndarray, window: float) -> np.ndarray:
    """Return the mean return of the episodes that ended in the `window` steps before each point; NaN if none did."""
    total = np.concatenate([[0.0], np.cumsum(returns)])
    right = np.searchsorted(steps, grid, side="right")
    left = np.searchsorted(steps, grid - window, side="right")
    count = right - left
    return np.where(count > 0, (total[right] - total[left]) / np.maximum(count, 1), np.nan)


def has_episodes(run: Run) -> bool:
    """Return whether an episode of some seed has ended."""
    return any(len(steps) for steps, _ in run.all_episodes().values())


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


def learning_curves(runs: Sequence[Run], path: Path, names: Sequence[str] | None = None) -> None:
    """Write the picture of the runs' learning curves; `names` are their labels, by default what tells them apart."""
    save_figure(curves_figure(runs, names), path)


def curves_figure(runs: Sequence[Run], names: Sequence[str] | None = None) -> Figure:
    """Draw return against environment steps: a panel per task, or per task and rule; seeds thin, their mean thick."""
    named = dict(zip(runs, names or labels(runs), strict=True))
    columns = families(runs)
    tasks = list(dict.fromkeys(map(short_task, runs)))
    panels = [(task, family) for task in tasks for family in columns]
    width = len(columns) if len(columns) > 1 else 2 if len(tasks) == 4 else min(len(tasks), 3)
    height = -(-len(panels) // width)
    inches = (4.8 if width > 1 else 6.4) * width
    legends = [legend_of(family, named, inches / len(columns)) for family in columns]
    below = max(legend.inches for legend in legends)
    figure = Figure(figsize=(inches, 3.6 * height + below), layout="constrained")
    [[above], [foot]] = figure.subfigures(2, 1, height_ratios=(3.6 * height, below), squeeze=False)
    axes = above.subplots(height, width, squeeze=False, sharey="row" if len(columns) > 1 else "none")
    unused = [("", [])] * (axes.size - len(panels))
    for axis, (task, family) in zip(axes.flat, [*panels, *unused], strict=True):
        mine = [run for run in family if short_task(run) == task]
        if mine:
            draw_panel(axis, task, mine, looks([named[run] for run in family]), named)
        else:
            axis.remove()
    above.supxlabel("environment steps per agent (thin: one seed, thick: mean of the seeds)", fontsize="medium")
    above.supylabel("episode return", fontsize="medium")
    for part, legend in zip(foot.subfigures(1, len(columns), squeeze=False)[0], legends, strict=True):
        part.legend(handles=legend.handles, loc="upper center", ncols=legend.columns, frameon=False, fontsize=FONT)
    return figure


def draw_panel(
    axis: Axes, title: str, runs: Sequence[Run], look: dict[str, tuple[str, str]], named: dict[Run, str]
) -> None:
    """Draw the runs of one panel, or write that there is nothing to draw yet."""
    for run in runs:
        draw(axis, run, named[run], *look[named[run]])
    style(axis, title)
    if not axis.lines:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.text(0.5, 0.5, NOTHING_YET, ha="center", va="center", transform=axis.transAxes, color="#666666")


def draw(axis: Axes, run: Run, name: str, colour: str, dashes: str = "-") -> None:
    """Draw one run's seeds and their mean."""
    curves = list(run.all_episodes().values())
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
    axis.plot(grid[seen], mean, color=colour, ls=dashes, lw=2.4, label=f"{name} ({count_of(len(curves))})")


def count_of(seeds: int) -> str:
    """Return a number of seeds in words."""
    return f"{seeds}\u00a0seeds" if seeds > 1 else "1\u00a0seed"  # in one line


def step_label(x: float, _: float | None = None) -> str:
    """Return a number of steps as an axis shows it."""
    return f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x >= 1e3 else f"{x:g}"


def style(axis: Axes, title: str) -> None:
    """Set title and axes of one panel."""
    axis.set_title(title)
    axis.xaxis.set_major_formatter(step_label)
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


class Legend(NamedTuple):
    """A legend below the panels, and the room it needs."""

    handles: list[Line2D]
    columns: int
    inches: float


def looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a line style for each label; no two labels have the same until all are used up."""
    distinct = list(dict.fromkeys(names))
    return {
        name: (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]) for i, name in enumerate(distinct)
    }


def legend_of(runs: Sequence[Run], named: dict[Run, str], inches: float) -> Legend:
    """Return the legend of the runs that share panels, in as many columns as fit, long labels in several lines."""
    look = looks([named[run] for run in runs])
    counts = {name: {len(run.seeds) for run in runs if named[run] == name} for name in look}
    empty = {name for name in look if not any(has_episodes(run) for run in runs if named[run] == name)}
    texts = [
        wrapped(f"{name} ({NOTHING_YET if name in empty else count_of(max(counts[name]))})", inches - HANDLE_INCHES)
        for name in look
    ]
    widest = max(width_of(line) for text in texts for line in text.splitlines()) + HANDLE_INCHES
    columns = max(1, min(len(texts), math.floor(inches / widest)))
    rows = math.ceil(len(texts) / columns)
    lines = max(sum(text.count("\n") + 1 for text in texts[i : i + rows]) for i in range(0, len(texts), rows))
    handles = [
        Line2D([], [], color=colour, ls=dashes, lw=2.4, label=text)
        for text, (colour, dashes) in zip(texts, look.values(), strict=True)
    ]
    return Legend(handles, columns, LINE_INCHES * lines + ROW_INCHES * rows + 0.15)


def width_of(text: str) -> float:
    """Return the width of a line of text in a legend, in inches."""
    return TextPath((0, 0), text, size=FONT, usetex=False).get_extents().width / 72 if text.strip() else 0.0


def wrapped(text: str, inches: float) -> str:
    """Return a text in as few lines as fit into a width, measured for its actual characters."""
    text = plain(text)
    most = math.ceil(len(text) * min(1.0, 1.2 * inches / max(width_of(text), inches)))
    for characters in range(most, 8, -1):
        lines = textwrap.wrap(text, characters)
        if max(map(width_of, lines)) <= inches:
            return "\n".join(lines)
    return text


def plain(text: str) -> str:
    """Return a text that matplotlib shows as it is: it would read text between dollars as mathematics."""
    return text.replace("$", r"\$")
