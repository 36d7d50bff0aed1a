"""What a runner shows: on a terminal a few lines that stay up to date, elsewhere a line now and then; and its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from gpi.errors import GpiError
from gpi.rundir.done import read_done
from gpi.study.directory import Failure
from gpi.terminal import clock, plural, thousands

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


def final_return(run: Path) -> str:
    """Return the final return of a run that has just ended, in words."""
    with suppress(GpiError, OSError):
        done = read_done(run) or {}
        known = [x for x in done.get("returns", {}).values() if x is not None]
        if known:
            spread = f" [{min(known):.1f}, {max(known):.1f}]" if len(known) > 1 else ""
            return f"final return {sum(known) / len(known):.1f}{spread}"
    return "no episode has ended"


SOME_FAILED, TIME_UP = 8, 9  # exit codes


class Ended(NamedTuple):
    """How a runner ended."""

    path: Path
    jobs: int
    """Jobs that were this runner's to do."""
    done: int
    failed: Mapping[str, Failure]
    """Jobs that were set aside, by name."""
    elsewhere: int
    """Jobs that other runners had."""
    steps: int
    """Steps of all seeds that were taken."""
    seconds: float
    signal: int | None
    """The signal that ended it early."""
    time_up: bool = False
    killed: int = 0
    """Jobs that were killed before they had saved."""
    lost: str = ""
    """What else ended it early, and what became of its jobs."""

    @property
    def left(self) -> int:
        """Unfinished jobs that no runner has now, besides the failed ones."""
        return self.jobs - self.done - len(self.failed) - self.elsewhere

    @property
    def exit_code(self) -> int:
        """What the command line exits with."""
        if self.signal is not None and self.left:
            return 128 + self.signal
        if self.failed:
            return SOME_FAILED
        return TIME_UP if self.left else 0


def summary(ended: Ended, command: str) -> list[str]:
    """Return the last lines of a runner's output: the jobs done, the jobs left, and the next command."""
    rate = f", {thousands(ended.steps / ended.seconds)} steps/s" if ended.steps and ended.seconds > 0 else ""
    took = f"{clock(ended.seconds)}, {thousands(ended.steps)} steps{rate}"
    lines = [f"{ended.done} of {plural(ended.jobs, 'job')} done; {took}"]
    lines += [f"set aside: {name}: {failure.line}" for name, failure in ended.failed.items()]
    if ended.elsewhere:
        lines.append(f"{plural(ended.elsewhere, 'job')} left to other runners of this directory")
    if ended.left:
        why = "interrupted" if ended.signal else "time is up" if ended.time_up else "no other job would end in time"
        saved = f"{plural(ended.killed, 'job')} killed before saving" if ended.killed else "all saved"
        lines.append(f"{ended.lost or f'{why}, {saved}'}; `{command}` continues")
    elif ended.failed:
        lines.append(f"`{command}` retries the jobs set aside")
    if ended.done:
        lines.append(f"next: gpi study report {ended.path}")
    return lines
