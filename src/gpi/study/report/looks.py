"""Colours and dashes: one look for each label, the same in the whole report, page and figures.

The hue says the update rule, and its depth whether samples are reused; dashes say kappa, so that no line is told by its
colour alone. Blue, vermilion and green stay apart for the colour-blind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpi.study.report.axes import value_at
from gpi.study.report.blocks import Chart, Line, Report


class Colour(NamedTuple):
    """A colour on white, and the one that takes its place on black."""

    light: str
    dark: str


COLOURS = (
    Colour("#0b62a3", "#4fa8f0"),  # blue
    Colour("#3f96cf", "#8fb9d6"),  # light blue
    Colour("#b8420a", "#ff8448"),  # vermilion
    Colour("#cc7f1e", "#d8ab6b"),  # orange
    Colour("#00694f", "#2fd3a0"),  # green
    Colour("#2f9f80", "#8cc4b2"),  # light green
    Colour("#7b4397", "#cb9be6"),  # purple
    Colour("#bb4d86", "#f5a6cb"),  # pink
    Colour("#7a5b34", "#d2b48c"),  # brown
    Colour("#6b7480", "#a7b0bc"),  # grey
)
DASHES = ((), (7.0, 3.0), (2.0, 2.5), (8.0, 2.5, 2.0, 2.5))  # in points, on and off
OF_ALGORITHM = {"geppo": 0, "ppo": 1, "getrpo": 2, "trpo": 3, "gevmpo": 4, "vmpo": 5}
OF_SIDE = {True: 0, False: 9}  # generalized or on-policy
OF_KAPPA = {"1": 0, "0.5": 1, "0": 2, "": 3}
NEGATIVE = 2  # of a lone series
FREE = (0, 2, 4, 6, 3, 7, 1, 8, 5, 9)  # the order for labels that say nothing: neighbours far apart


class Look(NamedTuple):
    """The places of a line's colour in COLOURS and of its dashes in DASHES."""

    colour: int
    dashes: int

    @property
    def name(self) -> str:
        """The class in the page's style sheet."""
        return f"c{self.colour} d{self.dashes}"


class Looks(NamedTuple):
    """The looks of a report's labels: of lines over numbers, and of series over names, which need no dashes."""

    lines: dict[str, Look]
    series: dict[str, Look]

    def of(self, chart: Chart) -> dict[str, Look]:
        """Return the looks for a chart."""
        return self.series if chart.names else self.lines


def looks_of(report: Report) -> Looks:
    """Return the looks of all labels of a report."""
    charts = [block for section in report.sections for block in section.blocks if isinstance(block, Chart)]
    return Looks(
        looks(line for chart in charts if not chart.names for line in chart.lines),
        looks(line for chart in charts if chart.names for line in chart.lines),
    )


def wish(line: Line) -> Look | None:
    """Return the look that what a line is about asks for, if anything does."""
    algorithm, kappa = line.tags.algorithm, line.tags.kappa
    if algorithm in OF_ALGORITHM:
        return Look(OF_ALGORITHM[algorithm], OF_KAPPA.get(kappa, 0))
    return None if line.generalized is None else Look(OF_SIDE[line.generalized], 0)


def looks(lines: Iterable[Line]) -> dict[str, Look]:
    """Return a look for each label; no two labels have the same until all forty are used up."""
    first: dict[str, Line] = {}
    for line in lines:
        first.setdefault(line.label, line)
    found: dict[str, Look] = {}
    for label, line in first.items():
        wanted = wish(line)
        if wanted is not None and wanted not in found.values():
            found[label] = wanted
    spare = [Look(colour, dashes) for dashes in range(len(DASHES)) for colour in FREE]
    for label in first:
        if label not in found:
            found[label] = next((look for look in spare if look not in found.values()), spare[len(found) % len(spare)])
    return found


def look_of(chart: Chart, line: Line, place: int, looks: Looks) -> Look:
    """Return the look of one bar: of its series or, as a single one needs no distinct colour, of its sign."""
    if len(chart.lines) > 1:
        return looks.series[line.label]
    return Look(NEGATIVE if value_at(line.y, place) < 0.0 else 0, 0)
