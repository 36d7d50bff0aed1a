"""What updates promised and what came: the surrogate's gains of some updates against the change of episodes' returns.

By the performance difference lemma, an update that gains g per step should change an episode's return by horizon · g.
The lemma is for discounted returns and exact advantages; returns here are undiscounted, as everywhere in the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpi.rundir.run import Run, damaged, read_rows

WINDOW = 10  # updates before a span's middle, and as many after it
BINS, FEWEST = 8, 5  # of a calibration: the most bins, and the fewest spans in each
ERRORS = 2.0  # standard errors within which a promise counts as kept


class Spans(NamedTuple):
    """Disjoint spans of 2 · `WINDOW` updates, of all seeds: what each promised and what came of it."""

    promised: np.ndarray
    promised_error: np.ndarray  # as if the errors of a span's updates were the same: they share data; 0 if unknown
    realised: np.ndarray  # mean return of the episodes in the second half less that in the first
    realised_error: np.ndarray


class Bin(NamedTuple):
    """Spans that promised about the same."""

    promised: float
    realised: float
    error: float  # the standard error of `realised`
    spans: int


@dataclass(frozen=True)
class Calibration:
    """How well a run's updates kept what they promised."""

    window: int  # updates in each half of a span
    spans: int
    promised: float  # mean over spans, in units of return
    realised: float
    slope: float | None  # of realised on promised, by least squares: 1 if promises are true; None if all are the same
    slope_error: float | None  # heteroscedasticity-robust
    kept: float  # share of spans that realised what they promised, or missed it by no more than two standard errors
    bins: tuple[Bin, ...]
    realised_error: float  # the standard error of `realised`, over spans

    def words(self) -> str:
        """Say what came of the promises; how many were kept says little where a single span's error is large."""
        slope = (
            "" if self.slope is None else f"; slope {self.slope:.2g} ± {self.slope_error:.1g}, where 1 is as promised"
        )
        return (
            f"From each {self.window} updates to the next, returns changed by {signed(self.realised)} ± "
            f"{signed(self.realised_error)[1:]} on average ({self.spans:,} spans). The gains that updates measured on "
            f"their own samples, which they were fitted to, promised {signed(self.promised)}{slope}."
        )


def signed(change: float) -> str:
    """Return a change of return with its sign, in three digits or more."""
    return f"{change:+,.0f}" if abs(change) >= 100.0 else f"{change:+.3g}"


def spans_of(run: Run, table: dict[str, np.ndarray]) -> Spans:
    """Return the spans of all seeds of a run, from its audit by column and its episodes."""
    path = run.dir / "episodes.csv"
    try:
        rows = [(float(row["seed"]), float(row["steps"]), float(row["return"]), float(row["length"]))
                for row in read_rows(path, "seed", "steps", "return", "length")]  # fmt: skip
    except ValueError as error:
        raise damaged(path, error) from error
    episodes = np.array(rows, np.float64).reshape(-1, 4)
    found = []
    for seed in np.unique(table["seed"]):
        mine = {name: table[name][table["seed"] == seed] for name in ("steps", "surrogate_gain")}
        for name in ("gain_se", "undone"):
            mine[name] = table.get(name, 0.0 * table["seed"])[table["seed"] == seed]
        found += seed_spans(mine, episodes[episodes[:, 0] == seed, 1:])
    return Spans(*np.array(found, np.float64).reshape(-1, 4).T)


def seed_spans(table: dict[str, np.ndarray], episodes: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Return one seed's spans: promised with its error, realised with its error.

    The difference of two neighbouring means over W policies each is the sum of the changes between policies with
    weights 1/W, 2/W, ... 1, ... 1/W: so are the promises added up.
    """
    row = np.searchsorted(table["steps"], episodes[:, 0])  # of the update whose samples an episode ended in
    weight = np.minimum(np.arange(1, 2 * WINDOW), np.arange(2 * WINDOW - 1, 0, -1)) / WINDOW
    spans = []
    for first in range(0, len(table["steps"]) - 2 * WINDOW + 1, 2 * WINDOW):
        middle, end = first + WINDOW, first + 2 * WINDOW
        halves = [episodes[(row >= a) & (row < b)] for a, b in ((first, middle), (middle, end))]
        gains = table["surrogate_gain"][first : end - 1]
        if min(map(len, halves)) < 2 or not np.isfinite(gains).all() or table["undone"][first : end - 1].any():
            continue  # an agent that went back changed by more than its updates; in the last row, after the span
        horizon = np.concatenate(halves)[:, 2].mean()
        before, after = (half[:, 1] for half in halves)
        error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
        doubt = horizon * (weight @ np.nan_to_num(table["gain_se"][first : end - 1]))
        spans.append((horizon * (weight @ gains), doubt, after.mean() - before.mean(), error))
    return [span for span in spans if np.isfinite(np.square(span)).all()]


def calibrate(spans: Spans) -> Calibration | None:
    """Return how well promises were kept; None where a run is too short to say."""
    x, y = spans.promised, spans.realised
    if len(x) < FEWEST:
        return None
    slope, error = slope_of(x, y)
    missed = x - y > ERRORS * np.hypot(spans.promised_error, spans.realised_error)
    groups = np.array_split(np.argsort(x, kind="stable"), min(BINS, len(x) // FEWEST))
    bins = tuple(
        Bin(float(x[g].mean()), float(y[g].mean()), float(y[g].std(ddof=1) / np.sqrt(len(g))), len(g)) for g in groups
    )
    kept, spread = float(1.0 - missed.mean()), float(y.std(ddof=1) / np.sqrt(len(y)))
    return Calibration(WINDOW, len(x), float(x.mean()), float(y.mean()), slope, error, kept, bins, spread)


def slope_of(x: np.ndarray, y: np.ndarray) -> tuple[float | None, float | None]:
    """Return the slope of y on x by least squares, and its heteroscedasticity-robust standard error."""
    gap = x - x.mean()
    squares = float(gap @ gap)
    if not squares > 1e-12 * float(x @ x):
        return None, None
    slope = float(gap @ y) / squares
    residual = y - y.mean() - slope * gap
    return slope, float(np.sqrt(gap**2 @ residual**2 * len(x) / (len(x) - 2))) / squares
