"""On which tasks anything was learned at all; what one seed learned and lost is `analysis/retention.py`."""

from __future__ import annotations

import math

import numpy as np

from gpi.analysis.retention import ERRORS
from gpi.errors import UsageError

MARGIN = 10.0  # one hundredth of what a task can give
EPISODES = 204  # complete ones in the last 204,800 steps of a seed, with a horizon of 1,000


def learning_occurs(
    finals: np.ndarray, random_mean: float, random_deviation: float, random_episodes: int, share: float = 1.0
) -> bool:
    """Return whether the best arm's seeds did better on a task than the random policy: the opposite of *no learning*.

    No learning: the arm's mean final performance is not above the random policy's mean return by more than the
    margin. The margin is 10, or three standard errors of the difference that two sets of random episodes would show,
    if that is more: deviation · sqrt(1 / random episodes + 1 / (204 · seeds)), as a seed's final performance is the
    mean of 204 episodes; or of a `share` of these, where runs are short.
    """
    finals = np.asarray(finals, np.float64)
    if not finals.size or not np.isfinite([*finals, random_mean, random_deviation]).all() or random_episodes < 1:
        raise UsageError(
            f"final performance {finals.tolist()} and the random policy's {random_mean} ± {random_deviation} in "
            f"{random_episodes} episodes; give finite numbers of at least one seed and one episode"
        )
    return bool(finals.mean() - random_mean > margin(random_deviation, random_episodes, finals.size, share))


def margin(random_deviation: float, random_episodes: int, seeds: int, share: float = 1.0) -> float:
    """Return by how much the mean of `seeds` seeds must exceed the random policy's (`learning_occurs`)."""
    return max(MARGIN, ERRORS * random_deviation * math.sqrt(1.0 / random_episodes + 1.0 / (EPISODES * share * seeds)))
