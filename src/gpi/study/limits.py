"""What a result in a pack may hold, so that no file breaks a report or a terminal: runs that were made keep all of it.

Types, shapes and names are checked where a pack is read (`results.py`); here are the sizes and the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gpi import analysis, files
from gpi import config as run_settings
from gpi.errors import UsageError

if TYPE_CHECKING:
    from gpi.study.results import Result

SEEDS = 1_000  # of one result: a report compares resampled seeds in memory
ALL_SEEDS = 100_000  # of one pack
LETTERS, TEXTS = 200, 1_000  # of a text, and how many texts or layers there may be
LARGEST = 1e30  # of a number
RETURN = 1e15  # of a return, whose square is in the curve too
EPISODES = 1e6  # of one bin of 10,000 steps
UPDATES = "updates"
COUNTS = ("_violations", UPDATES, "refused", "budget_exhausted", "shortened", "undone", "learned")
"""How the names end of what an audit counts."""


def require_plain(result: Result) -> None:
    """Raise UsageError, in one line fit for a terminal, unless a result could be that of a run."""
    settings = dataclasses.asdict(result.config)
    require_texts([*settings, *(x for x in settings.values() if isinstance(x, str))])
    require_texts([*result.devices, *result.versions, *result.versions.values()])
    require_numbers(settings)
    if result.config.seeds > SEEDS:
        raise UsageError(f"it has {result.config.seeds:,} seeds, at most {SEEDS:,} are taken; make several runs")
    run_settings.validate(result.config)
    require_curve(result)
    require_audit(result)


def require_texts(texts: Iterable[str]) -> None:
    """Raise UsageError unless texts are few and short, and a terminal shows them as they are."""
    texts = list(texts)
    if len(texts) > TEXTS:
        raise UsageError(f"it has {len(texts):,} names of versions and devices, at most {TEXTS:,} are taken")
    for text in texts:
        if len(text) > LETTERS or not text.isprintable():
            raise UsageError(f"the text {files.shown(text)} must have at most {LETTERS} letters, all of them printable")


def require_numbers(value: object) -> None:
    """Raise UsageError unless all numbers in a setting or an audit are of a size to calculate with."""
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise UsageError(f"the number {files.shown(value)} must be at most {LARGEST:g}")
    if isinstance(value, tuple) and len(value) > TEXTS:
        raise UsageError(f"a setting has {len(value):,} values, at most {TEXTS:,} are taken")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        require_numbers(one)


def require_curve(result: Result) -> None:
    """Raise UsageError unless returns are of a size to calculate with, and the curve is as long as the run."""
    count, mean, square = (result.curve[..., part] for part in (analysis.COUNT, analysis.MEAN, analysis.SQUARE))
    bins = -(-max(*result.steps, 1) // result.bin)
    if result.curve.shape[1] != bins:
        raise UsageError(f"its curve has {result.curve.shape[1]:,} bins, its steps make {bins:,}")
    if not ((count >= 0) & (count <= EPISODES) & (count == np.rint(count))).all():
        raise UsageError(f"its curve counts episodes that are not whole numbers from 0 to {EPISODES:,.0f}")
    returns = np.nan_to_num(result.final), mean, np.sqrt(np.maximum(square, 0.0))
    if (square < 0).any() or max(float(np.abs(one).max(initial=0.0)) for one in returns) > RETURN:
        raise UsageError(f"its returns must be within ±{RETURN:g}, and their squares positive")


def require_audit(result: Result) -> None:
    """Raise UsageError unless what an audit counts are counts, and all its numbers are of a size to calculate with."""
    require_numbers(result.audit)
    for name, value in {UPDATES: None, **result.audit}.items():
        if name.endswith(COUNTS) and not (type(value) is int and value >= 0):
            raise UsageError(f"its audit says {files.shown(name)} = {files.shown(value)}, which must be a whole number")
