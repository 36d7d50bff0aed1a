"""Figures of a report as PNG and SVG, drawn by matplotlib; the same report gives the same bytes."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gpi.report.curves import width_of
from gpi.study.report.axes import FEW, MANY, number_axis, seeds_at, value_at, value_axis
from gpi.study.report.blocks import Chart, Line
from gpi.study.report.looks import COLOURS, DASHES, Look, Looks, look_of
from gpi.study.report.text import clean, step_tick, tick

DPI = {"png": 150, "svg": 100}  # of an SVG: its embedded pixels
WIDTH = 7.0  # inches of a single figure
PANEL = (3.0, 2.3)  # inches of one of many
COLUMNS = 4
ROW, BETWEEN = 0.13, 0.09  # inches of a bar, and between the rows
LONGEST = 60  # characters of a name or title
SOFT = "#55606b"
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "gpi", "svg.fonttype": "path", "text.parse_math": False, "text.usetex": False,
    "font.family": ["DejaVu Sans"], "font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#d3d5d0", "axes.titlesize": 10.0, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e5e1", "grid.linewidth": 0.7, "xtick.color": SOFT,
    "ytick.color": SOFT, "xtick.major.size": 0.0, "ytick.major.size": 0.0, "axes.labelcolor": SOFT,
    "lines.dash_capstyle": "butt", "path.simplify_threshold": 0.25,
}  # fmt: skip


def fit(text: str) -> str:
    """Return a text that a figure has room for."""
    text = " ".join(clean(text).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def encoded(figure: Figure) -> dict[str, bytes]:
    """Return a figure as the bytes of a PNG and of an SVG file, by their suffix, without dates."""
    found = {}
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # no font has all of the world's letters
        for kind, facts in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=DPI[kind], metadata=facts)
            found[kind] = buffer.getvalue()
    return found


def figure_of(chart: Chart, looks: Looks) -> Figure:
    """Return a chart as a separate figure, with its legend below."""
    with mpl.rc_context(SETTINGS):
        return bars_figure(chart, looks) if chart.names else lines_figure(chart, looks)


def sheet_of(title: str, charts: Sequence[Chart], looks: Looks) -> Figure:
    """Draw charts side by side on one sheet, under one legend."""
    with mpl.rc_context(SETTINGS):
        columns = min(COLUMNS, len(charts))
        height = -(-len(charts) // columns)
        labels = {line.label: line for chart in charts for line in chart.lines}
        inches = PANEL[0] * columns
        foot = legend_inches(list(labels), inches)
        tall = PANEL[1] * height + foot + 0.95
        figure = new_figure(inches, tall, (0.65, 0.15, foot + 0.5, 0.75), gaps=(0.24, 0.36))
        axes = list(figure.subplots(height, columns, squeeze=False).flat)
        for axis, chart in zip(axes, charts, strict=False):
            draw_lines(axis, chart, looks, small=True)
        for axis in axes[len(charts) :]:
            axis.remove()
        figure.text(0.1 / inches, 1.0 - 0.12 / tall, fit(title), ha="left", va="top", fontsize=12, fontweight="bold")
        words = fit(f"{charts[0].y_label} against {charts[0].x_label}")
        figure.text(0.5, (foot + 0.06) / tall, words, ha="center", color=SOFT)
        legend_below(figure, [handle(label, looks.lines[label]) for label in labels], inches)
        return figure


def new_figure(
    width: float, height: float, margins: tuple[float, float, float, float], gaps: tuple[float, float] = (0.2, 0.2)
) -> Figure:
    """Return an empty figure with margins in inches: left, right, bottom, top. Measuring text would take long."""
    figure = Figure(figsize=(width, height))
    left, right, bottom, top = margins
    figure.subplots_adjust(
        left / width, bottom / height, 1.0 - right / width, 1.0 - top / height, wspace=gaps[0], hspace=gaps[1]
    )
    return figure


def colour(look: Look) -> str:
    """Return the colour of a look, on white."""
    return COLOURS[look.colour].light


def dashes(look: Look, width: float) -> tuple[float, tuple[float, ...] | None]:
    """Return the dashes of a look as matplotlib wants them, for a line of some width: it multiplies them by it."""
    return (0.0, tuple(part / width * 0.75 for part in DASHES[look.dashes]) or None)


def handle(label: str, look: Look) -> Line2D:
    """Return a line's entry in a legend."""
    return Line2D([], [], color=colour(look), lw=1.6, ls=dashes(look, 1.6), label=fit(label))


@lru_cache(maxsize=1024)
def inches_of(text: str) -> float:
    """Return the width of a text in inches, at the size of names; measuring takes matplotlib long."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        return 0.9 * width_of(text.replace("$", "S"))


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """Return how many entries of a legend fit side by side."""
    widest = max(inches_of(fit(label)) for label in labels) + 0.55
    most = max(1, min(len(labels), math.floor((inches - 0.2) / widest)))
    return math.ceil(len(labels) / math.ceil(len(labels) / most))  # no row shorter than it must be


def legend_inches(labels: Sequence[str], inches: float) -> float:
    """Return the height of a legend; none for a lone series."""
    return 0.17 * math.ceil(len(labels) / legend_columns(labels, inches)) + 0.15 if len(labels) > 1 else 0.0


def legend_below(figure: Figure, handles: Sequence[Line2D | Patch], inches: float) -> None:
    """Draw a legend at the foot of a figure."""
    if len(handles) > 1:
        columns = legend_columns([str(entry.get_label()) for entry in handles], inches)
        figure.legend(handles=handles, loc="lower center", ncols=columns, frameon=False, fontsize=8, handlelength=2.6,
                      labelspacing=0.3, columnspacing=1.2, borderpad=0.3)  # fmt: skip


def lines_figure(chart: Chart, looks: Looks) -> Figure:
    """Draw a chart of lines over numbers."""
    labels = list(dict.fromkeys(line.label for line in chart.lines))
    foot = legend_inches(labels, WIDTH) if labels else 0.0
    figure = new_figure(WIDTH, 4.2 + foot, (0.75, 0.2, foot + 0.55, 0.4))
    axis = figure.subplots()
    draw_lines(axis, chart, looks)
    axis.set_xlabel(fit(chart.x_label))
    axis.set_ylabel(fit(chart.y_label))
    legend_below(figure, [handle(label, looks.lines[label]) for label in labels], WIDTH)
    return figure


def draw_lines(axis: Axes, chart: Chart, looks: Looks, small: bool = False) -> None:
    """Draw the lines of a chart: bands and seeds below, means above."""
    x, y = number_axis(chart, 5), value_axis(chart, 5)
    faint = 0.4 if len(chart.lines) > MANY else 1.0
    for line in chart.lines:
        draw_line(axis, line, looks.lines[line.label], 1.1 if small else 1.6, faint)
    if small:  # thousands of faint lines would take megabytes of an SVG: below the means, it has pixels
        axis.set_rasterization_zorder(2.5)
    axis.set_xticks(x.ticks, [step_tick(value, x.high) for value in x.ticks])
    axis.set_yticks(y.ticks, [tick(value) for value in y.ticks])
    axis.set_xlim(x.low, x.high)
    axis.set_ylim(y.low, y.high)
    axis.grid(visible=False, axis="x")
    axis.spines["left"].set_visible(False)
    axis.set_title(fit(chart.title), fontsize=9.0 if small else 10.0)


def draw_line(axis: Axes, line: Line, look: Look, width: float, faint: float) -> None:
    """Draw one line with its band, its seeds, and its points if they are few."""
    x = np.asarray(line.x, np.float64)
    if line.low is not None and line.high is not None:
        axis.fill_between(x, line.low, line.high, color=colour(look), alpha=0.12 * faint, lw=0.0, zorder=2)
    if line.seeds is not None:
        seeds = np.asarray(line.seeds, np.float64).T
        axis.plot(x, seeds, color=colour(look), lw=0.5, alpha=0.35 * faint, zorder=2.1)
    marker = "o" if len(x) <= FEW else ""
    axis.plot(x, line.y, color=colour(look), lw=width, ls=dashes(look, width), marker=marker, ms=3.5, zorder=3)


def bars_figure(chart: Chart, looks: Looks) -> Figure:
    """Draw a chart of names: a row of bars for each, from top to bottom."""
    y, count = value_axis(chart, 6), max(len(chart.lines), 1)
    names = [fit(name) for name in chart.names]
    left = min(max(map(inches_of, names), default=0.5) + 0.25, WIDTH / 2)
    foot = legend_inches([line.label for line in chart.lines], WIDTH) if chart.lines else 0.0
    rows = len(names) * (ROW * count + BETWEEN)
    figure = new_figure(WIDTH, rows + foot + 0.95, (left, 0.2, foot + 0.5, 0.45))
    axis = figure.subplots()
    for number, line in enumerate(chart.lines):
        draw_series(axis, chart, number, [look_of(chart, line, place, looks) for place in range(len(names))])
    axis.set_yticks(range(len(names)), names, color="#1c2126")
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xticks(y.ticks, [tick(value) for value in y.ticks])
    axis.set_xlim(y.low, y.high)
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)
    if y.low <= 0.0 <= y.high:
        axis.axvline(0.0, color=SOFT, lw=0.8)
    axis.set_xlabel(fit(chart.y_label))
    axis.set_title(fit(chart.title), x=-left / (WIDTH - left - 0.2) + 0.02)
    entries = [Patch(color=colour(looks.series[line.label]), label=fit(line.label)) for line in chart.lines]
    legend_below(figure, entries, WIDTH)
    return figure


def draw_series(axis: Axes, chart: Chart, number: int, row_looks: Sequence[Look]) -> None:
    """Draw one series: bars, whiskers, and a dot for each seed."""
    line, height = chart.lines[number], 0.76 / len(chart.lines)
    places = np.arange(len(chart.names)) - 0.38 + height * (number + 0.5)
    rows = range(len(chart.names))
    values, low, high = (np.array([value_at(array, row) for row in rows]) for array in (line.y, line.low, line.high))
    colours = [colour(look) for look in row_looks]
    axis.barh(places, np.where(np.isfinite(values), values, 0.0), height * 0.88, color=colours, alpha=0.85, zorder=2)
    axis.hlines(places, low, high, color="#1c2126", lw=0.9, alpha=0.8, zorder=3)
    dots = [(seed, places[i]) for i in rows for seed in seeds_at(line, i)]
    if dots:
        axis.scatter(*zip(*dots, strict=True), s=5, c="white", edgecolors="#1c2126", lw=0.5, zorder=4)
