"""The figure of `gpi audit`: was the guarantee kept, by how much missed, how old were the data, what came of it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from gpi.analysis.audit import BOUNDS, AuditSummary, columns
from gpi.analysis.calibration import WINDOW, calibrate, spans_of
from gpi.report.curves import COLOURS, step_label, wrapped
from gpi.report.labels import tails
from gpi.report.pictures import save_figure
from gpi.report.summary import percent
from gpi.rundir.run import Run

NAMES = {"penalty": "TV to prior policies", "tv": "one-step TV", "kl": "KL"}
LABELS = (
    "updates inside the bound", "measured / allowed", "expected TV to the policy\nwhose data have this age",
    "realised / nominal\nsample size", f"change of return from\n{WINDOW} updates to the next {WINDOW}",
)  # fmt: skip
BELOW = "environment steps per agent\n(line: mean of all seeds, shade: their whole range)"
PROMISED = "change that the surrogate's gains promise"
KEPT, BROKEN = "#009E73", "#D55E00"
WINDOWS = 60  # points of a curve: each is the mean and the range of one of 60 windows of training
COLUMN, TITLE = 3.7, 3.2  # inches


def audit_figure(runs: Sequence[Run], summaries: Sequence[AuditSummary], path: Path) -> None:
    """Draw a column per run: shares inside bounds, distances over bounds, TV by age, sample size, promises kept."""
    figure = Figure(figsize=(1.2 + COLUMN * len(runs), 14.5), layout="constrained")
    axes = figure.subplots(5, len(runs), squeeze=False, sharey="row", height_ratios=(0.75, 1, 1, 0.75, 1))
    names = tails([run.dir for run in runs])
    for run, name, summary, column in zip(runs, names, summaries, axes.T, strict=True):
        what = f"{summary.task.removeprefix('dmc/')}, {summary.algorithm}, trust {summary.trust}"
        column[0].set_title(f"{wrapped(name, TITLE)}\n{wrapped(what, TITLE)}", fontsize=10)
        draw_run(run, summary, list(column))
    for row, text in enumerate(LABELS):
        axes[row, 0].set_ylabel(text)
    for axis in axes[1:3, 0]:  # a row shares them
        plain_ticks(axis)
    save_figure(figure, path)


def draw_run(run: Run, summary: AuditSummary, axes: list[Axes]) -> None:
    """Draw one run's column."""
    table = columns(run)
    draw_shares(axes[0], summary)
    for bound, colour in zip(BOUNDS, COLOURS, strict=False):
        if bound in summary.bounds:
            allowed = np.where(table[f"{bound}_bound"] > 0.0, table[f"{bound}_bound"], np.nan)
            name = f"{NAMES[bound]}, {summary.name_of(bound)}"
            draw_curve(axes[1], table["steps"], table[bound] / allowed, colour, name)
    axes[1].axhline(1.0, color="black", lw=1.2, ls="--", label="bound")
    ages = [name for name in table if name.startswith("tv_age_")]
    for i, name in enumerate(ages):
        shade = 0.75 * i / max(len(ages) - 1, 1)
        colour = to_hex((shade, 0.45 + 0.4 * shade, 0.70 + 0.2 * shade))
        draw_curve(axes[2], table["steps"], table[name], colour, f"age {i}", shaded=False)
    axes[2].axhline(table["penalty_bound"][0], color="black", lw=1.2, ls="--", label="eps/2, bound of their mean")
    draw_curve(axes[3], table["steps"], table["ess_realised"] / table["ess"], COLOURS[0], "realised / nominal")
    axes[3].set_ylim(0.0, 1.05)
    axes[3].set_xlabel(BELOW)
    draw_promises(axes[4], run, table)
    for axis in axes[1:4]:
        axis.xaxis.set_major_formatter(step_label)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis, across in zip(axes[1:3], (1, 3), strict=True):
        axis.set_yscale("log")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=across, frameon=False, fontsize=8)


def draw_promises(axis: Axes, run: Run, table: dict[str, np.ndarray]) -> None:
    """Draw realised against promised changes: every span, and the mean of spans that promised about the same."""
    spans = spans_of(run, table)
    found = calibrate(spans)
    axis.set_xlabel(PROMISED)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    if found is None:
        axis.text(0.5, 0.5, "too few updates to say", ha="center", va="center", transform=axis.transAxes)
        return
    axis.plot(spans.promised, spans.realised, ".", color=COLOURS[0], alpha=0.3, ms=4, label=f"{2 * WINDOW} updates")
    promised, realised, error, _ = zip(*found.bins, strict=True)
    axis.errorbar(promised, realised, error, fmt="o", color=COLOURS[1], ms=5, capsize=3, label="mean ± standard error")
    low, high = spans.realised.min(), max(spans.realised.max(), 0.0)
    ends = np.clip([0.0, spans.promised.max()], low, high)
    axis.plot(ends, ends, color="black", lw=1.2, ls="--", label="as promised")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False, fontsize=8)


def plain_ticks(axis: Axes) -> None:
    """Write numbers such as 0.2 and 50 at a logarithmic axis, as many as there is room for."""
    low, high = axis.get_ylim()
    decades = math.log10(high / low)
    between = (1, 2, 3, 4, 6, 8) if decades < 1 else (1, 2, 5) if decades < 3 else (1,)
    axis.yaxis.set_major_locator(LogLocator(subs=between, numticks=9))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if 1000 <= x < 1e6 else f"{x:g}"))


def draw_shares(axis: Axes, summary: AuditSummary) -> None:
    """Draw the share of updates inside each bound as a bar, with the numbers written on it."""
    for row, bound in enumerate(summary.bounds):
        share, worst = summary.inside(bound), summary.worst[bound]
        axis.barh(-row, 1.0, color="#eeeeee")
        axis.barh(-row, share, color=KEPT if summary.violations[bound] == 0 else BROKEN)
        where = f"seed {worst.seed}, iteration {worst.iteration}"
        text = f"{NAMES[bound]}, {summary.name_of(bound)}: {percent(share)} inside\nworst x{worst.ratio:.3g} ({where})"
        axis.text(0.02, -row, text, va="center", fontsize=8)
    axis.set_xlim(0.0, 1.0)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    axis.set_yticks([])
    axis.spines[:].set_visible(False)


def draw_curve(axis: Axes, steps: np.ndarray, y: np.ndarray, colour: str, name: str, shaded: bool = True) -> None:
    """Draw a quantity over training: the mean of all seeds in each window, and its range."""
    window = np.minimum((steps / steps.max() * WINDOWS).astype(int), WINDOWS - 1)
    groups = [
        (steps[inside].mean(), y[inside]) for i in range(WINDOWS) if (inside := (window == i) & ~np.isnan(y)).any()
    ]
    if not groups:
        return
    x = [at for at, _ in groups]
    axis.plot(x, [values.mean() for _, values in groups], color=colour, lw=1.8, label=name)
    if shaded:
        low, high = [values.min() for _, values in groups], [values.max() for _, values in groups]
        axis.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
