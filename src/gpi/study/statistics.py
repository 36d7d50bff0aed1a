"""The study's statistics, from final performance by task and seed.

Aggregates over tasks with intervals (how the latter are made and how often they hold: `intervals.py`),
the difference of two arms task by task, and what one seed's curve says about learning and losing. *Final performance*
is a seed's mean training return at the end of its run (`rundir/run.py`). Seeds of two arms are not pairs, even where
their numbers agree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpi import analysis
from gpi.errors import UsageError
from gpi.study.intervals import (
    AT_ONCE,
    WHOLE,
    Interval,
    Scores,
    Statistic,
    Strata,
    interval,
    least_of_shares,
    strata_of,
    strata_of_two,
)

SCALE = 1_000.0  # the largest return of the 28 tasks
SPLITS_LIMIT = 200_000  # all splits of 10 and 10 seeds are 184,756
RANDOM_SPLITS = 100_000


# Aggregates of tasks: `strata` is, for each task, an array [..., seeds].


def mean(strata: Strata) -> np.ndarray:
    """Return the mean over tasks of each task's mean over seeds."""
    return np.mean([x.mean(axis=-1) for x in strata], axis=0)


def median(strata: Strata) -> np.ndarray:
    """Return the median over tasks of each task's mean over seeds; of an even number, the mean of the middle two."""
    return np.median([x.mean(axis=-1) for x in strata], axis=0)


def iqm(strata: Strata) -> np.ndarray:
    """Return the interquartile mean: the mean of all runs of all tasks without the lowest and the highest quarter.

    As rliable has it: of N runs, floor(N / 4) are left out at each end, so that where 4 does not divide N a little more
    than half of them is averaged. Runs are pooled: a task with more seeds than others counts for more.
    """
    runs = np.sort(np.concatenate(list(strata), axis=-1), axis=-1)
    cut = runs.shape[-1] // 4
    return runs[..., cut : runs.shape[-1] - cut].mean(axis=-1)


def optimality_gap(strata: Strata) -> np.ndarray:
    """Return by how much runs fall short of 1, on average, with scores divided by 1,000; what exceeds 1 counts as 1."""
    return 1.0 - mean([np.minimum(x / SCALE, 1.0) for x in strata])


def profile(strata: Strata, taus: np.ndarray) -> np.ndarray:
    """Return the performance profile: for each tau the share of runs above it, averaged over tasks, `[..., taus]`."""
    return np.mean([(x[..., None] > taus).mean(axis=-2) for x in strata], axis=0)


def improvement(strata: Strata) -> np.ndarray:
    """Return the probability of improvement of the arm in the first half of `strata` over that in the second half.

    In each task, the share of pairs (a run of the one, a run of the other) in which the first is higher, ties counting
    half: Mann and Whitney's U over the number of pairs. Then the mean over tasks.
    """
    half, shares = len(strata) // 2, []
    for x, y in zip(strata[:half], strata[half:], strict=True):
        gap = x[..., :, None] - y[..., None, :]
        shares.append(((gap > 0) + 0.5 * (gap == 0)).mean(axis=(-2, -1)))
    return np.mean(shares, axis=0)


AGGREGATES: dict[str, tuple[Statistic, tuple[float, float]]] = {
    "mean": (mean, WHOLE), "median": (median, WHOLE), "iqm": (iqm, WHOLE),
    "optimality gap": (optimality_gap, (0.0, math.inf)),
}  # fmt: skip
"""The aggregates of an arm over all tasks, and the bounds of each."""


def aggregate(name: str, scores: Scores, level: float = analysis.LEVEL) -> Interval:
    """Return one of `AGGREGATES` of an arm, with its interval over seeds within tasks."""
    statistic, bounds = AGGREGATES[name]
    return interval(statistic, strata_of(scores), level, bounds=bounds)


def aggregate_difference(name: str, scores: Scores, others: Scores, level: float = analysis.LEVEL) -> Interval:
    """Return one of `AGGREGATES` of an arm less that of another, with the interval of the difference."""
    x, y = strata_of_two(scores, others)
    statistic, _ = AGGREGATES[name]
    return interval(lambda both: statistic(both[: len(x)]) - statistic(both[len(x) :]), [*x, *y], level)


def performance_profile(scores: Scores, taus: np.ndarray, level: float = analysis.LEVEL) -> Interval:
    """Return the share of runs above each tau, with the interval at each tau by itself."""
    strata = strata_of(scores)
    least = least_of_shares(strata, len(strata))
    return interval(lambda s: profile(s, np.asarray(taus)), strata, level, bounds=(0.0, 1.0), least=least)


def probability_of_improvement(scores: Scores, others: Scores, level: float = analysis.LEVEL) -> Interval:
    """Return how probable it is that a run of the first arm beats one of the second on a task, with its interval."""
    x, y = strata_of_two(scores, others)
    return interval(improvement, [*x, *y], level, bounds=(0.0, 1.0), least=least_of_shares([*x, *y], len(x)))


def exact_share(k: int, n: int, level: float = analysis.LEVEL) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a share of which k in n were counted."""
    from scipy.stats import binomtest  # a second to import

    found = binomtest(k, n).proportion_ci(level)
    return float(found.low), float(found.high)


def sign_test(k: int, n: int) -> float:
    """Return the two-sided p-value of k in n where either side is equally likely."""
    from scipy.stats import binomtest

    return float(binomtest(k, n).pvalue)


class Difference(NamedTuple):
    """One task's difference of two arms' means: first less second."""

    difference: float
    low: float
    high: float
    """The ends of Welch's interval; NaN where an arm has one seed."""
    p: float
    """Two-sided, of the permutation test."""
    smallest_p: float
    """The smallest p that these numbers of seeds allow."""


def difference(x: np.ndarray, y: np.ndarray, level: float = analysis.LEVEL) -> Difference:
    """Return the difference of two arms' means on one task, with interval and permutation test."""
    (x,), (y,) = strata_of_two([x], [y])
    return Difference(*welch(x, y, level), permutation_p(x, y), smallest_p(len(x), len(y)))


def welch(x: np.ndarray, y: np.ndarray, level: float = analysis.LEVEL) -> tuple[float, float, float]:
    """Return the difference of two means and the ends of Welch's interval, which lets the arms differ in variance.

    Its standard error is sqrt(a + b), with a and b the two sample variances over their numbers of seeds, and its
    degrees of freedom are (a + b)² / (a²/(m-1) + b²/(n-1)).
    """
    middle = float(x.mean() - y.mean())
    if min(len(x), len(y)) < 2:
        return middle, math.nan, math.nan
    a, b = (float(z.var(ddof=1)) / len(z) for z in (x, y))
    if a + b == 0.0:
        return middle, middle, middle
    freedom = (a + b) ** 2 / (a**2 / (len(x) - 1) + b**2 / (len(y) - 1))
    reach = float(analysis.t_quantile((1.0 + level) / 2, freedom)) * math.sqrt(a + b)
    return middle, middle - reach, middle + reach


@lru_cache(maxsize=8)
def splits(size: int, others: int) -> np.ndarray | None:
    """Return every choice of `size` places among all, as rows of places; None if there are more than 200,000."""
    number = math.comb(size + others, size)
    if number > SPLITS_LIMIT:
        return None
    chosen = itertools.chain.from_iterable(itertools.combinations(range(size + others), size))
    return np.fromiter(chosen, np.int8, number * size).reshape(number, size)


def permutation_p(x: np.ndarray, y: np.ndarray) -> float:
    """Return the two-sided p-value of the permutation test: how rarely the arms' names alone give such a difference.

    It is the share of all splits of the pooled runs into groups of these sizes whose means differ by as much in
    absolute value, the observed split among them. With more than 200,000 splits, it is (1 + hits) / (1 + 100,000) of
    random ones.
    """
    pooled = np.concatenate([x, y])
    exact = splits(len(x), len(y))
    hits = 0
    for places in random_splits(len(x), len(y)) if exact is None else [exact]:
        # A split's difference of means is linear in its first group's sum; equal ones may differ in their last bits.
        gaps = np.abs(pooled[places].sum(axis=1) / len(x) - (pooled.sum() - pooled[places].sum(axis=1)) / len(y))
        hits += int((gaps >= abs(x.mean() - y.mean()) - 1e-9 * max(1.0, float(np.abs(pooled).max()))).sum())
    return (1 + hits) / (1 + RANDOM_SPLITS) if exact is None else hits / len(exact)


def random_splits(size: int, others: int) -> Iterator[np.ndarray]:
    """Yield random choices of `size` places among all, as rows of places, as many at a time as memory allows."""
    rng, step = np.random.default_rng(0), max(1, AT_ONCE // (size + others))
    for first in range(0, RANDOM_SPLITS, step):
        orders = rng.random((min(step, RANDOM_SPLITS - first), size + others))
        yield np.argpartition(orders, size - 1, axis=1)[:, :size]


def smallest_p(size: int, others: int) -> float:
    """Return the smallest p-value the permutation test can give: 2 of all splits for equal sizes, else 1.

    With equal sizes each split has its mirror image, which differs by as much: 5 and 5 seeds give no less than 2/252.
    """
    number = math.comb(size + others, size)
    return (2.0 if size == others else 1.0) / number if number <= SPLITS_LIMIT else 1.0 / (1 + RANDOM_SPLITS)


def benjamini_hochberg(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return p-values adjusted for their number: calling those below q different is wrong in at most a share q of them.

    The k-th smallest of m becomes the least of p m / k over itself and all larger ones, and at most 1.
    """
    values = np.asarray(p, np.float64)
    if values.ndim != 1 or not ((values >= 0.0) & (values <= 1.0)).all():
        raise UsageError(f"the p-values are {values.tolist()}; give a list of numbers from 0 to 1")
    from scipy.stats import false_discovery_control

    return false_discovery_control(values)


def differences(scores: Scores, others: Scores, level: float = analysis.LEVEL) -> tuple[list[Difference], np.ndarray]:
    """Return each task's difference of two arms, in the first arm's order, and the p-values adjusted over tasks."""
    found = [difference(x, y, level) for x, y in zip(*strata_of_two(scores, others), strict=True)]
    return found, benjamini_hochberg([one.p for one in found])
