"""The paper's comparison, of which its figures 2 to 4, its Table I and its claims are made: the best arm of each side.

On each task the best on-policy arm meets the best generalized one, by mean final performance, where learning occurs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpi import analysis
from gpi.study.intervals import Strata, strata_of

Finals = Mapping[str, Mapping[str, np.ndarray]]
"""Final performance `[seeds]` by arm and task."""

LEVELS = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0)  # of figure 4, percent
MARGIN = 10.0  # one hundredth of what a task can give
EPISODES = 204  # complete ones in the last 204,800 steps of a seed, with a horizon of 1,000


class Comparison(NamedTuple):
    """The arms of both sides, the tasks that all of them have, and the missing data."""

    on_policy: tuple[str, ...]
    generalized: tuple[str, ...]
    tasks: tuple[str, ...]
    missing: str = ""
    """Why nothing can be judged; empty if all is there."""

    def strata(self, finals: Finals) -> list[np.ndarray]:
        """Return the seeds of every arm on every task, arm by arm."""
        return strata_of({
            f"{arm} on {task}": finals[arm][task]
            for arm in (*self.on_policy, *self.generalized) for task in self.tasks
        })  # fmt: skip


class Sides(NamedTuple):
    """The mean of each side's best arm on each task, `[..., tasks]`, and facts about the tasks.

    Beware of its optimism: the maximum of k means that chance alone tells apart lies above their common truth, for k
    = 3 and five seeds by 0.38 standard deviations of a seed, for k = 9 by 0.66. So the best of three kappas has an
    advantage over one on-policy arm, and the best of nine generalized arms over the best of three. At a fixed kappa a
    single pair has none; of the best of three against the best of three, the side whose seeds differ more has some.
    """

    on_policy: np.ndarray
    generalized: np.ndarray
    learned: np.ndarray
    """Whether learning occurs under the better of the two."""
    sparsity: np.ndarray
    """As shares: `[tasks]`, or of several sets of tasks `[..., tasks]`."""

    @property
    def gain(self) -> np.ndarray:
        """Generalized less on-policy."""
        return self.generalized - self.on_policy

    def at(self, places: np.ndarray) -> Sides:
        """Return the sides of some tasks `[..., tasks]`, from those of all."""
        return Sides(*(x[places] for x in self))

    def gain_by_sparsity(self, levels: Sequence[float] = LEVELS) -> np.ndarray:
        """Return figure 4, `[..., levels]`: the mean gain over tasks where learning occurs that are at least so sparse.

        A task's sparsity is the percentage of 100,000 samples of a uniformly random policy whose reward is at most
        0.01. NaN without a task.
        """
        return np.stack([mean_over(self.gain, self.learned & (100.0 * self.sparsity >= x)) for x in levels], axis=-1)


def mean_over(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return the mean over some tasks; NaN over none."""
    number = among.sum(axis=-1)
    return np.where(number > 0, np.where(among, values, 0.0).sum(axis=-1) / np.maximum(number, 1), np.nan)


def margin(random: analysis.RandomPolicy, seeds: int, share: float = 1.0) -> float:
    """Return by how much the mean of an arm's seeds must exceed the random policy's mean return: else *no learning*.

    The margin is 10, or three standard errors of the difference that two sets of random episodes would show, if that
    is more: deviation · sqrt(1 / random episodes + 1 / (204 · seeds)), as a seed's final performance is the mean of
    204 episodes; or of a `share` of these, where runs are short.
    """
    error = random.deviation * math.sqrt(1.0 / random.episodes + 1.0 / (EPISODES * share * seeds))
    return max(MARGIN, analysis.ERRORS * error)


def sides_of(
    compared: Comparison,
    strata: Strata,
    random: Mapping[str, analysis.RandomPolicy],
    shares: Mapping[str, float] | None = None,
) -> Sides:
    """Return both sides from the seeds `[..., seeds]` of every arm on every task, arm by arm.

    `shares` has the part of 204,800 steps that final performance is over, for tasks where that is not all of it.
    """
    arms, tasks = len(compared.on_policy) + len(compared.generalized), len(compared.tasks)
    means = np.stack([x.mean(axis=-1) for x in strata], axis=-1)
    means = means.reshape(*means.shape[:-1], arms, tasks)
    sizes = np.array([x.shape[-1] for x in strata]).reshape(arms, tasks)
    needed = [
        [random[task].mean + margin(random[task], int(n), (shares or {}).get(task, 1.0))
         for task, n in zip(compared.tasks, row, strict=True)] for row in sizes
    ]  # fmt: skip
    best = means.argmax(axis=-2, keepdims=True)
    learned = np.take_along_axis(means > np.array(needed), best, axis=-2)[..., 0, :]
    split = len(compared.on_policy)
    sparsity = np.array([random[task].sparsity for task in compared.tasks])
    return Sides(means[..., :split, :].max(axis=-2), means[..., split:, :].max(axis=-2), learned, sparsity)


class Best(NamedTuple):
    """The best arm of a side on a task, the first of equals: its name and its seeds."""

    arm: str
    finals: np.ndarray


class Gain(NamedTuple):
    """One task of figures 2 and 3: the best arm of each side."""

    task: str
    on_policy: Best
    generalized: Best
    difference: float
    """Generalized less on-policy: figure 3's bar."""
    learned: bool

    @property
    def percent(self) -> float:
        """The difference in percent of the on-policy mean; infinite, with its sign, where that is not above 0."""
        usual = float(self.on_policy.finals.mean())
        if usual > 0.0:
            return 100.0 * self.difference / usual
        return float(np.inf * np.sign(self.difference)) if self.difference else 0.0


def gains(finals: Finals, compared: Comparison, sides: Sides) -> list[Gain]:
    """Return the comparison task by task; `sides` are those of the same arms."""

    def best(arms: Sequence[str], task: str) -> Best:
        arm = max(arms, key=lambda arm: finals[arm][task].mean())
        return Best(arm, finals[arm][task])

    return [
        Gain(task, best(compared.on_policy, task), best(compared.generalized, task), float(gap), bool(learned))
        for task, gap, learned in zip(compared.tasks, sides.gain, sides.learned, strict=True)
    ]


def classes_of(sides: Sides) -> tuple[int, int, int]:
    """Return one column of Table I: on how many tasks on-policy is higher, generalized is, and none learns.

    The generalized side outperforms only if it is strictly higher.
    """
    ahead = int((sides.learned & (sides.gain > 0.0)).sum())
    return int(sides.learned.sum()) - ahead, ahead, int((~sides.learned).sum())
