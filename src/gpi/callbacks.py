"""Callbacks: functions that are called with a `Report` after every iteration; returning True ends the run early.

A callback that has a method `close` is closed when the run ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from gpi.config import checked_type, require_positive
from gpi.errors import DiskError, EnvironmentFault, FileError, UsageError
from gpi.files import shown
from gpi.rundir.evaluations import Row, best_file, best_mean, read_evaluations, row_of, write_evaluations

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

    from gpi.evaluation import Evaluation
    from gpi.standalone import Policy

__all__ = ["Callback", "Evaluate", "PrintEvery", "Report", "StopAt", "TensorBoard"]


@dataclass(frozen=True)
class Report:
    """The state of a run after an iteration, as progress shows it and callbacks receive it."""

    directory: Path
    iteration: int
    seeds: tuple[int, ...]
    steps: int
    """Environment steps of the slowest seed that can still learn: the run ends when they reach `of`."""
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
    """Plays the given number of episodes with each current policy."""
    save: Callable[[int, Path, dict[str, str]], None]
    """Writes the current policy of a seed as a file that `gpi.load` reads, with further facts about it."""
    say: Callable[[str], None]
    """Shows a line, above the bar where there is one."""

    @property
    def tv(self) -> float:
        """One-step TV, mean over seeds."""
        return mean_of(self.metrics["tv_abs"])

    @property
    def tv_bound(self) -> float:
        """Bound of the one-step TV, eps_gpi/2."""
        return 0.5 * mean_of(self.metrics["eps_gpi"])


def mean_of(x: np.ndarray) -> float:
    """Return the mean of the values that are not NaN."""
    seen = x[~np.isnan(x)]
    return float(seen.mean()) if len(seen) else float("nan")


Callback = Callable[[Report], bool | None]


@runtime_checkable
class Closable(Protocol):
    """Something that must be closed after use."""

    def close(self) -> None:
        """Release its resources."""
        ...


def close_all(callbacks: Iterable[Callback]) -> None:
    """Close the callbacks that can be closed; if one fails to close, the others are closed all the same."""
    with ExitStack() as stack:
        for callback in callbacks:
            if isinstance(callback, Closable):
                stack.callback(callback.close)


class StopAt:
    """Ends the run once every seed's recent training return has reached `episode_return`."""

    def __init__(self, episode_return: float):
        """`episode_return` is compared with the mean of each seed's last ten episodes."""
        self.episode_return = checked_type("episode_return", episode_return, float)

    def __call__(self, report: Report) -> bool:
        """Return whether all seeds have reached it; a seed without a finished episode has not."""
        return bool((report.returns >= self.episode_return).all())


class PrintEvery:
    """Prints a line every few iterations."""

    def __init__(self, iterations: int = 10, show: Callable[[str], object] = print):
        """Print every `iterations` iterations; `show` is called with the line, even if the run is quiet."""
        require_positive(iterations=iterations)
        if not callable(show):
            raise UsageError(f"show = {shown(show)} must be a function that takes a line; leave it out for print")
        self.iterations, self.show = iterations, show

    def __call__(self, report: Report) -> None:
        """Print, if it is time."""
        if report.iteration % self.iterations == 0:
            returns = ", ".join(f"{seed}: {x:.1f}" for seed, x in zip(report.seeds, report.returns, strict=True))
            with suppress(BrokenPipeError):  # the reader has left: no reason to end the run
                self.show(f"{report.steps:,} steps, return by seed {returns}")


class Evaluate:
    """Evaluates the current policies every few iterations; `gpi train --eval-every` does it by this.

    It writes `evaluations.csv` in the run directory, and keeps each seed's best policy so far, `best-0.safetensors`.
    The episodes are neither those of training nor those that `gpi.evaluate` plays.
    """

    def __init__(self, every: int = 50, episodes: int = 10, stop_at: float = np.inf):
        """Play `episodes` per seed every `every` iterations; end the run when all seeds' means reach `stop_at`."""
        require_positive(every=every, episodes=episodes)
        self.every, self.episodes = every, episodes
        self.stop_at = checked_type("stop_at", stop_at, float)
        self.results: list[tuple[int, Evaluation]] = []

    def __call__(self, report: Report) -> bool:
        """Evaluate, if it is time."""
        if report.iteration % self.every:
            return False
        try:
            result = report.evaluate(self.episodes)
            self.results.append((report.steps, result))
            self._write(report, self._rows(report, result))
        except EnvironmentFault as error:  # training is not affected
            report.say(f"warning: evaluation after {report.steps:,} steps failed: {error}")
            return False
        except (DiskError, FileError) as error:
            report.say(f"warning: {error}")
        return all(mean >= self.stop_at for mean in result.means.values())

    def _rows(self, report: Report, result: Evaluation) -> list[Row]:
        """Return one row of the table for each seed; one episode has no interval."""
        rows = []
        for seed, steps in zip(report.seeds, report.seed_steps, strict=True):
            low, high = result.interval(seed)
            interval = f"{low:.9g},{high:.9g}" if self.episodes > 1 else ","
            mean = f"{result.means[seed]:.9g}"
            rows.append(row_of(f"{seed},{report.iteration},{steps},{mean},{interval},{self.episodes}"))
        return rows

    def _write(self, report: Report, rows: list[Row]) -> None:
        """Append rows, replacing any of this or a later iteration, and save the policies that are the best so far."""
        run = report.directory
        write_evaluations(run, [row for row in read_evaluations(run) if row.iteration < report.iteration] + rows)
        for row in rows:
            if row.mean > best_mean(run, row.seed):
                mean = f"{row.mean:.9g}"
                facts = {"iteration": str(row.iteration), "evaluation": mean, "episodes": str(self.episodes)}
                report.save(row.seed, best_file(run, row.seed), facts)


class TensorBoard:
    """Writes every metric of every seed as TensorBoard events, into `tb/` of the run directory."""

    def __init__(self) -> None:
        """Open no file yet: that happens at the first report."""
        self.writers: dict[int, SummaryWriter] = {}
        require_tensorboard()

    def __call__(self, report: Report) -> None:
        """Write one point per metric."""
        for p, seed in enumerate(report.seeds):
            steps = int(report.seed_steps[p])
            if seed not in self.writers:
                path = report.directory / "tb" / f"seed-{seed}"
                self.writers[seed] = require_tensorboard()(str(path), purge_step=steps)
            writer = self.writers[seed]
            for name, values in report.metrics.items():
                if np.isfinite(values[p]):
                    writer.add_scalar(name, float(values[p]), steps)
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()


def require_tensorboard() -> type[SummaryWriter]:
    """Return the class that writes TensorBoard events; raise UsageError if its optional package is missing."""
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError as error:
        raise UsageError(
            "TensorBoard events need the package tensorboardX; run `pip install 'gpi-rl[tensorboard]'`"
        ) from error
    return SummaryWriter
