"""The line search: the first acceptable trial, or the old parameters bit for bit."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import EPS32, FRACTIONS, ROWS, TINY32, TRIALS, Family, generator, parameters, powers, same_bits
from gpi.core import solvers


class Lines(NamedTuple):
    """Rows of parameters, steps, and which trial is acceptable: the trial is read off the first coordinate."""

    theta: np.ndarray
    step: np.ndarray
    table: np.ndarray


def lines(rng: np.random.Generator, table: np.ndarray) -> Lines:
    shape = (2 * ROWS, 8)
    odd = rng.choice(np.array([-0.0, 1e-40, -1e-45, 1e30, 1.0], np.float32), shape)
    theta = np.where(rng.random(shape) < 0.5, odd, rng.standard_normal(shape)).astype(np.float32)
    step = (rng.standard_normal(shape) * powers(rng, -30, 30, shape)).astype(np.float32)
    theta[:, 0], step[:, 0] = 0.0, 1.0
    return Lines(theta, step, table)


def accepted_at_random(rng: np.random.Generator) -> Lines:
    return lines(rng, rng.random((2 * ROWS, TRIALS + 2)) < rng.random((2 * ROWS, 1)))


def accepted_once(rng: np.random.Generator) -> Lines:
    """Acceptable at one trial, or only beyond the last: then the step is refused."""
    return lines(rng, np.arange(TRIALS + 2)[None, :] == rng.integers(0, TRIALS + 2, (2 * ROWS, 1)))


def never_accepted(rng: np.random.Generator) -> Lines:
    return lines(rng, np.zeros((2 * ROWS, TRIALS + 2), bool))


def overflowing(rng: np.random.Generator) -> Lines:
    """Long steps leave the numbers of float32, short ones do not; acceptance alone would allow both."""
    x = lines(rng, np.ones((2 * ROWS, TRIALS + 2), bool))
    x.theta[:, 3], x.step[:, 3] = 3e38, rng.uniform(0, 3.4e38, 2 * ROWS)
    x.theta[:, 5], x.step[:, 5] = -3.4e38, -powers(rng, 36, 38.5, 2 * ROWS)
    return x


def step_not_finite(rng: np.random.Generator) -> Lines:
    x = lines(rng, np.ones((2 * ROWS, TRIALS + 2), bool))
    odd = rng.choice([np.nan, np.inf, -np.inf], 2 * ROWS)
    x.step[np.arange(2 * ROWS), rng.integers(1, 8, 2 * ROWS)] = odd
    return x


@dataclass(frozen=True, kw_only=True)
class LineFamily(Family):
    """A family of line searches; five in all, so the quick tests have them all."""

    all_refused: bool = False  # otherwise some rows are taken and some refused: else the family tests little


LINES = {
    "accepted_at_random": LineFamily(draw=accepted_at_random, quick=True),
    "accepted_once": LineFamily(draw=accepted_once, quick=True),
    "never_accepted": LineFamily(draw=never_accepted, quick=True, all_refused=True),
    "overflowing": LineFamily(draw=overflowing, quick=True),
    "step_not_finite": LineFamily(draw=step_not_finite, quick=True, all_refused=True),
}

FRACTION = 1e-6  # relative: ten products with the rounded root of one half, eps32 each
POINT = 2 * EPS32  # of |theta| + |step|: one product and one sum, which XLA may fuse into one rounding


@jax.jit
@jax.vmap
def search(theta: jax.Array, step: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    def accept(x: jax.Array) -> jax.Array:
        return table[jnp.round(-2.0 * jnp.log2(x[0])).astype(jnp.int32)]

    return solvers.backtrack(theta, step, accept)


@pytest.mark.parametrize("family", parameters(LINES))
def test_backtrack(family: str):
    """The first acceptable trial, or the old parameters bit for bit."""
    theta, step, table = LINES[family].draw(generator(family))
    new, fraction = (np.asarray(x) for x in search(*(jnp.asarray(x) for x in (theta, step, table))))
    with np.errstate(over="ignore", invalid="ignore"):
        trials = theta[:, None, :] + FRACTIONS[None, :, None] * step[:, None, :]
    good = np.isfinite(trials).all(2) & table[:, :TRIALS]
    first = np.where(good.any(1), good.argmax(1), -1)
    np.testing.assert_allclose(fraction, np.where(first >= 0, FRACTIONS[first], 0.0), rtol=FRACTION)
    refused = fraction == 0
    assert refused.all() if LINES[family].all_refused else 0 < refused.mean() < 1
    assert same_bits(new, theta)[refused].all()
    assert np.isfinite(new).all()
    taken = ~refused
    expected = trials[taken, first[taken]].astype(np.float64)
    size = np.abs(theta[taken].astype(np.float64)) + np.abs(step[taken])
    assert (np.abs(new[taken] - expected) <= POINT * size + TINY32).all()


def odd_bits(x: Any, xp: Any) -> Any:
    """Return a value that changes if one bit of one number does."""
    return (xp.sum(x.view(np.uint32), -1, dtype=np.uint32) >> np.uint32(2)) & np.uint32(1) == np.uint32(1)


def test_the_parameters_returned_are_those_accepted():
    """They agree bit for bit, or the bounds would have been checked at another point."""
    rng = generator("bits")
    theta, step = rng.standard_normal((2, 2 * ROWS, 50)).astype(np.float32)
    search_bits = jax.jit(jax.vmap(lambda t, s: solvers.backtrack(t, s, lambda x: odd_bits(x, jnp))))
    new, fraction = (np.asarray(x) for x in search_bits(jnp.asarray(theta), jnp.asarray(step)))
    taken = fraction > 0
    assert len(np.unique(fraction)) > 8
    assert odd_bits(new, np)[taken].all()
