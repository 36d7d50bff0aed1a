"""Tables of a report as CSV (RFC 4180 with line feeds): full precision, no cell that a spreadsheet would run."""

from __future__ import annotations

import csv
import io

import numpy as np

from gpi.report.blocks import Table
from gpi.report.page.text import Cell, clean

RUNS = ("=", "+", "-", "@", "\t", "\r")  # a text that begins so is a formula to a spreadsheet


def csv_of(table: Table) -> str:
    """Return a table as CSV: a row of heads, then the rows; nothing where there is nothing, NaN as nan."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([text_of(column) for column in table.columns])
    writer.writerows([text_of(cell) for cell in row] for row in table.rows)
    return buffer.getvalue()


def text_of(cell: Cell) -> str:
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
