"""Axes: the range that a chart covers, its ticks, and where a value lies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gpi.study.report.blocks import Chart, Line

FEW = 12  # points of a line that are drawn as points
MANY = 6  # lines; with more, bands and seeds are fainter
ROOM = 0.03  # of an axis beyond its data


class Axis(NamedTuple):
    """A range of values with ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, values: np.ndarray | float) -> np.ndarray:
        """Return where values lie, from 0 at the low end to 1 at the high end."""
        return (np.asarray(values, np.float64) - self.low) / (self.high - self.low)


def nice_step(span: float, count: int) -> float:
    """Return the 1, 2, 2.5 or 5 times a power of ten that divides a span into at most `count` parts."""
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next((power * factor for factor in (1, 2, 2.5, 5) if power * factor >= rough * (1 - 1e-9)), power * 10)


def ticks_in(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return round numbers from low to high, about `count` at most."""
    step = nice_step(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))


def finite(arrays: Iterable[np.ndarray | None]) -> np.ndarray:
    """Return all finite numbers of some arrays."""
    found = [np.asarray(array, np.float64).ravel() for array in arrays if array is not None]
    values = np.concatenate(found) if found else np.empty(0)
    return values[np.isfinite(values)]


def parts_of(line: Line) -> tuple[np.ndarray | None, ...]:
    """Return everything of a line that has a place on the value axis."""
    return line.y, line.low, line.high, line.seeds


def value_axis(chart: Chart, count: int) -> Axis:
    """Return the axis of a chart's values: the range it asks for, or one that holds everything, with zero if near."""
    if chart.y_range is not None and chart.y_range[0] < chart.y_range[1]:
        return Axis(*chart.y_range, ticks_in(*chart.y_range, count))
    values = finite(part for line in chart.lines for part in parts_of(line))
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if chart.names or 0.0 < low < 0.7 * high:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    room = ROOM * (high - low)
    low, high = low - room if low else low, high + room if high else high
    return Axis(low, high, ticks_in(low, high, count))


def number_axis(chart: Chart, count: int) -> Axis:
    """Return the axis that a chart's lines run along."""
    values = np.unique(finite(line.x for line in chart.lines))
    low, high = (float(values[0]), float(values[-1])) if values.size else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    low = 0.0 if 0.0 < low < 0.1 * high else low
    step = nice_step(high - low, count)
    top = step * math.ceil(high / step)
    high = top if top - high <= ROOM * (top - low) else high  # bins are known by their middles
    ticks = ticks_in(low, high, count)
    room = ROOM * (high - low) if values.size <= FEW else 0.0  # for points at the ends
    return Axis(low - room, high + room, ticks)


def value_at(values: np.ndarray | None, place: int) -> float:
    """Return the value at a place, NaN where there is none."""
    return float(values[place]) if values is not None and place < len(values) else math.nan


def seeds_at(line: Line, place: int) -> list[float]:
    """Return the known values of all seeds at a place."""
    if line.seeds is None or place >= np.shape(line.seeds)[1]:
        return []
    return [float(seed) for seed in line.seeds[:, place] if math.isfinite(seed)]
