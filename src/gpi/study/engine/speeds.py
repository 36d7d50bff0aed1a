"""How long jobs take: the estimate before a study runs, corrected by what its own runs have measured."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpi.study.definition import Job
from gpi.study.estimate import START, core_seconds


class Speeds:
    """Seconds that jobs take on this machine, as far as runs of the study have shown."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self.ratios: dict[str, dict[str, float]] = {}
        """Measured over estimated seconds, by task and by name of the job."""

    def note(self, job: Job, steps: int, seconds: float) -> None:
        """Learn from a run that took `seconds` for `steps` steps of each seed."""
        if steps > 0 and seconds > 0.0:
            self.ratios.setdefault(job.task, {})[job.name] = seconds / (steps * per_step(job))

    def ratio(self, job: Job) -> float | None:
        """Return measured over estimated seconds: of the job itself, else of its task, else of all; None if unknown."""
        own = self.ratios.get(job.task, {})
        if job.name in own:
            return own[job.name]
        known = own.values() or [ratio for task in self.ratios.values() for ratio in task.values()]
        return mean(known) if known else None

    def remaining(self, job: Job, taken: int, *, begun: bool = False) -> float:
        """Return about how many seconds a job still takes, given the steps that each of its seeds has taken.

        One that has `begun` has started its program already.
        """
        left = max(0, job.config.steps - taken)
        return (0.0 if begun else START / 2) + left * per_step(job) * (self.ratio(job) or 1.0)


def per_step(job: Job) -> float:
    """Return the estimated seconds of one core for a step of every seed of a job."""
    return (core_seconds(job) - START) / job.config.steps


def mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean: of ratios, half is as far from 1 as double."""
    return float(np.exp(np.mean(np.log(list(ratios)))))
