"""Helpers for the tests of the solvers: random numbers of every magnitude, families of cases, comparison by bits.

`docs/solver-cases.md` explains every family and where each tolerance comes from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpi.core import solvers

EPS32, TINY32 = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
ROWS = 1000  # cases of every family: one compiled call solves them all
DIM = 32  # the largest problem; smaller ones are padded with zeros, which every step leaves alone
TRIALS = solvers.BACKTRACKS + 1
FRACTIONS = (2.0 ** (-0.5 * np.arange(TRIALS))).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of difficulty: how its cases are drawn, and whether the quick tests have it."""

    draw: Callable[[np.random.Generator], Any]
    quick: bool = False


def parameters(families: Mapping[str, Family]) -> list[Any]:
    """Return the names of the families as parameters of a test; those that are not quick are marked slow."""
    return [name if f.quick else pytest.param(name, marks=pytest.mark.slow) for name, f in families.items()]


def generator(family: str) -> np.random.Generator:
    """Return random numbers that belong to one family, whatever the others draw."""
    return np.random.default_rng(list(family.encode()))


def powers(rng: np.random.Generator, low: float, high: float, shape: Any) -> np.ndarray:
    """Draw numbers of every magnitude from 10^low to 10^high."""
    return 10.0 ** rng.uniform(low, high, shape)


def radii(rng: np.random.Generator) -> np.ndarray:
    """Draw KL radii from 1e-4 to 0.1: eps = 0.2 is 0.02 on-policy, and 2e-4 with B = 10 batches reused."""
    return powers(rng, -4, -1, ROWS)


def active(rng: np.random.Generator) -> np.ndarray:
    """Draw the coordinates that a case has: the first 2 to 32."""
    return np.arange(DIM)[None, :] < rng.integers(2, DIM + 1, (ROWS, 1))


def symmetric(rng: np.random.Generator, eigenvalues: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Draw matrices with these eigenvalues in random directions, a product of three reflections; zero outside `on`."""
    Q = np.broadcast_to(np.eye(DIM), (ROWS, DIM, DIM))
    for _ in range(3):
        u = on * rng.standard_normal((ROWS, DIM))
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        Q = Q - 2 * (Q @ u[:, :, None]) * u[:, None, :]
    return (Q * (on * eigenvalues)[:, None, :]) @ Q.swapaxes(1, 2)


def same_bits(a: Any, b: Any) -> np.ndarray:
    """Compare row by row, by their bytes: -0.0 is not 0.0, and a subnormal number is not zero."""
    return (np.asarray(a).view(np.uint32) == np.asarray(b).view(np.uint32)).reshape(len(a), -1).all(1)
