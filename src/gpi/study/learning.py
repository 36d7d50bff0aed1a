"""What one seed learned and lost, and on which tasks anything was learned at all."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpi.errors import UsageError
from gpi.study.results import COUNT, MEAN, SQUARE

BEST_BINS, LAST_BINS = 5, 20  # of 10,000 steps: 50,000 and 200,000
LEARNED_RETURN = 100.0
ERRORS = 3.0  # standard errors that a difference must exceed to be no chance
MARGIN = 10.0  # one hundredth of what a task can give
EPISODES = 204  # complete ones in the last 204,800 steps of a seed, with a horizon of 1,000


class Window(NamedTuple):
    """The episodes of some consecutive bins: their number, mean return and its standard error."""

    episodes: int
    mean: float
    error: float


class RandomPolicy(NamedTuple):
    """What a uniformly random policy meets on a task."""

    sparsity: float
    """The share of samples whose reward is at most 0.01."""
    mean: float
    """Of the returns of its episodes."""
    deviation: float
    """Their standard deviation."""
    episodes: int


class Course(NamedTuple):
    """What one seed learned and lost."""

    best: Window
    """The 50,000 steps with the highest mean return."""
    last: Window
    """The last 200,000 steps."""
    learned: bool
    """The best window's mean return is above 100."""
    lost_fifth: bool
    """The last window's mean is below 80 % of the best one's, and below it by more than three standard errors."""
    lost_half: bool
    """The same with 50 %."""


def window(bins: np.ndarray) -> Window:
    """Return the episodes of some bins as one: the error is sqrt(sample variance / episodes), infinite below two."""
    count = float(bins[:, COUNT].sum())
    if count < 1.0:
        return Window(0, math.nan, math.inf)
    middle = float(bins[:, COUNT] @ bins[:, MEAN]) / count
    # The variance within bins and that between them, each small: no difference of large numbers beyond one bin's own.
    within = np.maximum(bins[:, SQUARE] - bins[:, MEAN] ** 2, 0.0) + (bins[:, MEAN] - middle) ** 2
    variance = float(bins[:, COUNT] @ within) / (count - 1.0) if count > 1.0 else math.inf
    return Window(round(count), middle, math.sqrt(variance / count))


def course(curve: np.ndarray) -> Course:
    """Return what a seed learned and lost, from its curve `[bins, 3]`: episodes, mean return, mean square of returns.

    Windows without two episodes are never the best. A run shorter than a window is one window. What is lost must have
    been learned: the best window's mean return was above 100.

    The best of some hundred windows is lucky, and three standard errors do not allow for that: of seeds that never
    change, with independent episodes of 0 or 1,000, 3 % (one in five is 1,000) to 9 % (one in two) still seem to have
    lost a fifth; with normal returns of 500 ± 100 it was none of 400.
    """
    curve = np.asarray(curve, np.float64)
    if curve.ndim != 2 or curve.shape[1] != 3 or not len(curve) or not np.isfinite(curve).all():
        raise UsageError(f"a curve has the shape {curve.shape}; give finite numbers [bins, 3]: episodes, mean, square")
    width = min(BEST_BINS, len(curve))
    episodes = np.convolve(curve[:, COUNT], np.ones(width), "valid")
    sums = np.convolve(curve[:, COUNT] * curve[:, MEAN], np.ones(width), "valid")
    means = np.where(episodes > 1.0, sums / np.maximum(episodes, 1.0), -math.inf)
    first = int(np.argmax(means))
    best = window(curve[first : first + width]) if means[first] > -math.inf else Window(0, math.nan, math.inf)
    last = window(curve[-LAST_BINS:])
    learned = best.mean > LEARNED_RETURN
    certain = learned and best.mean - last.mean > ERRORS * math.hypot(best.error, last.error)
    return Course(best, last, learned, certain and last.mean < 0.8 * best.mean, certain and last.mean < 0.5 * best.mean)


def learning_occurs(finals: np.ndarray, random_mean: float, random_deviation: float, random_episodes: int) -> bool:
    """Return whether the best arm's seeds did better on a task than the random policy: the opposite of *no learning*.

    No learning: the arm's mean final performance is not above the random policy's mean return by more than the
    margin. The margin is 10, or three standard errors of the difference that two sets of random episodes would show,
    if that is more: deviation · sqrt(1 / random episodes + 1 / (204 · seeds)), as a seed's final performance is the
    mean of 204 episodes.
    """
    finals = np.asarray(finals, np.float64)
    if not finals.size or not np.isfinite([*finals, random_mean, random_deviation]).all() or random_episodes < 1:
        raise UsageError(
            f"final performance {finals.tolist()} and the random policy's {random_mean} ± {random_deviation} in "
            f"{random_episodes} episodes; give finite numbers of at least one seed and one episode"
        )
    return bool(finals.mean() - random_mean > margin(random_deviation, random_episodes, finals.size))


def margin(random_deviation: float, random_episodes: int, seeds: int) -> float:
    """Return by how much so many seeds must exceed the random policy's mean return (`learning_occurs`)."""
    return max(MARGIN, ERRORS * random_deviation * math.sqrt(1.0 / random_episodes + 1.0 / (EPISODES * seeds)))
