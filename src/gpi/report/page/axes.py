"""Axes: the range that a chart covers, its ticks, and where a value lies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gpi.report.blocks import Chart, Line

FEW = 12  # points of a line that are drawn as points
ROOM = 0.03  # of an axis beyond its data


class Axis(NamedTuple):
    """A range of values with ticks; `log` where equal factors take equal room."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, values: np.ndarray | float) -> np.ndarray:
        """Return where values lie, from 0 at the low end to 1 at the high end."""
        low, high = self.low, self.high
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                values, low, high = np.log(values), math.log(low), math.log(high)
        return (np.asarray(values, np.float64) - low) / (high - low)


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
    if chart.reference is not None:
        values = np.append(values, chart.reference)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if not chart.points and (chart.names or 0.0 < low < 0.7 * high):
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    room = ROOM * (high - low)
    low, high = low - room if low else low, high + room if high else high
    return Axis(low, high, ticks_in(low, high, count))


def number_axis(chart: Chart, count: int) -> Axis:
    """Return the axis that a chart's lines run along; few distinct numbers are their own ticks."""
    values = np.unique(finite(line.x for line in chart.lines))
    log = chart.log_x and values.size > 0 and values[0] > 0
    low, high = (float(values[0]), float(values[-1])) if values.size else (0.0, 1.0)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    if not log:
        low = 0.0 if 0.0 < low < 0.1 * high else low
        step = nice_step(high - low, count)
        top = step * math.ceil(high / step)
        high = top if top - high <= ROOM * (top - low) else high  # bins are known by their middles
    ticks = tuple(map(float, values)) if log and values.size <= FEW else ticks_in(low, high, count)
    if values.size <= FEW:  # room for points at the ends
        room = (high / low) ** ROOM if log else ROOM * (high - low)
        low, high = (low / room, high * room) if log else (low - room, high + room)
    return Axis(low, high, ticks, log)
