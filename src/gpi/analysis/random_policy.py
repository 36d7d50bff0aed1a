"""What a uniformly random policy meets on a task, which `study/sparsity.py` measures: learning begins above it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpi import files
from gpi.analysis.retention import Scale
from gpi.envs import dmc
from gpi.errors import FileError
from gpi.standalone import Facts

SAMPLES = 100_000
LARGEST = 1_000.0  # return of the 28 tasks
LEARNED = 0.1  # of the way from the random policy to the largest return
MEASURED = Path(__file__).with_suffix(".json")
"""The 28 tasks, measured once: `python benchmarks/sparsity.py`."""


class RandomPolicy(NamedTuple):
    """What a uniformly random policy meets on a task."""

    sparsity: float
    """The share of samples whose reward is at most 0.01."""
    mean: float
    """Of the returns of its episodes."""
    deviation: float
    """Their standard deviation."""
    episodes: int


def scale_of(task: str, known: RandomPolicy | None = None) -> Scale | None:
    """Return what counts as learned and as lost on a task; None where its random policy is not known.

    Returns of the suite count from 0, and something is learned above a tenth of the way from the random policy's mean
    to 1,000. Other returns count from the random policy's mean, and something is learned above that by more than the
    standard deviation of its episodes.
    """
    if known is None:
        known = random_returns().get(task)
    if known is None or not np.isfinite([known.mean, known.deviation]).all():
        return None
    if task in dmc.TASKS:
        return Scale(0.0, known.mean + LEARNED * (LARGEST - known.mean))
    return Scale(known.mean, known.mean + known.deviation)


def random_returns() -> dict[str, RandomPolicy]:
    """Return what a random policy meets on each of the 28 tasks, as it was measured for the package."""
    try:
        return parse_measurements(MEASURED.read_bytes())  # not by `files.read`: installers may link a package's files
    except FileError as error:
        raise FileError(f"{MEASURED} cannot be used: {error}; install gpi again") from error


def parse_measurements(data: bytes, samples: int = SAMPLES) -> dict[str, RandomPolicy]:
    """Return the measurements in a file, none if of another number of samples; raise FileError if it is not one."""
    about: Facts = files.parse_json(data, "the table of random policies")

    def number(x: object) -> float:
        return np.nan if x is None else float(x)  # type: ignore[arg-type]

    try:
        if about["samples"] != samples:
            return {}
        return {
            task: RandomPolicy(
                float(share), number(about["returns"][task]["mean"]), number(about["returns"][task]["deviation"]),
                int(about["returns"][task]["episodes"]),
            ) for task, share in about["sparsity"].items()
        }  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"it lacks the sparsity or the returns of a task ({type(error).__name__} {error})") from error
