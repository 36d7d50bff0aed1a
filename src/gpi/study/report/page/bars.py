"""Charts of bars over names: a row for each name, so that names are readable and rows can be left out."""

from __future__ import annotations

import math

import numpy as np

from gpi.study.report.axes import Axis, seeds_at, value_at, value_axis
from gpi.study.report.blocks import Chart, Line, Tags
from gpi.study.report.looks import Look, Looks, look_of
from gpi.study.report.page.layout import Facets
from gpi.study.report.page.lines import at_end
from gpi.study.report.text import DASH, brief, decimal, escape, tick

BAR, GAP = 11, 5  # pixels: of a bar, and above the first and below the last of a row
TICKS = 6
LONG = 12  # rows; above more of them the axis stands once more
SEEDS_IN_WORDS = 10


def rows(chart: Chart, looks: Looks, facets: Facets) -> str:
    """Return the rows of a chart of names, with the axis below."""
    axis = value_axis(chart, TICKS)
    ticks = "".join(
        f'<span{at_end(float(axis.place(value)))} style="left:{left(axis, value)}%">{tick(value)}</span>'
        for value in axis.ticks
    )
    lines = "".join(f'<path class="grid" d="M{left(axis, value)} 0v100"/>' for value in axis.ticks)
    if axis.low <= 0.0 <= axis.high:
        lines += f'<path class="zero" d="M{left(axis, 0.0)} 0v100"/>'
    foot = f'<div class="row axis" aria-hidden="true"><span class="name"></span><div class="x">{ticks}</div></div>'
    head = foot.replace("axis", "axis top", 1) if len(chart.names) > LONG else ""
    body = "\n".join(row(chart, place, axis, looks, facets) for place in range(len(chart.names)))
    background = f'<svg class="back" viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{lines}</svg>'
    return (
        f'<div class="rows" role="list" aria-label="{escape(f"{chart.title}: {chart.y_label}")}">\n{head}{background}\n'
        f"{body}\n{foot}</div>"
    )


def left(axis: Axis, value: float) -> str:
    """Return where a value lies, in percent from the left."""
    return f"{100.0 * float(axis.place(value)):.5g}"


def digits_for(axis: Axis) -> int:
    """Return the digits after the point that tell values on an axis apart."""
    span = axis.high - axis.low
    return 1 if span >= 50 else 2 if span >= 5 else 3


def row(chart: Chart, place: int, axis: Axis, looks: Looks, facets: Facets) -> str:
    """Return the row of one name, about its task: a bar for each series."""
    alone, name = len(chart.lines) == 1, chart.names[place]
    tags = Tags(task=name) if name in facets.task else Tags()
    marks = [
        series_mark(line, place, GAP + number * BAR, axis, look_of(chart, line, place, looks), facets)
        for number, line in enumerate(chart.lines)
    ]
    number = decimal(value_at(chart.lines[0].y, place), digits_for(axis)) if alone else ""
    words = "; ".join(in_words(line, place, alone) for line in chart.lines)
    value = f'<span class="value" aria-hidden="true">{escape(number)}</span>' if alone else ""
    height = 2 * GAP + BAR * len(chart.lines)
    return (
        f'<div class="row" role="listitem"{facets.mark(tags)}><span class="name">{escape(name)}</span>'
        f'<svg class="bar" height="{height}" role="img" aria-label="{escape(words)}">{"".join(marks)}</svg>'
        f"{value}</div>"
    )


def series_mark(line: Line, place: int, top: int, axis: Axis, look: Look, facets: Facets) -> str:
    """Return one series in a row: bar, whisker, and a dot for each seed."""
    value, middle = value_at(line.y, place), f"{top + BAR / 2:g}"
    parts = [f"<title>{escape(in_words(line, place, False))}</title>"]
    if math.isfinite(value):
        ends = sorted(np.clip([float(axis.place(value)), float(axis.place(max(axis.low, 0.0)))], 0.0, 1.0) * 100.0)
        width = f"{ends[1] - ends[0]:.5g}"
        parts.append(f'<rect x="{ends[0]:.5g}%" y="{top + 1}" width="{width}%" height="{BAR - 2}"/>')
        low, high = value_at(line.low, place), value_at(line.high, place)
        if math.isfinite(low) and math.isfinite(high):
            x = f'x1="{left(axis, low)}%" x2="{left(axis, high)}%"'
            parts.append(f'<line class="whisker" {x} y1="{middle}" y2="{middle}"/>')
    for seed in seeds_at(line, place):
        parts.append(f'<circle class="seed" cx="{left(axis, seed)}%" cy="{middle}" r="2"/>')
    return f'<g class="mark {look.name}"{facets.mark(line.tags)}>{"".join(parts)}</g>'


def in_words(line: Line, place: int, alone: bool) -> str:
    """Return one series in a row in words."""
    value = value_at(line.y, place)
    text = brief(value) if math.isfinite(value) else DASH
    low, high = value_at(line.low, place), value_at(line.high, place)
    if math.isfinite(low) and math.isfinite(high):
        text += f" [{brief(low)}, {brief(high)}]"
    seeds = seeds_at(line, place)
    if 0 < len(seeds) <= SEEDS_IN_WORDS:
        text += f"; seeds {', '.join(map(brief, seeds))}"
    return text if alone or not line.label else f"{line.label}: {text}"
