"""Progress of work that is counted, such as episodes played or frames drawn: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

SECONDS = 10.0  # between plain lines


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
        if time.monotonic() - self.last >= SECONDS:
            self.last = time.monotonic()
            print(f"{self.what}: {done:,} of {self.total:,}", file=self.stream, flush=True)
