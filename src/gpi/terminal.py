"""What people read on a terminal: progress of work that is counted, and numbers in words."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

PLAIN_SECONDS = 10.0  # between plain lines
WIDTH = 79  # columns of a terminal, less one


@contextmanager
def counted(
    what: str, total: int, *, quiet: bool = False, stream: TextIO | None = None
) -> Iterator[Callable[[int], None]]:
    """Show how much of `total` is done, on standard error; yield the function to call with the number done so far."""
    where: TextIO = sys.stderr if stream is None else stream
    if quiet:
        yield lambda done: None
    elif where.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(file=where), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)
    else:
        yield Lines(what, total, where)


class Lines:
    """Prints a line every ten seconds, so that work that ends sooner prints none."""

    def __init__(self, what: str, total: int, stream: TextIO):
        """Count from now."""
        self.what, self.total, self.stream = what, total, stream
        self.last = time.monotonic()

    def __call__(self, done: int) -> None:
        """Print, if it is time."""
        if time.monotonic() - self.last >= PLAIN_SECONDS:
            self.last = time.monotonic()
            print(f"{self.what}: {done:,} of {self.total:,}", file=self.stream, flush=True)


def clock(seconds: float) -> str:
    """Return seconds as 1:02:03."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def plural(number: int, word: str) -> str:
    """Return a number of things."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def thousands(x: float) -> str:
    """Return a number in about four digits, such as 2,048 and 204.8k."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if x >= unit:
            scale = max(unit, 1e6) if name != "k" else 1e3
            return f"{x / scale:.4g}{name}"
    return f"{x:,.0f}"


def filled(text: str) -> str:
    """Return a text in lines that fit a terminal; paths and equations stay whole."""
    whole = text.replace("eq (", "eq\0(")
    lines = textwrap.fill(whole, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return lines.replace("\0", " ")
