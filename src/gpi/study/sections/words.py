"""What the sections of a report share: the results they are made from, definitions, and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpi import analysis
from gpi.envs import dmc
from gpi.study.definition import Job
from gpi.study.frame import Results, kappa_of
from gpi.study.intervals import WHOLE
from gpi.study.report.blocks import Tags
from gpi.study.statistics import SCALE

FINAL = (
    "Final performance is a seed's mean training return over the last 204,800 steps of its run (the last fifth, if it "
    "has fewer than 409,600); only seeds that have taken all steps of their run count."
)
NO_LEARNING = (
    "No learning: the best arm's mean final performance is not above the random policy's mean return by more than 10, "
    "or by more than three standard errors of the difference that random episodes alone would show, if that is more."
)
INTERVALS = "Intervals are of 95 %, over seeds within tasks, corrected for few seeds (see coverage)."
STUDENT = (
    "Intervals of one arm on one task are Student's, of a difference Welch's, of 95 %; on the suite they end where "
    "returns do, at 0 and 1,000."
)
BEST_OF = (
    "The best arm of each side is chosen by its outcome: with equal arms and five seeds the best of three lies 0.38, "
    "the best of nine 0.66 standard deviations of a seed above the truth. With one kappa both sides choose among "
    "three: that flatters the side whose seeds differ more."
)


class Material(NamedTuple):
    """What a report is made from."""

    results: Results
    random: Mapping[str, analysis.RandomPolicy]
    """What a random policy meets on each task, where that is known."""
    jobs: Sequence[Job] = ()
    """The jobs of the study, if there is one."""

    @property
    def finals(self) -> dict[str, dict[str, np.ndarray]]:
        """Final performance by arm and task."""
        return self.results.finals

    @property
    def shares(self) -> dict[str, float]:
        """The part of 204,800 steps that final performance is over, by task: less than 1 of short runs."""
        runs = self.results.runs
        steps = {
            task: [run.final_steps for run in runs if run.config.short_task == task] for task in self.results.tasks
        }
        return {task: min(several) / analysis.FINAL_STEPS for task, several in steps.items()}

    def judged(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """Return the tasks whose random policy is known well enough to tell learning from none."""
        known = self.random
        return tuple(task for task in tasks if task in known and np.isfinite(known[task].deviation))

    def tags(self, arm: str = "", task: str = "") -> Tags:
        """Return the tags of a part about an arm, a task, or both."""
        config = self.results.arms.get(arm)
        return Tags(task, config.algorithm, kappa_of(config)) if config else Tags(task)


def bounds_of(tasks: Iterable[str]) -> tuple[float, float]:
    """Return the least and the largest return that tasks can have: 0 and 1,000 in the suite, else infinite."""
    return (0.0, SCALE) if all(task in dmc.TASKS for task in tasks) else WHOLE


def mean_of(task: str, finals: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of a task's seeds and Student's interval, as far as returns of the task can reach."""
    middle, low, high = analysis.student(finals)
    least, largest = bounds_of([task])
    return middle, float(np.maximum(low, least)), float(np.minimum(high, largest))


def slug(text: str) -> str:
    """Return a text as a name that a file can have."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:80] or "unnamed"


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
