"""What a report is made of: sections of text, tables and charts, as plain data that the page and the files draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Tags(NamedTuple):
    """What a row or a line is about, for the page's filters; empty where it is about several."""

    task: str = ""
    algorithm: str = ""
    kappa: str = ""
    """As it is written in names: 0, 0.5 or 1; empty for on-policy algorithms."""


class Verdict(str):
    """A cell that decides a claim, shown with the symbol and the colour of its kind."""

    kind: str
    """`holds`, `does not hold`, `undecided`, or `not judged` with its reason after a colon."""

    def __new__(cls, kind: str, text: str = "") -> Verdict:
        """Return the cell, whose text is its kind if there is no more to say."""
        cell = super().__new__(cls, text or kind)
        cell.kind = kind
        return cell


Cells = tuple[str | int | float | None, ...]


class Table(NamedTuple):
    """A table: one row of cells for each entry of `tags`."""

    name: str
    """Of its CSV file, and of its place in the page."""
    title: str
    note: str
    """The definitions that a reader needs beside it."""
    columns: tuple[str, ...]
    rows: tuple[Cells, ...]
    """A float is shown with as many digits as `digits` says, None and NaN as a dash."""
    tags: tuple[Tags, ...] = ()
    digits: int = 1


class Line(NamedTuple):
    """One line, bar series or set of points of a chart."""

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    """The ends of an interval at each point."""
    high: np.ndarray | None = None
    seeds: np.ndarray | None = None
    """`[seeds, points]`: every seed, drawn faintly."""
    tags: Tags = Tags()
    generalized: bool | None = None
    """Which side of figures 2 to 4 it is, if it is one."""


class Chart(NamedTuple):
    """A chart of lines over numbers, or of bars over names."""

    name: str
    title: str
    note: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    names: tuple[str, ...] = ()
    """What stands beside the bars, such as tasks; a chart without names has lines over numbers."""
    tags: Tags = Tags()
    y_range: tuple[float, float] | None = None


class Section(NamedTuple):
    """A part of the report, with a heading."""

    name: str
    title: str
    text: tuple[str, ...]
    """Paragraphs, plain text."""
    blocks: tuple[Table | Chart, ...]


class Report(NamedTuple):
    """A whole report."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]
    commands: tuple[str, ...]
    """To repeat everything."""
    versions: dict[str, str]
