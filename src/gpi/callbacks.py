"""Callbacks: functions that see a `Report` after every iteration, and end the run early by returning True."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpi import files
from gpi.errors import UsageError
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
        """`show` takes the line."""
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
        result = report.evaluate(self.episodes)
        self.results.append((report.steps, result))
        lines = ["seed,steps,return,low,high,episodes", *earlier(report.directory / "evaluations.csv", report.steps)]
        for seed, mean in result.means.items():
            low, high = result.interval(seed)
            lines.append(f"{seed},{report.steps},{mean:.9g},{low:.9g},{high:.9g},{self.episodes}")
        files.write(report.directory / "evaluations.csv", ("\n".join(lines) + "\n").encode())
        return all(mean >= self.stop_at for mean in result.means.values())


def earlier(path: Path, steps: int) -> list[str]:
    """The lines of an evaluation table before `steps`: what a run that was killed wrote after it is written again."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines()[1:] if int(line.split(",")[1]) < steps]


class TensorBoard:
    """Writes every metric of every seed as TensorBoard events, into `tb/` of the run directory."""

    def __init__(self) -> None:
        """The files begin with the first report."""
        self.writers: dict[int, Any] = {}
        require_tensorboard()

    def __call__(self, report: Report) -> None:
        """One point per metric."""
        for p, seed in enumerate(report.seeds):
            if seed not in self.writers:
                self.writers[seed] = require_tensorboard()(
                    str(Path(report.directory) / "tb" / f"seed-{seed}"), purge_step=report.steps
                )
            writer = self.writers[seed]
            for name, values in report.metrics.items():
                if np.isfinite(values[p]):
                    writer.add_scalar(name, float(values[p]), report.steps)
            writer.flush()

    def close(self) -> None:
        """No more events."""
        for writer in self.writers.values():
            writer.close()


def require_tensorboard() -> Any:
    """The writer of TensorBoard events, an optional package."""
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError as error:
        raise UsageError(
            "TensorBoard events need the package tensorboardX; run `pip install 'gpi-rl[tensorboard]'`"
        ) from error
    return SummaryWriter
