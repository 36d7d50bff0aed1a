"""Live progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

if TYPE_CHECKING:
    from gpi.evaluation import Evaluation
    from gpi.standalone import Policy

PLAIN_SECONDS = 10.0  # between plain lines
RECENT_EPISODES = 10  # that the shown return averages, per seed


@dataclass(frozen=True)
class Report:
    """A run after an iteration: what progress shows, and callbacks see."""

    directory: Path
    iteration: int
    seeds: tuple[int, ...]
    steps: int
    """Environment steps of the slowest seed that can still learn: the run ends when these are `of`."""
    of: int
    seed_steps: np.ndarray
    """[seeds], environment steps of each."""
    returns: np.ndarray
    """[seeds], mean of each seed's last ten episodes; NaN before the first."""
    metrics: dict[str, np.ndarray]
    """The columns of metrics.csv, `[seeds]` each; NaN for a seed that is frozen."""
    policy: Callable[[int], Policy]
    """The current policy of a seed."""
    evaluate: Callable[[int], Evaluation]
    """Plays so many episodes with each current policy."""
    say: Callable[[str], None]
    """Shows a line, above the bar where there is one."""

    @property
    def tv(self) -> float:
        """One-step TV, mean over seeds."""
        return mean_of(self.metrics["tv"])

    @property
    def tv_bound(self) -> float:
        """Its bound, eps_gpi/2."""
        return 0.5 * mean_of(self.metrics["eps_gpi"])


def mean_of(x: np.ndarray) -> float:
    """The mean of those that exist."""
    seen = x[~np.isnan(x)]
    return float(seen.mean()) if len(seen) else float("nan")


class Rate:
    """Environment steps per second, over the last few iterations."""

    def __init__(self, agents: int, steps: int = 0):
        """Count from now, when each agent has taken `steps`."""
        self.agents = agents
        self.marks = deque([(time.perf_counter(), steps)], maxlen=20)

    def mark(self, steps: int) -> float:
        """Steps per second of the whole population."""
        self.marks.append((time.perf_counter(), steps))
        (t0, s0), (t1, s1) = self.marks[0], self.marks[-1]
        return self.agents * (s1 - s0) / max(t1 - t0, 1e-9)


def clock(seconds: float) -> str:
    """Seconds as 1:02:03."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def sentence(report: Report, rate: float, agents: int) -> str:
    """The numbers of a report in one line."""
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

    def __init__(self, agents: int, stream: TextIO | None = None):
        """Show on `stream`, standard output by default."""
        self.stream = stream or sys.stdout
        self.agents, self.rate = agents, Rate(agents)
        self.last_line = -np.inf
        self.live = None
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Live

            columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
            self.live = Live(*columns, console=Console(file=self.stream))
            self.live.start()
            self.bar = self.live.add_task("compiling", total=None)

    def say(self, line: str) -> None:
        """A line of text above the bar."""
        if self.live is not None:
            self.live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self.stream, flush=True)

    def begin(self, steps: int = 0) -> None:
        """The first iteration starts now, when each agent has taken `steps`."""
        self.rate = Rate(self.agents, steps)

    def show(self, report: Report) -> None:
        """The latest report."""
        rate = self.rate.mark(report.steps)
        line = sentence(report, rate, self.agents)
        if self.live is not None:
            self.live.update(self.bar, total=report.of, completed=report.steps, description=line)
        elif time.perf_counter() - self.last_line >= PLAIN_SECONDS or report.steps >= report.of:
            self.last_line = time.perf_counter()
            self.say(line)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.live is not None:
            self.live.stop()
