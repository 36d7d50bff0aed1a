"""The curve of one seed in bins, and how much of what it learned it retained.

Windows are shares of the run, so that runs of any length are judged alike: of a million steps, bins are 10,000 and the
windows 50,000 and 200,000.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpi.errors import UsageError

BIN = 10_000  # steps of a point of a curve, at most
BINS = (BIN, 5_000, 1_000, 500, 100, 50, 10, 5, 1)  # each divides the one before, so that curves can be joined
POINTS = 100  # that a curve has at least
BINS_LIMIT = 100_000  # of a curve
COUNT, MEAN, SQUARE = range(3)  # the parts of a curve's point: episodes, their mean, the mean of their squares
BEST, LAST = 20, 5  # the best window is a 20th of the run, the last one a 5th
EPISODES = 10  # that a window needs to be the best
LOST_FIFTH, LOST_HALF = 80.0, 50.0  # percent of the best below which a fifth and a half are lost
ERRORS = 3.0  # standard errors that a difference must exceed to be no chance


class Window(NamedTuple):
    """The episodes of some consecutive bins: their number, mean return and its standard error."""

    episodes: int
    mean: float
    error: float


class Scale(NamedTuple):
    """What the returns of a task mean."""

    zero: float
    """From which they count."""
    learned: float
    """Above which something has been learned."""


class Retention(NamedTuple):
    """What one seed learned and lost."""

    best: Window
    """The twentieth of the run with the highest mean return."""
    last: Window
    """The last fifth."""
    learned: bool
    """The best window's mean return is above what counts as learned."""
    lost_fifth: bool
    """The last window's mean is below 80 % of the best one's, and below it by more than three standard errors."""
    lost_half: bool
    """The same with 50 %."""
    best_end: int
    """The step at which the best window ends."""
    after: Window
    """The last fifth as far as it comes after the best window."""
    scale: Scale | None
    why_not: str
    """Why nothing is judged, if so."""

    @property
    def fell(self) -> bool:
        """Whether the loss came after the best window: a seed whose best window is at the very end still learns."""
        certain = self.best.mean - self.after.mean > ERRORS * math.hypot(self.best.error, self.after.error)
        return self.lost_fifth and certain and self.retained(self.after) < LOST_FIFTH

    def retained(self, window: Window) -> float:
        """Return how many percent of the best window's return another has."""
        zero = self.scale.zero if self.scale else 0.0
        return 100.0 * (window.mean - zero) / (self.best.mean - zero)


def bin_of(steps: int) -> int:
    """Return the steps per point of the curve of a run of `steps`: at most 10,000, and at most a hundredth of them."""
    return next((size for size in BINS if POINTS * size <= steps), 1)


def curve_of(steps: np.ndarray, returns: np.ndarray, bins: int, size: int = BIN) -> np.ndarray:
    """Return one seed's learning curve in bins of `size` steps, `[bins, 3]`; mean and square are 0 in an empty bin."""
    place = np.clip((steps - 1) // size, 0, bins - 1).astype(np.int64)
    count = np.bincount(place, minlength=bins).astype(np.float64)
    sums = [np.bincount(place, weights=x, minlength=bins) for x in (returns, returns**2)]
    return np.stack([count, *(x / np.maximum(count, 1.0) for x in sums)], axis=-1).astype(np.float32)


def joined(curves: np.ndarray, number: int) -> np.ndarray:
    """Return curves `[..., bins, 3]` with every `number` bins made one; the last may have fewer."""
    if number == 1:
        return curves
    pad = [(0, 0)] * (curves.ndim - 2) + [(0, -curves.shape[-2] % number), (0, 0)]
    parts = np.pad(np.asarray(curves, np.float64), pad)
    parts = parts.reshape(*parts.shape[:-2], -1, number, 3)
    count = parts[..., COUNT].sum(axis=-1)
    sums = [(parts[..., COUNT] * parts[..., part]).sum(axis=-1) for part in (MEAN, SQUARE)]
    return np.stack([count, *(x / np.maximum(count, 1.0) for x in sums)], axis=-1)


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


def retention_at(curve: np.ndarray, steps: int, scale: Scale | None, size: int = BIN) -> Retention:
    """Return what a seed learned and lost in the first `steps` steps; a last bin less than half covered is ignored."""
    return retention(curve[: max(1, min(len(curve), round(steps / size)))], scale, size)


def retention(curve: np.ndarray, scale: Scale | None, size: int = BIN) -> Retention:
    """Return what a seed learned and lost, from its curve `[bins, 3]`: episodes, mean return, mean square of returns.

    Nothing is judged without a `scale`, nor in a run of fewer than 20 bins or without a window of ten episodes. Only
    learned performance can be lost.

    The best of some hundred windows is lucky, and three standard errors do not allow for that: of seeds that never
    change, with independent episodes of 0 or 1,000, 3 % (one in five is 1,000) to 9 % (one in two) still seem to have
    lost a fifth; with normal returns of 500 ± 100 it was none of 400. A seed that learned late, in the last fifth of
    its run, counts as well: `fell` looks only at what came after the best.
    """
    curve = np.asarray(curve, np.float64)
    if curve.ndim != 2 or curve.shape[1] != 3 or not len(curve) or not np.isfinite(curve).all():
        raise UsageError(f"a curve has the shape {curve.shape}; give finite numbers [bins, 3]: episodes, mean, square")
    width, tail = (max(1, int(len(curve) / share + 0.5)) for share in (BEST, LAST))
    episodes = np.convolve(curve[:, COUNT], np.ones(width), "valid")
    sums = np.convolve(curve[:, COUNT] * curve[:, MEAN], np.ones(width), "valid")
    means = np.where(episodes >= EPISODES, sums / np.maximum(episodes, 1.0), -math.inf)
    first = int(np.argmax(means))
    best = window(curve[first : first + width]) if means[first] > -math.inf else Window(0, math.nan, math.inf)
    end = first + width
    last, after = window(curve[-tail:]), window(curve[max(end, len(curve) - tail) :])
    short = "the run is too short" if len(curve) < BEST or not best.episodes else ""
    found = Retention(
        best, last, False, False, False, size * end, after, scale,
        short or ("" if scale else "the random policy is not known"),
    )  # fmt: skip
    if found.why_not or scale is None or best.mean <= scale.learned:
        return found
    certain = best.mean - last.mean > ERRORS * math.hypot(best.error, last.error)
    fifth, half = (certain and found.retained(last) < share for share in (LOST_FIFTH, LOST_HALF))
    return found._replace(learned=True, lost_fifth=fifth, lost_half=half)
