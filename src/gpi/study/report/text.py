"""Strings and numbers as the page and the files show them; no string reaches them but through here."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable

import numpy as np

Cell = str | int | float | None
DASH, MINUS = "–", "−"
# What no HTML or XML file may hold: control characters but tab and newline, half surrogate pairs, non-characters; and
# the marks that turn the direction of the text after them.
UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
SLUG_LIMIT = 80  # characters of a file's name
NUMERIC = (int, float, np.integer, np.floating)


def clean(text: str) -> str:
    """Return a text without the characters that a file of text must not hold."""
    return UNFIT.sub("\ufffd", text)


def escape(text: str) -> str:
    """Return a text as HTML shows it, within elements and within quoted attributes."""
    return html.escape(clean(text), quote=True)


def slug(text: str) -> str:
    """Return a text as a name of a file and of a place in the page: ASCII letters, digits, dots and dashes."""
    name = re.sub(r"\.\.+|[^a-z0-9._]+", "-", text.lower())[:SLUG_LIMIT].strip("-._")
    return name or "part"


def slugs(texts: Iterable[str]) -> list[str]:
    """Return a slug for each text, no two of them the same."""
    found: list[str] = []
    for text in texts:
        name, number = slug(text), 1
        while (one := name if number == 1 else f"{name}-{number}") in found:
            number += 1
        found.append(one)
    return found


def shown(cell: Cell, digits: int = 1) -> str:
    """Return a cell of a table as people read it: a dash where there is nothing."""
    if cell is None or isinstance(cell, str):
        return DASH if cell is None else cell
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    if isinstance(cell, int | np.integer):
        return f"{int(cell):,}".replace("-", MINUS)
    return decimal(float(cell), digits)


def decimal(value: float, digits: int) -> str:
    """Return a number with `digits` digits after the point."""
    if not math.isfinite(value):
        return DASH if math.isnan(value) else "∞" if value > 0 else MINUS + "∞"
    text = f"{value:,.{digits}f}"
    return (text.removeprefix("-") if not re.search("[1-9]", text) else text).replace("-", MINUS)


def brief(value: float) -> str:
    """Return a number with about four digits that count."""
    if not math.isfinite(value):
        return decimal(value, 0)
    size = abs(value)
    return decimal(value, 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3)


def tick(value: float) -> str:
    """Return a number as an axis shows it: 200k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}".replace("-", MINUS)
    return f"{value:g}".replace("-", MINUS)


def step_tick(value: float, largest: float) -> str:
    """Return a number as an axis that ends at `largest` shows it: 5k on one that ends at 50k."""
    return f"{value / 1e3:g}k" if 0 < value < 1e6 and largest >= 1e4 else tick(value)
