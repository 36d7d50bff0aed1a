"""Tables of the page."""

from __future__ import annotations

from typing import NamedTuple

from gpi.study.report.blocks import Table, Tags, Verdict
from gpi.study.report.page.layout import Facets
from gpi.study.report.text import NUMERIC, Cell, escape, shown

TALL = 30  # rows; longer tables scroll in a separate box
WIDE = 8  # columns; wider tables have less air
LONG = 30  # characters; longer texts are broken into lines
VERDICTS = {  # kinds of verdicts, their symbol and their colour
    "holds": ("✓", "good"),
    "does not hold": ("✗", "bad"),
    "undecided": ("≈", "open"),
    "not judged": ("○", "missing"),
}

PLURAL = {"holds": "hold", "does not hold": "do not hold"}


def verdict_of(cell: Cell) -> str | None:
    """Return the kind of a cell that is a verdict, without its reason."""
    return cell.kind.partition(":")[0] if isinstance(cell, Verdict) else None


class Column(NamedTuple):
    """What the cells of a column have in common."""

    title: str
    attributes: str
    """Of every cell: its column's title, where rows may become cards."""
    digits: int
    numeric: bool
    """Whether it holds numbers, and nothing where it has none."""


def columns_of(block: Table, cards: bool) -> list[Column]:
    """Return the columns of a table."""
    found = []
    for place, title in enumerate(block.columns):
        cells = [row[place] for row in block.rows if row[place] is not None]
        name = f' data-h="{escape(title)}"' if cards and place else ""
        numeric = bool(cells) and all(isinstance(cell, NUMERIC) for cell in cells)
        found.append(Column(title, name, block.digits, numeric))
    return found


def table(block: Table, name: str, facets: Facets) -> str:
    """Return a table in a box that scrolls sideways if it must; `name` is the place of its title.

    Where it gives verdicts, its rows become cards on a phone, as its sentences need the width.
    """
    cards = any(verdict_of(cell) for row in block.rows for cell in row)
    columns = columns_of(block, cards)
    heads = "".join(map(head, columns))
    rows = "\n".join(
        f"<tr{facets.mark(tags)}>{first(row[0], columns[0])}{''.join(map(body, row[1:], columns[1:]))}</tr>"
        for row, tags in zip(block.rows, block.tags or (Tags(),) * len(block.rows), strict=True)
    )
    empty = "" if block.rows else '<p class="empty">Nothing to show.</p>'
    ways = {"tall": len(block.rows) > TALL, "wide": len(block.columns) > WIDE, "cards": cards}
    kind = " ".join(["scroll", *(way for way, so in ways.items() if so)])
    return (
        f'<div class="{kind}" role="region" aria-labelledby="{name}" tabindex="0">\n'
        f'<table aria-labelledby="{name}"><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
        f"{empty}</div>"
    )


def head(column: Column) -> str:
    """Return the head of a column."""
    kind = ' class="number"' if column.numeric else ""
    return f'<th scope="col"{kind}{column.attributes}><span>{escape(column.title)}</span></th>'


def first(cell: Cell, column: Column) -> str:
    """Return the first cell of a row, which is its head unless it is a number."""
    if isinstance(cell, NUMERIC):
        return body(cell, column)
    text = shown(cell)
    return f'<th scope="row" class="{length(text)}"{column.attributes}>{escape(text)}</th>'


def body(cell: Cell, column: Column) -> str:
    """Return a cell; its `data-v` is the number that the column is sorted by."""
    text, rest = escape(shown(cell, column.digits)), column.attributes
    if verdict := verdict_of(cell):
        symbol, colour = VERDICTS[verdict]
        words = f'<span class="verdict {colour}"><span aria-hidden="true">{symbol}</span> {text}</span>'
        return f"<td{rest}>{words}</td>"
    if isinstance(cell, NUMERIC):
        return f'<td class="number" data-v="{float(cell):.9g}"{rest}>{text}</td>'
    kind = length(cell) if isinstance(cell, str) else "number" if column.numeric else "short"
    return f'<td class="{kind}"{rest}>{text}</td>'


def length(text: str) -> str:
    """Return the class of a text: the short ones stay in one line."""
    return "long" if len(text) > LONG else "short"


def tally(block: Table) -> str:
    """Return how often each verdict was given, or nothing if the table gives none."""
    found = [verdict for row in block.rows for cell in row if (verdict := verdict_of(cell))]
    if not found:
        return ""
    parts = "".join(
        f'<span class="verdict {colour}"><span aria-hidden="true">{symbol}</span> {found.count(word)} '
        f"{word if found.count(word) == 1 else PLURAL.get(word, word)}</span> "
        for word, (symbol, colour) in VERDICTS.items()
        if word in found
    )
    return f'<p class="tally">{parts}</p>'
