"""Certificates of performance from finite samples: true together, with probability 1 - alpha, under any updates.

An episode's return is scaled to X_t in [0, 1]. Policies change between episodes in any way that depends on the past,
and mu_t = E[X_t | past] is the performance of the policy that plays episode t. For every c > 0

    W_n = prod_{t <= n} (1 + c X_t) / (1 + c mu_t)

is a nonnegative martingale that starts at 1, so that by Ville's inequality it never exceeds 1/a, for any n, with
probability 1 - a. The logarithm is concave: the mean of log(1 + c mu_t) is at most log(1 + c mu), with mu the mean of
the mu_t. Hence, for all n at once,

    mu >= (exp(mean of log(1 + c X_t) - log(1/a)/n) - 1) / c,

and the same for 1 - X_t bounds mu from above. The best of several c is taken, and windows restart for ever: a union
bound gives each (c, side, level, window) a share a of alpha.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]

ALPHA = 0.05
"""The probability that any certificate of a whole run is false."""
STAKES = 4.0 ** np.arange(-1, 4)
"""The values of c: small ones are best for noisy returns, large ones for nearly constant ones."""
SIZES = 16 * 4 ** np.arange(4)
"""Episodes in a window of each level: short windows see a fall soon, long ones certify much."""
ROUNDING = 1e-6, 1e-8
"""How far outside the range rounding may put a return, relative to the range's width and to its ends."""


class Certificate(NamedTuple):
    """Bounds of the mean performance of the policies that played a window's episodes, in [0, 1]."""

    lower: Array
    upper: Array


class Windows(NamedTuple):
    """The window that runs on each level; the next one of its level follows when it is full.

    Runs that see as many episodes may share one, with further axes in front of `total` and `logs`.
    """

    number: NDArray[np.int64]  # [L], windows of the level before it
    n: NDArray[np.int64]  # [L], its episodes so far
    total: Array  # [..., L], the sum of their X
    logs: Array  # [..., L, 2, K], the sums of log(1 + c X) and of log(1 + c (1 - X)), for every c


def leaves(returns: ArrayLike, low: float, high: float) -> NDArray[np.bool_]:
    """Return which returns are outside the range that X is scaled by: one of them, and no certificate is true by proof.

    Sums of float32 rewards, and tables with nine digits, are rounded relative to the size of a return.
    """
    x = np.asarray(returns, np.float64)
    slack = ROUNDING[0] * (high - low) + ROUNDING[1] * max(abs(low), abs(high))
    return (x < low - slack) | (x > high + slack)


def first_windows(*runs: int) -> Windows:
    """Return the windows before the first episode."""
    L, K = len(SIZES), len(STAKES)
    return Windows(np.zeros(L, np.int64), np.zeros(L, np.int64), np.zeros((*runs, L)), np.zeros((*runs, L, 2, K)))


def cost(number: ArrayLike, alpha: float = ALPHA) -> Array:
    """Return log(1/a) for the `number`-th window of a level: the shares a of all c, sides, levels and windows add up.

    There are K values of c, 2 sides, L levels, and 1/((w + 1)(w + 2)) sums to 1 over all windows w = 0, 1, ...
    """
    w = np.asarray(number, np.float64)
    return np.log(2 * len(STAKES) * len(SIZES) * (w + 1) * (w + 2) / alpha)


def log_growth(x: ArrayLike) -> Array:
    """Return log(1 + c X) and log(1 + c (1 - X)) for every c, [..., 2, K]."""
    x = np.asarray(x, np.float64)[..., None]
    return np.log1p(np.stack([x, 1 - x], axis=-2) * STAKES)


def certify(logs: Array, n: ArrayLike, price: ArrayLike) -> Certificate:
    """Return the bounds of n episodes, none for n = 0: logs [..., 2, K] are the sums of theirs, `price` is log(1/a)."""
    n, price = (np.asarray(x, np.float64)[..., None, None] for x in (n, price))
    growth = np.exp((logs - price) / np.maximum(n, 1))
    bound = np.where(n > 0, (growth - 1) / STAKES, 0.0).max(axis=-1).clip(0.0, 1.0)
    return Certificate(bound[..., 0], 1.0 - bound[..., 1])


def certificates(windows: Windows, alpha: float = ALPHA) -> Certificate:
    """Return the certificate of every running window, [..., L]."""
    return certify(windows.logs, windows.n, cost(windows.number, alpha))


def room(windows: Windows) -> int:
    """Return how many episodes may be added before a window is full."""
    return int((SIZES - windows.n).min())


def extend(windows: Windows, x: ArrayLike) -> Windows:
    """Return the windows after episodes with scaled returns x[n, ...], at most as many as there is room for."""
    x = np.asarray(x, np.float64)
    assert len(x) <= room(windows), f"{len(x)} episodes, room for {room(windows)}"
    total, logs = x.sum(axis=0)[..., None], log_growth(x).sum(axis=0)[..., None, :, :]
    return windows._replace(n=windows.n + len(x), total=windows.total + total, logs=windows.logs + logs)


def turn(windows: Windows) -> Windows:
    """Return the windows with the full ones followed by new ones."""
    return _begin_again(windows, windows.n >= SIZES)


def restart(windows: Windows) -> Windows:
    """Return new windows on every level."""
    return _begin_again(windows, np.ones(len(SIZES), np.bool_))


def _begin_again(windows: Windows, where: NDArray[np.bool_]) -> Windows:
    kept = ~where
    return Windows(windows.number + where, windows.n * kept, windows.total * kept, windows.logs * kept[:, None, None])


def episodes_to_certify(x: ArrayLike, chance: ArrayLike, level: float, number: int = 0) -> int | None:
    """Return after how many episodes a window certifies at least `level`, when returns x have these chances.

    The logs are taken at their expectation: luck apart. None if more than the longest window would be needed.
    """
    return _first(certify(*_typical(x, chance, number)).lower >= level)


def episodes_to_detect(x: ArrayLike, chance: ArrayLike, level: float, number: int = 0) -> int | None:
    """Return after how many episodes a window certifies less than `level`, when returns x have these chances."""
    return _first(certify(*_typical(x, chance, number)).upper < level)


def _typical(x: ArrayLike, chance: ArrayLike, number: int) -> tuple[Array, Array, Array]:
    """Return the expected logs of 1, 2, ... episodes, these numbers, and what windows of that number cost."""
    n = np.arange(1, SIZES[-1] + 1)
    expected = np.tensordot(np.asarray(chance), log_growth(x), axes=1)
    return n[:, None, None] * expected, n, np.full(len(n), cost(number))


def _first(holds: NDArray[np.bool_]) -> int | None:
    return int(holds.argmax()) + 1 if holds.any() else None
