"""Student's t: the interval of a mean over few seeds or episodes, right for two already where values are normal.

The percentile bootstrap is too narrow there: of nominal 95 %, it held in 51, 84 and 91 % for 2, 5 and 10 seeds.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from gpi.errors import UsageError

LEVEL = 0.95


def student(x: np.ndarray, level: float = LEVEL) -> tuple[float, float, float]:
    """Return the mean of seeds or episodes and the ends of its interval, which are NaN where there is one only."""
    middle = float(np.mean(x))
    if len(x) < 2:
        return middle, math.nan, math.nan
    reach = reach_of(len(x), level) * float(np.std(x, ddof=1))
    return middle, middle - reach, middle + reach


@lru_cache(maxsize=64)
def reach_of(seeds: int, level: float = LEVEL) -> float:
    """Return how many standard deviations of the seeds Student's interval of their mean reaches to each side."""
    return float(t_quantile((1.0 + level) / 2, seeds - 1)) / math.sqrt(seeds) if seeds > 1 else math.nan


def t_quantile(probability: float, freedom: np.ndarray | float) -> np.ndarray:
    """Return the quantile of Student's t: the number that it stays below with `probability`."""
    from scipy.special import stdtrit  # importing it takes as long as importing gpi

    if not 0.0 < probability < 1.0:
        raise UsageError(f"a quantile's probability is {probability}; it must lie between 0 and 1")
    return stdtrit(np.clip(np.asarray(freedom, np.float64), 1e-3, 1e6), probability)
