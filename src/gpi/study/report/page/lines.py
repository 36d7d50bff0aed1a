"""Charts of lines over numbers, as SVG that stretches; what stands around the lines is text of the page.

A line's paths are its data: their coordinates are whole numbers in a square of 10,000, and the script reads the values
back from them, so that nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpi.study.report.axes import FEW, MANY, Axis, number_axis, value_axis
from gpi.study.report.blocks import Chart, Line
from gpi.study.report.looks import Look
from gpi.study.report.page.layout import Facets
from gpi.study.report.text import brief, escape, step_tick, tick

SIZE = 10_000
FAR = 100 * SIZE
X_TICKS, Y_TICKS = 5, 5
MOST = 400  # points of a line


def plot(chart: Chart, looks: dict[str, Look], facets: Facets) -> str:
    """Return the plot of a chart of lines: ticks and lines."""
    x, y = number_axis(chart, X_TICKS), value_axis(chart, Y_TICKS)
    drawn = [one_line(line, x, y, looks[line.label], facets) for line in chart.lines]
    lines = "\n".join(layer for layers in zip(*drawn, strict=True) for layer in layers)
    grid = "".join(f"M0 {up(y, value)}h{SIZE}" for value in y.ticks)
    kind = "plot many" if len(chart.lines) > MANY else "plot"
    return (
        f'<div class="{kind}" role="img" tabindex="0" aria-label="{escape(description(chart))}" '
        f'data-x="{x.low:.9g} {x.high:.9g}" data-y="{y.low:.9g} {y.high:.9g}">\n'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="grid" d="{grid}"/>\n{lines}\n</svg>\n{y_ticks(y)}{x_ticks(x)}</div>'
    )


def up(axis: Axis, value: float) -> int:
    """Return where a value lies on the vertical axis, which SVG counts from the top."""
    return round(SIZE * (1.0 - float(axis.place(value))))


def y_ticks(axis: Axis) -> str:
    """Return the labels of the vertical axis."""
    spans = (f'<span style="top:{up(axis, value) / 100:g}%">{tick(value)}</span>' for value in axis.ticks)
    return f'<div class="y" aria-hidden="true">{"".join(spans)}</div>'


def x_ticks(axis: Axis) -> str:
    """Return the labels of the horizontal axis."""
    places = [float(axis.place(value)) for value in axis.ticks]
    spans = (
        f'<span{at_end(place)} style="left:{100 * place:.4g}%">{step_tick(value, axis.high)}</span>'
        for place, value in zip(places, axis.ticks, strict=True)
    )
    return f'<div class="x" aria-hidden="true">{"".join(spans)}</div>'


def at_end(place: float) -> str:
    """Return the class of a label that would stand out at an end of its axis."""
    return ' class="first"' if place < 0.04 else ' class="last"' if place > 0.96 else ""


def one_line(line: Line, x: Axis, y: Axis, look: Look, facets: Facets) -> tuple[str, str]:
    """Return the two layers of a line: its band and seeds; and itself, with points if they are few."""
    line = thinned(line)
    points = np.asarray(line.x, np.float64)
    below, above = [], [("mean", path(points, line.y, x, y))]
    if line.low is not None and line.high is not None:
        below.append(("band", band_path(points, line.low, line.high, x, y)))
    if line.seeds is not None:
        below.append(("seeds", "".join(path(points, seed, x, y) for seed in line.seeds)))
    if len(points) <= FEW:
        dots = [point for piece in pieces(points, line.y, x, y) for point in piece.tolist()]
        above.append(("dots", "".join(f"M{a} {b}h0" for a, b in dots)))
    title, mark = f"<title>{escape(summary_of(line))}</title>", facets.mark(line.tags)
    back, front = ("".join(f'<path class="{kind}" d="{d}"/>' for kind, d in parts if d) for parts in (below, above))
    return f'<g class="back {look.name}"{mark}>{back}</g>', f'<g class="line {look.name}"{mark}>{title}{front}</g>'


def thinned(line: Line) -> Line:
    """Return a line with no more points than a screen shows, the first and the last among them."""
    if len(line.x) <= MOST:
        return line
    kept = np.linspace(0, len(line.x) - 1, MOST).round().astype(np.int64)
    parts = {name: getattr(line, name) for name in ("x", "y", "low", "high", "seeds")}
    return line._replace(**{name: part[..., kept] for name, part in parts.items() if part is not None})


def pieces(points: np.ndarray, values: np.ndarray, x: Axis, y: Axis) -> list[np.ndarray]:
    """Return the coordinates of a line as whole numbers, `[points, 2]`, in pieces where values are missing."""
    values = np.asarray(values, np.float64)
    places = np.stack([x.place(points), 1.0 - y.place(values)], axis=-1) * SIZE
    known = np.asarray(np.isfinite(places).all(axis=-1))
    # Far outside the plot, a path is neither seen nor of use.
    whole = np.rint(np.clip(np.where(known[:, None], places, 0.0), -FAR, FAR)).astype(np.int64)
    cuts = np.flatnonzero(np.diff(known.astype(np.int8))) + 1
    parts = zip(np.split(whole, cuts), np.split(known, cuts), strict=True)
    return [part for part, seen in parts if len(part) and seen.all()]


def path(points: np.ndarray, values: np.ndarray, x: Axis, y: Axis) -> str:
    """Return the path of a line, in differences from point to point, which are short to write."""
    return "".join("".join(steps(piece)) for piece in pieces(points, values, x, y))


def steps(piece: np.ndarray) -> Iterator[str]:
    """Yield the parts of a path through the points of one piece; a lone point is a dot."""
    yield f"M{piece[0, 0]} {piece[0, 1]}"
    if len(piece) == 1:
        yield "h0"
        return
    moves = np.diff(piece, axis=0)
    yield "l" + " ".join(f"{a} {b}" if b >= 0 else f"{a}{b}" for a, b in moves.tolist())


def band_path(points: np.ndarray, low: np.ndarray, high: np.ndarray, x: Axis, y: Axis) -> str:
    """Return the outline of a band: along its upper end and back along the lower one."""
    known = np.isfinite(low) & np.isfinite(high)
    ends = [pieces(points, np.where(known, end, np.nan), x, y) for end in (high, low)]
    return "".join(
        "".join(steps(np.concatenate([upper, lower[::-1]]))) + "z" for upper, lower in zip(*ends, strict=True)
    )


def last_of(line: Line) -> int | None:
    """Return the place of a line's last known value."""
    known = np.flatnonzero(np.isfinite(np.asarray(line.y, np.float64)))
    return int(known[-1]) if known.size else None


def summary_of(line: Line) -> str:
    """Return a line in words: its label and where it ends."""
    last = last_of(line)
    if last is None:
        return f"{line.label}: nothing yet"
    text = f"{line.label}: {brief(float(line.y[last]))} at {tick(float(line.x[last]))}"
    if line.low is not None and line.high is not None:
        text += f" [{brief(float(line.low[last]))}, {brief(float(line.high[last]))}]"
    return text


def description(chart: Chart) -> str:
    """Return a chart in words, for those who do not see it."""
    ends = "; ".join(summary_of(line) for line in chart.lines)
    return f"{chart.title}: {chart.y_label} against {chart.x_label}. At the end: {ends}."
