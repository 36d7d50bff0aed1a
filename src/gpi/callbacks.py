"""Callbacks: functions that see a `Report` after every iteration, and end the run early by returning True."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpi import files
from gpi.errors import DiskError, EnvironmentFault, UsageError
from gpi.evaluation import Evaluation
from gpi.training.progress import Report

Callback = Callable[[Report], bool | None]

__all__ = ["Callback", "Evaluate", "PrintEvery", "Report", "StopAt", "TensorBoard"]


class StopAt:
    """Ends the run once every seed's recent training return has reached `episode_return`."""

    def __init__(self, episode_return: float):
        """The return to reach, as mean of each seed's last ten episodes."""
        self.episode_return = episode_return

    def __call__(self, report: Report) -> bool:
        """Whether all have reached it; a seed without a finished episode has not."""
        return bool((report.returns >= self.episode_return).all())


class PrintEvery:
    """Prints a line every so many iterations."""

    def __init__(self, iterations: int = 10, show: Callable[[str], Any] = print):
        """`show` takes the line, also where the run is quiet."""
        self.iterations, self.show = iterations, show

    def __call__(self, report: Report) -> None:
        """Print, when it is time."""
        if report.iteration % self.iterations == 0:
            returns = ", ".join(f"{seed}: {x:.1f}" for seed, x in zip(report.seeds, report.returns, strict=True))
            self.show(f"{report.steps:,} steps, return by seed {returns}")


class Evaluate:
    """Evaluates the current policies every so many iterations, and writes `evaluations.csv` in the run directory."""

    def __init__(self, every: int = 50, episodes: int = 10, stop_at: float = np.inf):
        """Every `every` iterations, `episodes` per seed; ends the run when all seeds' means reach `stop_at`."""
        self.every, self.episodes, self.stop_at = every, episodes, stop_at
        self.results: list[tuple[int, Evaluation]] = []

    def __call__(self, report: Report) -> bool:
        """Evaluate, when it is time."""
        if report.iteration % self.every:
            return False
        try:
            result = report.evaluate(self.episodes)
            self.results.append((report.steps, result))
            self._write(report, result)
        except EnvironmentFault as error:  # training is not touched by it
            report.say(f"warning: evaluation after {report.steps:,} steps failed: {error}")
            return False
        except DiskError as error:
            report.say(f"warning: {error}")
        return all(mean >= self.stop_at for mean in result.means.values())

    def _write(self, report: Report, result: Evaluation) -> None:
        """Add to the table; what a run that was killed wrote of later iterations is written again."""
        path = report.directory / "evaluations.csv"
        rows = path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []
        lines = ["seed,iteration,steps,return,low,high,episodes"]
        lines += [row for row in rows if int(row.split(",")[1]) < report.iteration]
        for seed, steps in zip(report.seeds, report.seed_steps, strict=True):
            low, high = result.interval(seed)
            numbers = f"{result.means[seed]:.9g},{low:.9g},{high:.9g}"
            lines.append(f"{seed},{report.iteration},{steps},{numbers},{self.episodes}")
        files.write(path, ("\n".join(lines) + "\n").encode())


class TensorBoard:
    """Writes every metric of every seed as TensorBoard events, into `tb/` of the run directory."""

    def __init__(self) -> None:
        """The files begin with the first report."""
        self.writers: dict[int, Any] = {}
        require_tensorboard()

    def __call__(self, report: Report) -> None:
        """One point per metric."""
        for p, seed in enumerate(report.seeds):
            steps = int(report.seed_steps[p])
            if seed not in self.writers:
                place = report.directory / "tb" / f"seed-{seed}"
                self.writers[seed] = require_tensorboard()(str(place), purge_step=steps)
            writer = self.writers[seed]
            for name, values in report.metrics.items():
                if np.isfinite(values[p]):
                    writer.add_scalar(name, float(values[p]), steps)
            writer.flush()

    def close(self) -> None:
        """No more events of this run."""
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()


def require_tensorboard() -> Any:
    """The writer of TensorBoard events, an optional package."""
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError as error:
        raise UsageError(
            "TensorBoard events need the package tensorboardX; run `pip install 'gpi-rl[tensorboard]'`"
        ) from error
    return SummaryWriter
