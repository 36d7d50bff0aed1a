"""Live progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import suppress
from typing import TextIO

import numpy as np

from gpi.callbacks import Report

PLAIN_SECONDS = 10.0  # between plain lines


class Rate:
    """Environment steps per second, over the last few iterations."""

    def __init__(self, agents: int, steps: int = 0):
        """Count from now, when each agent has taken `steps`."""
        self.agents = agents
        self.marks = deque([(time.perf_counter(), steps)], maxlen=20)

    def mark(self, steps: int) -> float:
        """Return the steps per second of the whole population."""
        self.marks.append((time.perf_counter(), steps))
        (t0, s0), (t1, s1) = self.marks[0], self.marks[-1]
        return self.agents * (s1 - s0) / max(t1 - t0, 1e-9)


def clock(seconds: float) -> str:
    """Return seconds as 1:02:03."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def sentence(report: Report, rate: float, agents: int) -> str:
    """Return the numbers of a report in one line."""
    seen = report.returns[~np.isnan(report.returns)]
    shown = f"{seen.mean():.1f} [{seen.min():.1f}, {seen.max():.1f}]" if len(seen) else "none yet"
    missing = max(report.of - report.steps, 0)
    left = clock(missing * agents / rate) if rate > 0.0 else "?"
    return (
        f"{report.steps:,}/{report.of:,} steps | return {shown} | "
        f"TV {report.tv:.4f} of {report.tv_bound:.4f} | {rate:,.0f} steps/s | {left} left"
    )


class Progress:
    """Shows reports as they come; on a terminal as one live line with a bar."""

    def __init__(self, agents: int, stream: TextIO | None = None, *, quiet: bool = False):
        """Show on `stream`, standard output by default; nothing at all if `quiet`."""
        self.stream, self.quiet = stream or sys.stdout, quiet
        self.agents, self.rate = agents, Rate(agents)
        self.last_line = -np.inf
        self.live = None
        if self.stream.isatty() and not quiet:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Live

            columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
            self.live = Live(*columns, console=Console(file=self.stream))
            self.live.start()
            self.bar = self.live.add_task("compiling", total=None)

    def say(self, line: str) -> None:
        """Show a line of text, above the bar where there is one; training goes on where nobody can read it."""
        if self.quiet:
            return
        with suppress(OSError):  # the pipe is closed, the terminal gone, the disk of the log full
            if self.live is not None:
                self.live.console.print(line, markup=False, highlight=False)
            else:
                print(line, file=self.stream, flush=True)

    def begin(self, steps: int = 0) -> None:
        """Start the clock of the first iteration, when each agent has taken `steps`."""
        self.rate = Rate(self.agents, steps)

    def show(self, report: Report) -> None:
        """Show the latest report."""
        rate = self.rate.mark(report.steps)
        line = sentence(report, rate, self.agents)
        if self.live is not None:
            self.live.update(self.bar, total=report.of, completed=report.steps, description=line)
        elif time.perf_counter() - self.last_line >= PLAIN_SECONDS or report.steps >= report.of:
            self.last_line = time.perf_counter()
            self.say(line)

    def __enter__(self) -> Progress:
        """Show until the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        if self.live is not None:
            with suppress(OSError):
                self.live.stop()
