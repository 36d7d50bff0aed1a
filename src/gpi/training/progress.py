"""Live progress: one line that fits a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import numpy as np

from gpi.callbacks import Report
from gpi.envs.pool import Notes
from gpi.terminal import PLAIN_SECONDS, clock, thousands

if TYPE_CHECKING:  # only a terminal needs it
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live

    from gpi.training.job import Job

BAR, WIDE = 16, 120  # columns of the bar, and of the narrowest terminal that has one
SLACK = 4  # columns to spare before the line takes a longer form again


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


def sentence(report: Report, rate: float, agents: int) -> str:
    """Return the numbers of a report in one line."""
    return lines(report, rate, agents, 0.0)[1]


def lines(report: Report, rate: float, agents: int, elapsed: float) -> list[str]:
    """Return the numbers of a report in a line of every length, the longest first.

    Steps are those of one seed, the rate is that of all; the last iteration may go beyond the steps asked for.
    """
    goal = max(report.of, report.steps)
    left = f"{clock((goal - report.steps) * agents / rate) if rate > 0.0 else '?'} left"
    seeds = "per seed", "all seeds"
    taken = f"{report.steps:,}/{goal:,} steps"
    brief = f"{thousands(report.steps)}/{thousands(goal)} steps"
    speed = f"{thousands(rate)} steps/s"
    if agents == 1:
        seeds = "", ""
    returns, tv = return_of(report, 1), f"TV {report.tv:.3f}/{report.tv_bound:.3f}"
    full = [f"{taken} {seeds[0]}", returns, tv, f"{speed} {seeds[1]}", left]
    slash = "/seed" if agents > 1 else ""
    tight = [f"{brief}{slash}", return_of(report, 0), tv, left]
    forms = [
        [*full, f"{clock(elapsed)} elapsed"],
        full,
        [f"{brief} {seeds[0]}", *full[1:]],
        [*tight[:3], f"{thousands(rate)}/s {seeds[1]}", left],
        tight,
        [tight[0], tight[1], left],
        [tight[0], left],
    ]
    return [" | ".join(piece.strip() for piece in form) for form in forms]


def return_of(report: Report, digits: int) -> str:
    """Return the mean of the seeds' recent returns and their range in words."""
    seen = report.returns[~np.isnan(report.returns)]
    if not len(seen):
        return "return none yet"
    mean, low, high = (f"{x:.{1 if abs(x) < 100 else digits}f}" for x in (seen.mean(), seen.min(), seen.max()))
    return f"return {mean} [{low}, {high}]" if len(report.returns) > 1 else f"return {mean}"


class Collecting:
    """The way to the first update, of a pool that counts its steps: two thirds of it may be warm-up."""

    def __init__(self, warm_up: int, whole: int, agents: int, taken: Callable[[], int]):
        """Each agent takes `whole` steps until the first update, of which `warm_up` count for nothing else."""
        self.warm_up, self.whole, self.agents, self.taken = warm_up, whole, agents, taken
        self.before, self.began = taken(), time.perf_counter()

    def text(self) -> str:
        """Return how far it is, how fast, and how long it will take; a pool inside a program counts nothing."""
        taken, elapsed = self.taken() - self.before, time.perf_counter() - self.began
        what = "warming up" if taken < self.warm_up else "collecting"
        if taken == 0:
            return f"{what}, {clock(elapsed)} elapsed"
        rate, seeds = taken / elapsed, (" per seed", " all seeds") if self.agents > 1 else ("", "")
        left = clock(max(self.whole - taken, 0) / rate)
        return (
            f"{what} | {taken:,}/{self.whole:,} steps{seeds[0]} | {thousands(rate * self.agents)} steps/s{seeds[1]} | "
            f"first update in {left}"
        )


class LiveLine:
    """The line that a terminal shows: the longest form that fits, behind a bar where there is room for one.

    A shorter form stays until a longer one fits with room to spare, so that the line does not jump between two.
    """

    def __init__(self, agents: int):
        """Begin with compiling, which takes an unknown time."""
        self.agents, self.began = agents, time.perf_counter()
        self.report: Report | None = None
        self.collecting: Collecting | None = None
        self.rate, self.width, self.form = 0.0, 0, 0

    def show(self, report: Report, rate: float) -> None:
        """Keep the latest report."""
        self.report, self.rate = report, rate

    def text(self, width: int) -> str:
        """Return the line for a terminal of this width, without the bar."""
        if width != self.width:
            self.width, self.form = width, 0
        elapsed = time.perf_counter() - self.began
        if self.report is None and self.collecting is not None:
            return self.collecting.text()[:width]
        if self.report is None:
            return f"compiling, {clock(elapsed)} elapsed"
        forms = lines(self.report, self.rate, self.agents, elapsed)
        room = width - BAR - 1 if width >= WIDE else width
        longest, calm = (
            next((i for i, form in enumerate(forms) if len(form) <= columns), len(forms) - 1)
            for columns in (room, room - SLACK)
        )
        self.form = longest if longest > self.form else min(self.form, calm)
        return forms[self.form][:room]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draw the line, with a bar of constant width in a wide terminal."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        text = Text(self.text(options.max_width), no_wrap=True, overflow="crop")
        if options.max_width < WIDE:
            yield text
            return
        done, goal = (self.report.steps, max(self.report.of, self.report.steps)) if self.report else (0, None)
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(ProgressBar(total=goal, completed=done, width=BAR, pulse=goal is None), text)
        yield row


class Progress:
    """Shows reports as they come; on a terminal as one live line."""

    def __init__(self, agents: int, stream: TextIO | None = None, *, quiet: bool = False):
        """Show on `stream`, standard output by default; nothing at all if `quiet`."""
        self.stream, self.quiet = stream or sys.stdout, quiet
        self.agents, self.rate = agents, Rate(agents)
        self.last_line = -np.inf
        self.line = LiveLine(agents)
        self.live: Live | None = None
        self.noted: set[str] = set()
        self.updated = threading.Event()  # nothing is silent until then

    def compiling(self) -> None:
        """Show, on a terminal, that training is being compiled; the live line begins here."""
        if self.stream.isatty() and not self.quiet:
            from rich.console import Console
            from rich.live import Live

            self.line = LiveLine(self.agents)
            self.live = Live(self.line, console=Console(file=self.stream), refresh_per_second=10)
            with suppress(OSError):
                self.live.start(refresh=True)

    def collecting(self, job: Job, pool: object, warm_up: int) -> None:
        """Show how far the first update is; on a terminal in the live line, elsewhere every few seconds."""
        each, whole = job.config.num_envs, warm_up + job.plan.steps
        self.line.collecting = Collecting(warm_up, whole, self.agents, lambda: each * getattr(pool, "steps", 0))
        if self.live is None and not self.quiet:
            threading.Thread(target=self._tell, args=(self.line.collecting,), daemon=True).start()

    def _tell(self, collecting: Collecting) -> None:
        while not self.updated.wait(0.9 * PLAIN_SECONDS):
            self.say(collecting.text())

    def say(self, line: str) -> None:
        """Show a line of text, above the bar where there is one; training continues where it cannot be shown."""
        if self.quiet:
            return
        with suppress(OSError):  # the pipe is closed, the terminal gone, the disk of the log full
            if self.live is not None:
                self.live.console.print(line, markup=False, highlight=False)
            else:
                print(line, file=self.stream, flush=True)

    def note(self, notes: Notes) -> None:
        """Show the notes on environments whose kind is new."""
        for kind, line in notes.items():
            if kind not in self.noted:
                self.noted.add(kind)
                self.say(f"note: {line}")

    def begin(self, steps: int = 0) -> None:
        """Start the clock of the first iteration, when each agent has taken `steps`."""
        self.rate = Rate(self.agents, steps)

    def show(self, report: Report, notes: Notes | None = None) -> None:
        """Show the latest report, and new notes on the environments."""
        self.note(notes or {})
        self.updated.set()
        rate = self.rate.mark(report.steps)
        if self.live is not None:
            self.line.show(report, rate)
        elif time.perf_counter() - self.last_line >= PLAIN_SECONDS or report.steps >= report.of:
            self.last_line = time.perf_counter()
            self.say(sentence(report, rate, self.agents))

    def __enter__(self) -> Progress:
        """Show until the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal with the last report, and without a line that never had one."""
        self.updated.set()
        if self.live is not None:
            self.live.transient = self.line.report is None
            with suppress(OSError):
                self.live.stop()
