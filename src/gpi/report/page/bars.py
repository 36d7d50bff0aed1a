"""Charts of bars or points over names: a row for each name, so that names are readable and rows can be left out."""

from __future__ import annotations

import math

import numpy as np

from gpi.report.blocks import Chart, Line, Tags
from gpi.report.page.axes import Axis, value_axis
from gpi.report.page.facets import Facets
from gpi.report.page.lines import at_end
from gpi.report.page.looks import Look, Looks
from gpi.report.page.text import DASH, brief, decimal, escape, tick

BAR, GAP = 11, 5  # pixels: of a bar, and above the first and below the last of a row
TICKS = 6
LONG = 12  # rows; above more of them the axis stands once more
NEGATIVE = Look(2, 0)
SEEDS_IN_WORDS = 10


def rows(chart: Chart, looks: Looks, facets: Facets) -> str:
    """Return the rows of a chart of names, with the axis below."""
    axis = value_axis(chart, TICKS)
    zero = chart.reference if chart.reference is not None else 0.0
    ticks = "".join(
        f'<span{at_end(float(axis.place(value)))} style="left:{left(axis, value)}%">{tick(value)}</span>'
        for value in axis.ticks
    )
    lines = "".join(f'<path class="grid" d="M{left(axis, value)} 0v100"/>' for value in axis.ticks)
    if axis.low <= zero <= axis.high and (zero or not chart.points):
        kind = "zero" if chart.reference is None else "reference"
        lines += f'<path class="{kind}" d="M{left(axis, zero)} 0v100"/>'
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


def tags_of(chart: Chart, place: int, facets: Facets) -> Tags:
    """Return what a row is about."""
    if place < len(chart.name_tags):
        return chart.name_tags[place]
    return Tags(task=chart.names[place]) if chart.names[place] in facets.task else Tags()


def look_of(chart: Chart, line: Line, place: int, looks: Looks, facets: Facets) -> Look:
    """Return the look of one bar: of its series or, as a single one needs no distinct colour, of its name or sign."""
    if len(chart.lines) > 1:
        return looks.series[line.label]
    arm = looks.lines.get(chart.names[place]) if tags_of(chart, place, facets).algorithm else None
    return arm or (NEGATIVE if value_at(line.y, place) < 0.0 else Look(0, 0))


def row(chart: Chart, place: int, axis: Axis, looks: Looks, facets: Facets) -> str:
    """Return the row of one name: a bar or a point for each series."""
    alone, name, tags = len(chart.lines) == 1, chart.names[place], tags_of(chart, place, facets)
    marks = []
    for number, line in enumerate(chart.lines):
        look = look_of(chart, line, place, looks, facets)
        marks.append(series_mark(chart, line, place, number, axis, look, facets))
    number = decimal(value_at(chart.lines[0].y, place), digits_for(axis)) if alone else ""
    words = "; ".join(in_words(line, place, alone) for line in chart.lines)
    value = f'<span class="value" aria-hidden="true">{escape(number)}</span>' if alone else ""
    height = 2 * GAP + BAR * len(chart.lines)
    return (
        f'<div class="row" role="listitem"{facets.mark(tags)}><span class="name">{escape(name)}</span>'
        f'<svg class="bar" height="{height}" role="img" aria-label="{escape(words)}">{"".join(marks)}</svg>'
        f"{value}</div>"
    )


def series_mark(chart: Chart, line: Line, place: int, number: int, axis: Axis, look: Look, facets: Facets) -> str:
    """Return one series in a row: bar or point, whisker, and a dot for each seed."""
    value, top = value_at(line.y, place), GAP + number * BAR
    middle = f"{top + BAR / 2:g}"
    parts = [f"<title>{escape(in_words(line, place, False))}</title>"]
    if math.isfinite(value):
        ends = sorted(np.clip([float(axis.place(value)), float(axis.place(max(axis.low, 0.0)))], 0.0, 1.0) * 100.0)
        if not chart.points:
            width = f"{ends[1] - ends[0]:.5g}"
            parts.append(f'<rect x="{ends[0]:.5g}%" y="{top + 1}" width="{width}%" height="{BAR - 2}"/>')
        low, high = value_at(line.low, place), value_at(line.high, place)
        if math.isfinite(low) and math.isfinite(high):
            x = f'x1="{left(axis, low)}%" x2="{left(axis, high)}%"'
            parts.append(f'<line class="whisker" {x} y1="{middle}" y2="{middle}"/>')
        if chart.points:
            parts.append(f'<circle class="point" cx="{left(axis, value)}%" cy="{middle}" r="4.5"/>')
    for seed in seeds_at(line, place):
        parts.append(f'<circle class="seed" cx="{left(axis, seed)}%" cy="{middle}" r="2"/>')
    return f'<g class="mark {look.name}"{facets.mark(line.tags)}>{"".join(parts)}</g>'


def value_at(values: np.ndarray | None, place: int) -> float:
    """Return the value at a place, NaN where there is none."""
    return float(values[place]) if values is not None and place < len(values) else math.nan


def seeds_at(line: Line, place: int) -> list[float]:
    """Return the known values of all seeds at a place."""
    if line.seeds is None or place >= np.shape(line.seeds)[1]:
        return []
    return [float(seed) for seed in line.seeds[:, place] if math.isfinite(seed)]


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
