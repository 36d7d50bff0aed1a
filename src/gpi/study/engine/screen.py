"""What a runner shows: on a terminal a few lines that stay up to date, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TextIO

from gpi.terminal import clock, thousands

if TYPE_CHECKING:  # only a terminal needs it
    from rich.console import RenderableType
    from rich.live import Live

PLAIN_SECONDS = 30.0  # between plain lines
JOBS_SHOWN = 16


class Standing(NamedTuple):
    """Where a runner stands."""

    done: int
    running: Sequence[tuple[str, float]]
    """Jobs, and the share of their steps that they have taken."""
    waiting: int
    aside: int
    elsewhere: int
    rate: float
    """Steps per second of all seeds of all jobs; NaN before there are two measurements."""
    left: float
    """Seconds until all jobs are done, about; NaN if unknown."""

    def sentence(self) -> str:
        """Return it in one line."""
        parts = [f"{self.done} done", f"{len(self.running)} running", f"{self.waiting} waiting"]
        parts += [f"{self.aside} set aside"] * bool(self.aside) + [f"{self.elsewhere} elsewhere"] * bool(self.elsewhere)
        rate = f"{thousands(self.rate)} steps/s" if self.rate > 0.0 else "steps/s not known yet"
        left = f"about {clock(self.left)} left" if self.left == self.left else "time left not known yet"
        return " | ".join([", ".join(parts), rate, left])


class Screen:
    """Shows a standing, and lines above it."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False):
        """Show on `stream`, standard output by default; nothing at all if `quiet`."""
        self.stream, self.quiet = stream or sys.stdout, quiet
        self.last = time.monotonic()
        self.live: Live | None = None

    def __enter__(self) -> Screen:
        """Show until the end of the block."""
        if self.stream.isatty() and not self.quiet:
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(file=self.stream), refresh_per_second=4, transient=True)
            with suppress(OSError):
                self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal without the lines that change."""
        if self.live is not None:
            with suppress(OSError):
                self.live.stop()
            self.live = None

    def say(self, line: str) -> None:
        """Show a line of text; jobs continue even if it cannot be written."""
        if self.quiet:
            return
        with suppress(OSError):
            if self.live is not None:
                self.live.console.print(line, markup=False, highlight=False)
            else:
                print(line, file=self.stream, flush=True)

    def show(self, standing: Standing) -> None:
        """Show where the runner stands, if it is time to."""
        if self.live is not None:
            with suppress(OSError):
                self.live.update(block(standing))
        elif time.monotonic() - self.last >= PLAIN_SECONDS:
            self.last = time.monotonic()
            self.say(standing.sentence())


def block(standing: Standing) -> RenderableType:
    """Return a standing as lines that fit a terminal: the sum, then the jobs that run."""
    from rich.text import Text

    lines = [standing.sentence()]
    lines += [f"  {100 * share:3.0f} %  {name}" for name, share in standing.running[:JOBS_SHOWN]]
    if len(standing.running) > JOBS_SHOWN:
        lines.append(f"  and {len(standing.running) - JOBS_SHOWN} more")
    return Text("\n".join(lines), no_wrap=True, overflow="crop")
