"""Confidence intervals over seeds, right for few of them: tasks are fixed, and seeds resampled within each task.

The plain percentile bootstrap is too narrow for five seeds, for two reasons: resampling S seeds understates their
variance by the factor (S-1)/S, and it takes the spread of five numbers for a known one. Both are corrected here. The
interval is

    estimate ± t · sqrt(Σ v S/(S-1) / Σ v) · (standard deviation of the resampled estimates)

with v the part of that variance that comes from one task's seeds, and t Student's quantile for the degrees of freedom
of Welch and Satterthwaite, (Σ v)² / Σ (v²/(S-1)). For the mean of one task this is Student's own interval.

Shares (performance profiles, the probability of improvement) need one thing more: where all seeds of a task are on
one side they seem to have no spread. Their standard error is taken to be at least 1/((S+1) T), by which one more run,
on the other side, would move the share of T tasks; and there with S-1 degrees of freedom. The report's last
table says how often all of this holds (`benchmarks/made_up_studies.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpi import analysis
from gpi.errors import UsageError

Scores = Mapping[str, np.ndarray] | Sequence[np.ndarray] | np.ndarray
"""Final performance of one arm: by task the array of its seeds, or an array `[tasks, seeds]`."""
Strata = Sequence[np.ndarray]
"""The same as statistics take it: for each task an array `[..., seeds]`, with any leading axes in common."""
Statistic = Callable[[Strata], np.ndarray]

RESAMPLES = 4_000
FEWEST = 100  # resamples, of however many seeds
CELLS, AT_ONCE = 200_000_000, 20_000_000  # numbers that statistics of all resamples may read, and of those in memory
WHOLE = (-math.inf, math.inf)


class Interval(NamedTuple):
    """An estimate and the ends of its interval, which are NaN where a task has one seed only: its spread is unknown."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def strata_of(scores: Scores) -> list[np.ndarray]:
    """Return each task's scores as a float64 array, or raise `UsageError` if there are none or one is not a number."""
    named = scores.items() if isinstance(scores, Mapping) else ((f"task {i}", x) for i, x in enumerate(scores))
    strata = []
    for name, values in named:
        array = np.asarray(values, np.float64)
        if array.ndim != 1 or not array.size:
            raise UsageError(f"{name} has scores of shape {array.shape}; give one score for each seed, at least one")
        if not np.isfinite(array).all():
            raise UsageError(f"{name} has the scores {array.tolist()}; each must be finite: leave out unfinished seeds")
        strata.append(array)
    if not strata:
        raise UsageError("there are no scores; give those of at least one task")
    return strata


def strata_of_two(scores: Scores, others: Scores) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the scores of two arms, task by task in the same order; raise `UsageError` if their tasks differ."""
    if isinstance(scores, Mapping) and isinstance(others, Mapping):
        if unpaired := sorted(set(scores) ^ set(others)):
            raise UsageError(f"only one of the two arms has {', '.join(unpaired)}; compare the tasks that both have")
        others = {task: others[task] for task in scores}
    pair = strata_of(scores), strata_of(others)
    if len(pair[0]) != len(pair[1]):
        raise UsageError(f"the arms have {len(pair[0])} and {len(pair[1])} tasks; compare the tasks that both have")
    return pair


def interval(
    statistic: Statistic,
    strata: Strata,
    level: float = analysis.LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    bounds: tuple[float, float] = WHOLE,
    least: float = 0.0,
) -> Interval:
    """Return a statistic of seeds within tasks and its interval, as the head of this module defines it.

    Each resample draws every task's seeds anew, with replacement, from that task's seeds. The same `seed` draws the
    same, so that intervals can be repeated. `bounds` are the smallest and the largest value that the statistic can
    have, `least` is the least standard error to believe (`least_of_shares`). Of hundreds of seeds fewer resamples do.
    """
    estimate = np.asarray(statistic(strata), np.float64)
    if min(len(x) for x in strata) < 2:
        unknown = np.full(estimate.shape, np.nan)
        return Interval(estimate, unknown, unknown)
    drawn = draws(strata, resamples, seed)
    resampled = of_draws(statistic, strata, drawn)
    spread, freedom = spread_of(resampled, drawn)
    freedom = np.where(spread < least, min(len(x) for x in strata) - 1.0, freedom)
    reach = analysis.t_quantile((1.0 + level) / 2, freedom) * np.maximum(spread, least)
    return Interval(estimate, np.maximum(estimate - reach, bounds[0]), np.minimum(estimate + reach, bounds[1]))


def cautious_interval(
    statistic: Statistic,
    strata: Strata,
    level: float = analysis.LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    bounds: tuple[float, float] = WHOLE,
) -> Interval:
    """Return a statistic that jumps, such as a number of tasks, or the lead of a best arm, with a wider interval.

    From the lower to the higher end of two: `interval`, which is centred on the estimate, and the percentiles of the
    resampled values with every seed's deviation widened by sqrt(S/(S-1)), which is not, as the best of several arms
    and the sign of a small difference are biased when resampled. Neither alone suffices (`made_up_studies.py`).
    """
    first = interval(statistic, strata, level, resamples, seed, bounds)
    if min(len(x) for x in strata) < 2:
        return first
    widened = [x.mean() + (x - x.mean()) * math.sqrt(len(x) / (len(x) - 1)) for x in strata]
    values = of_draws(statistic, widened, draws(widened, resamples, seed))
    low, high = np.percentile(values, [50.0 - 50.0 * level, 50.0 + 50.0 * level], axis=0)
    low, high = np.minimum(first.low, low), np.maximum(first.high, high)
    return Interval(first.estimate, np.maximum(low, bounds[0]), np.minimum(high, bounds[1]))


def cells_of(strata: Strata) -> int:
    """Return about how many numbers one resample needs: some for every run, and one for every pair of a task's runs."""
    return max(10 * sum(len(x) for x in strata), max(len(x) for x in strata) ** 2)


def draws(strata: Strata, resamples: int, seed: int) -> list[np.ndarray]:
    """Return the seeds that each resample draws, by their places, for each task `[resamples, seeds]`."""
    rng, number = np.random.default_rng(seed), min(resamples, max(FEWEST, CELLS // cells_of(strata)))
    return [rng.integers(0, len(x), (number, len(x))) for x in strata]


def of_draws(statistic: Statistic, strata: Strata, drawn: Sequence[np.ndarray]) -> np.ndarray:
    """Return the statistic of each resample, of as many at once as memory allows."""
    step = max(1, AT_ONCE // cells_of(strata))
    parts = [
        statistic([x[places[first : first + step]] for x, places in zip(strata, drawn, strict=True)])
        for first in range(0, len(drawn[0]), step)
    ]
    return np.concatenate([np.asarray(part, np.float64) for part in parts])


def least_of_shares(strata: Strata, tasks: int) -> float:
    """Return the least standard error of a share averaged over tasks: what one more run, on the other side, changes."""
    return 1.0 / ((min(len(x) for x in strata) + 1.0) * tasks)


def spread_of(resampled: np.ndarray, drawn: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard error, corrected for few seeds, and the degrees of freedom that it has.

    One task's part v of the variance is Σ cov²(how often a seed was drawn, the resampled statistic) over its seeds (the
    infinitesimal jackknife), less what chance alone gives with that many resamples.
    """
    deviation = resampled - resampled.mean(axis=0)
    variance = (deviation**2).mean(axis=0)
    parts = np.stack([part_of(places, deviation, variance) for places in drawn])
    fewer = np.array([places.shape[1] - 1.0 for places in drawn]).reshape(-1, *[1] * variance.ndim)
    total = parts.sum(axis=0)
    known = total > 0.0
    total = np.where(known, total, 1.0)
    inflation = np.where(known, (parts * (fewer + 1.0) / fewer).sum(axis=0) / total, 1.0 + 1.0 / fewer.min())
    freedom = np.where(known, total**2 / np.maximum((parts**2 / fewer).sum(axis=0), 1e-300), fewer.min())
    return np.sqrt(variance * inflation), freedom


def part_of(places: np.ndarray, deviation: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the part of a resampled statistic's variance that comes from one task's seeds."""
    resamples, seeds = places.shape
    cells = (places + seeds * np.arange(resamples)[:, None]).ravel()
    times = np.bincount(cells, minlength=resamples * seeds).reshape(resamples, seeds) - 1.0
    covariance = np.tensordot(times, deviation, axes=(0, 0)) / resamples
    return np.maximum((covariance**2).sum(axis=0) - (seeds - 1) / resamples * variance, 0.0)
