"""Figures 2 to 4 and Table I of the paper as functions of final performance, and the comparison at a fixed kappa."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpi.errors import UsageError
from gpi.study.intervals import strata_of

Finals = Mapping[str, Mapping[str, np.ndarray]]
"""Final performance `[seeds]` by arm and task."""
Learns = Callable[[str, np.ndarray], bool]
"""Whether learning occurs: from a task and the finals of the best arm's seeds (`learning.learning_occurs`)."""


LEVELS = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0)  # percent


class Best(NamedTuple):
    """The best of some arms on a task: its name, the mean of its seeds and the seeds."""

    arm: str
    mean: float
    finals: np.ndarray


class Gain(NamedTuple):
    """One task of figures 2 and 3: the best arm of each side."""

    task: str
    on_policy: Best
    generalized: Best

    @property
    def difference(self) -> float:
        """Generalized less on-policy: figure 3's bar."""
        return self.generalized.mean - self.on_policy.mean

    @property
    def percent(self) -> float:
        """The difference in percent of the on-policy mean; infinite, with its sign, where that is not above 0."""
        if self.on_policy.mean > 0.0:
            return 100.0 * self.difference / self.on_policy.mean
        return float(np.inf * np.sign(self.difference)) if self.difference else 0.0


class Classes(NamedTuple):
    """One column of Table I: the tasks of each of its three rows, in the order they were given."""

    on_policy: tuple[str, ...]
    generalized: tuple[str, ...]
    no_learning: tuple[str, ...]


class Level(NamedTuple):
    """One bar of figure 4: the tasks that are at least so sparse."""

    sparsity: float
    tasks: tuple[str, ...]
    gain: float
    """The mean difference over these tasks; NaN without any."""
    ratio: float
    """That over the mean difference over all tasks where learning occurs."""


def best_of(finals: Finals, arms: Sequence[str], task: str) -> Best:
    """Return the arm with the highest mean final performance on a task, the first of equals.

    Beware of its optimism: the maximum of k means that chance alone tells apart lies above their common truth, for k
    = 3 and five seeds by 0.38 standard deviations of a seed, for k = 9 by 0.66. So the best of three kappas has an
    advantage over one on-policy arm, and the best of nine generalized arms over the best of three. At a fixed kappa a
    single pair has none; of the best of three against the best of three, the side whose seeds differ more has some.
    """
    found = [arm for arm in arms if task in finals.get(arm, {})]
    if not found:
        raise UsageError(f"{task} has no result of {', '.join(arms) or 'any arm'}; run them, or leave the task out")
    strata = strata_of({f"{arm} on {task}": finals[arm][task] for arm in found})
    means = [float(x.mean()) for x in strata]
    place = int(np.argmax(means))
    return Best(found[place], means[place], strata[place])


def gains(finals: Finals, on_policy: Sequence[str], generalized: Sequence[str], tasks: Sequence[str]) -> list[Gain]:
    """Return the best arm of each side on each task; with one arm of a kind on each side, nothing is chosen."""
    return [Gain(task, best_of(finals, on_policy, task), best_of(finals, generalized, task)) for task in tasks]


def learned_in(gain: Gain, learns: Learns) -> bool:
    """Return whether learning occurs under the better of the two sides."""
    better = max(gain.on_policy, gain.generalized, key=lambda side: side.mean)
    return learns(gain.task, better.finals)


def figure_2(found: Sequence[Gain], learns: Learns) -> list[Gain]:
    """Return the tasks where learning occurs, from high to low on-policy performance."""
    return sorted((gain for gain in found if learned_in(gain, learns)), key=lambda gain: -gain.on_policy.mean)


def figure_3(found: Sequence[Gain], learns: Learns) -> list[Gain]:
    """Return the tasks where learning occurs, from high to low difference."""
    return sorted((gain for gain in found if learned_in(gain, learns)), key=lambda gain: -gain.difference)


def figure_4(
    found: Sequence[Gain],
    learns: Learns,
    sparsity: Mapping[str, float],
    levels: Sequence[float] = LEVELS,
) -> list[Level]:
    """Return the mean difference over the tasks where learning occurs that are at least so sparse, for each level.

    A task's sparsity is the percentage of 100,000 samples of a uniformly random policy whose reward is at most 0.01.
    """
    kept = figure_3(found, learns)
    overall = float(np.mean([gain.difference for gain in kept])) if kept else np.nan
    bars = []
    for level in levels:
        chosen = [gain for gain in kept if sparsity[gain.task] >= level]
        value = float(np.mean([gain.difference for gain in chosen])) if chosen else np.nan
        bars.append(Level(level, tuple(gain.task for gain in chosen), value, value / overall if overall else np.nan))
    return bars


def classes_of(found: Sequence[Gain], learns: Learns) -> Classes:
    """Return one column of Table I: where the on-policy side is higher, where the generalized, and where none learns.

    Learning is judged by the arms of this column. The generalized side outperforms only if it is strictly higher.
    """
    rows: tuple[list[str], list[str], list[str]] = ([], [], [])
    for gain in found:
        rows[2 if not learned_in(gain, learns) else int(gain.difference > 0.0)].append(gain.task)
    return Classes(*map(tuple, rows))
