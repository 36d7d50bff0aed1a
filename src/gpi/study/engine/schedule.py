"""What runs next and until when: how long jobs take, which share a compiled program, and when a runner is to end."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import time
from types import FrameType

import numpy as np

from gpi.config import Config, plan_of
from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.study.definition import Job
from gpi.study.estimate import START, core_seconds

SAVING = 30.0  # seconds that jobs have for their last iteration and for saving it
ENDING = 1.0  # seconds that the runner itself needs
SHAPING = [field.name for field in dataclasses.fields(Config) if field.metadata["compiled"]]
"""Settings that are compiled into a program; others are its arguments."""


class Speeds:
    """Seconds that jobs take: the estimate before a study runs, corrected by what its runs have shown."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self.ratios: dict[str, dict[str, float]] = {}
        """Measured over estimated seconds, by task and by name of the job."""

    def note(self, job: Job, steps: int, seconds: float) -> None:
        """Learn from a run that took `seconds` for `steps` steps of each seed."""
        if steps > 0 and seconds > 0.0:
            self.ratios.setdefault(job.task, {})[job.name] = seconds / (steps * per_step(job))

    def ratio(self, job: Job) -> float | None:
        """Return measured over estimated seconds: of the job itself, else of its task, else of all; None if unknown.

        The mean is geometric: of ratios, half is as far from 1 as double.
        """
        same = self.ratios.get(job.task, {})
        if job.name in same:
            return same[job.name]
        known = list(same.values()) or [ratio for task in self.ratios.values() for ratio in task.values()]
        return float(np.exp(np.mean(np.log(known)))) if known else None

    def remaining(self, job: Job, taken: int, *, begun: bool = False) -> float:
        """Return about how many seconds a job still takes, given the steps that each of its seeds has taken.

        One that has `begun` has started its program already.
        """
        left = max(0, job.config.steps - taken)
        return (0.0 if begun else START / 2) + left * per_step(job) * (self.ratio(job) or 1.0)


def per_step(job: Job) -> float:
    """Return the estimated seconds of one core for a step of every seed of a job."""
    return (core_seconds(job) - START) / job.config.steps


def program_of(job: Job) -> str:
    """Return a name that two jobs of a study have in common only if they learn with the same program.

    That depends on the algorithm's parts, on shapes (batch, slots of the buffer, networks, observations, actions) and
    on settings. The sizes of tasks outside the suite are unknown here, so each has separate programs.
    """
    config, plan = job.config, plan_of(job.config)
    algorithm, spec = ALGORITHMS[config.algorithm], dmc.TASKS.get(config.short_task)
    sizes = [spec.observation_size, spec.action_size, spec.horizon] if spec else [job.task]
    settings = [getattr(config, name) for name in SHAPING]
    return json.dumps([algorithm.rule, algorithm.critic, plan.steps, len(plan.nu), sizes, settings])


class Stop:
    """When a runner is to end before all jobs are done: by a signal, or because its time is up."""

    def __init__(self, seconds: float | None = None):
        """Count from now; without `seconds` the time is unlimited."""
        self.signals: list[int] = []
        self.patience = math.inf  # until when jobs may save after a signal
        self.end = math.inf if seconds is None else time.monotonic() + seconds
        self.saving = 0.0 if seconds is None else min(SAVING, seconds / 4)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; a user who presses Ctrl-C can press it again, other senders wait for an end."""
        self.signals.append(number)
        if number != signal.SIGINT:
            self.patience = min(self.patience, time.monotonic() + SAVING)

    def seconds_left(self) -> float:
        """Return the seconds in which jobs may work."""
        return self.end - self.saving - time.monotonic()

    @property
    def asked(self) -> bool:
        """Whether jobs shall save and end."""
        return bool(self.signals) or self.seconds_left() <= 0.0

    @property
    def now(self) -> bool:
        """Whether jobs must end without saving."""
        return len(self.signals) > 1 or time.monotonic() >= min(self.end - ENDING, self.patience)

    @property
    def why(self) -> str:
        """What makes the runner end."""
        return signal.Signals(self.signals[0]).name if self.signals else "time is up"
