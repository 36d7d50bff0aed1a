"""What one seed learned and lost: its curve in bins of 10,000 steps, its best window and its last."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpi.errors import UsageError

BIN = 10_000  # steps of a point of a curve
BINS_LIMIT = 100_000  # of a curve
COUNT, MEAN, SQUARE = range(3)  # the parts of a curve's point: episodes, their mean, the mean of their squares
BEST_BINS, LAST_BINS = 5, 20  # 50,000 and 200,000 steps
LEARNED_RETURN = 100.0
KEPT, HALF = 0.8, 0.5  # shares of the best below which a fifth and a half are lost
ERRORS = 3.0  # standard errors that a difference must exceed to be no chance


class Window(NamedTuple):
    """The episodes of some consecutive bins: their number, mean return and its standard error."""

    episodes: int
    mean: float
    error: float


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
    best_end: int
    """The step at which the best window ends."""
    after: Window
    """The last 200,000 steps as far as they come after the best window."""

    @property
    def fell(self) -> bool:
        """Whether what was lost was lost after the best window: one at the very end is a seed that still learns."""
        certain = self.best.mean - self.after.mean > ERRORS * math.hypot(self.best.error, self.after.error)
        return self.lost_fifth and certain and self.after.mean < KEPT * self.best.mean


def curve_of(steps: np.ndarray, returns: np.ndarray, bins: int) -> np.ndarray:
    """Return one seed's learning curve in bins of 10,000 steps, `[bins, 3]`; mean and square are 0 in an empty bin."""
    place = np.clip((steps - 1) // BIN, 0, bins - 1).astype(np.int64)
    count = np.bincount(place, minlength=bins).astype(np.float64)
    sums = [np.bincount(place, weights=x, minlength=bins) for x in (returns, returns**2)]
    return np.stack([count, *(x / np.maximum(count, 1.0) for x in sums)], axis=-1).astype(np.float32)


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


def course_at(curve: np.ndarray, steps: int) -> Course:
    """Return what a seed learned and lost in so many steps; a last bin that they hardly reach into has no say."""
    return course(curve[: max(1, min(len(curve), round(steps / BIN)))])


def course(curve: np.ndarray) -> Course:
    """Return what a seed learned and lost, from its curve `[bins, 3]`: episodes, mean return, mean square of returns.

    Windows without two episodes are never the best. A run shorter than a window is one window. What is lost must have
    been learned: the best window's mean return was above 100.

    The best of some hundred windows is lucky, and three standard errors do not allow for that: of seeds that never
    change, with independent episodes of 0 or 1,000, 3 % (one in five is 1,000) to 9 % (one in two) still seem to have
    lost a fifth; with normal returns of 500 ± 100 it was none of 400. A seed that learned late, in its last 200,000
    steps, counts as well: `fell` looks only at what came after the best.
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
    end = first + width
    last, after = window(curve[-LAST_BINS:]), window(curve[max(end, len(curve) - LAST_BINS) :])
    learned = best.mean > LEARNED_RETURN
    certain = learned and best.mean - last.mean > ERRORS * math.hypot(best.error, last.error)
    fifth, half = (certain and last.mean < share * best.mean for share in (KEPT, HALF))
    return Course(best, last, learned, fifth, half, BIN * end, after)
