"""A report as a directory: report.html, figures/NAME.png and .svg, tables/NAME.csv.

Tables are RFC 4180 with line feeds, in full precision; no cell is one that a spreadsheet would run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gpi import files
from gpi.errors import disk_error
from gpi.study.report.blocks import Chart, Report, Table
from gpi.study.report.figures import encoded, figure_of, sheet_of
from gpi.study.report.looks import looks_of
from gpi.study.report.page import page
from gpi.study.report.page.layout import arranged, charts_in, sheets
from gpi.study.report.text import Cell, clean
from gpi.terminal import counted

RUNS = ("=", "+", "-", "@", "\t", "\r")  # a text that begins so is a formula to a spreadsheet
Making = Callable[[], dict[str, bytes]]
"""Makes the files of one part, by suffix."""


def write_report(report: Report, directory: Path, quiet: bool = False) -> list[Path]:
    """Write a report into a directory, which is made if it is missing, and return the paths of its files.

    Every file appears when it is complete, and the page, which names the others, last.
    """
    made = []
    parts = list(parts_of(report))
    for folder in (directory, directory / "tables", directory / "figures"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(folder, error) from error
    with counted("figures and tables", len(parts), quiet=quiet) as progress:
        for number, (name, make) in enumerate(parts, 1):
            for suffix, data in make().items():
                made.append(directory / f"{name}.{suffix}")
                files.write(made[-1], data)
            progress(number)
    path = directory / "report.html"
    files.write(path, page(report, beside=True).encode())
    return [path, *made]


def parts_of(report: Report) -> Iterator[tuple[str, Making]]:
    """Yield the path, without its suffix, and the maker of each part of a report that becomes separate files."""
    looks = looks_of(report)
    for placed in arranged(report):
        for part in (part for group in placed.groups for part in group):
            if isinstance(part.block, Chart):
                yield f"figures/{part.file}", lambda chart=part.block: encoded(figure_of(chart, looks))
            else:
                yield f"tables/{part.file}", lambda table=part.block: {"csv": csv_of(table).encode()}
    for name, section, group in sheets(report):
        charts, title = charts_in(group), section.title
        yield f"figures/{name}", lambda title=title, charts=charts: encoded(sheet_of(title, charts, looks))


def csv_of(table: Table) -> str:
    """Return a table as CSV: a row of heads, then the rows; nothing where there is nothing, NaN as nan."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([csv_cell(column) for column in table.columns])
    writer.writerows([csv_cell(cell) for cell in row] for row in table.rows)
    return buffer.getvalue()


def csv_cell(cell: Cell) -> str:
    """Return a cell that reads as the same number; a text that a spreadsheet would run gets a quote in front."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        text = clean(cell)
        return f"'{text}" if len(text) > 1 and text.startswith(RUNS) and not is_number(text) else text
    if isinstance(cell, bool | np.bool_ | int | np.integer):
        return str(cell)
    return repr(float(cell))


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
