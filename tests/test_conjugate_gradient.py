"""Conjugate gradients: finite and never below the start, whatever the matrix; solved where it can be solved."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import DIM, ROWS, Family, active, generator, parameters, powers, symmetric
from gpi.core import solvers


class Systems(NamedTuple):
    """Rows of F v = g, float32 numbers in float64."""

    F: np.ndarray
    g: np.ndarray
    on: np.ndarray


def systems(rng: np.random.Generator, eigenvalues: np.ndarray, g_scale: Any = 1.0, F_scale: Any = 1.0) -> Systems:
    on = active(rng)
    F = symmetric(rng, eigenvalues, on) * F_scale
    g = on * rng.standard_normal((ROWS, DIM)) * g_scale
    F, g = (x.astype(np.float32).astype(np.float64) for x in (F, g))
    return Systems(F, g, on)


def conditioned(rng: np.random.Generator) -> np.ndarray:
    """Eigenvalues within a factor of ten: twenty steps solve the system."""
    return rng.uniform(1, 10, (ROWS, DIM))


def well_conditioned(rng: np.random.Generator) -> Systems:
    return systems(rng, conditioned(rng), powers(rng, -12, 12, (ROWS, 1)), powers(rng, -2, 2, (ROWS, 1, 1)))


def consistent(rng: np.random.Generator) -> Systems:
    """Singular, but g is in the range."""
    s = systems(rng, conditioned(rng) * (rng.random((ROWS, DIM)) < 0.6))
    return s._replace(g=np.einsum("nij,nj->ni", s.F, s.g).astype(np.float32).astype(np.float64))


def singular(rng: np.random.Generator) -> Systems:
    return systems(rng, conditioned(rng) * (rng.random((ROWS, DIM)) < 0.6))


def ill_conditioned(rng: np.random.Generator) -> Systems:
    return systems(rng, powers(rng, -8, 4, (ROWS, DIM)))


def indefinite(rng: np.random.Generator) -> Systems:
    return systems(rng, rng.standard_normal((ROWS, DIM)) * powers(rng, -3, 3, (ROWS, DIM)))


def negative(rng: np.random.Generator) -> Systems:
    return systems(rng, -powers(rng, -3, 3, (ROWS, DIM)))


def zero_matrix(rng: np.random.Generator) -> Systems:
    return systems(rng, np.zeros((ROWS, DIM)))


def zero_gradient(rng: np.random.Generator) -> Systems:
    return systems(rng, powers(rng, -3, 3, (ROWS, DIM)), 0.0)


def tiny_and_huge(rng: np.random.Generator) -> Systems:
    """Gradients and matrices at both ends of float32, whose squares and quotients are beyond them."""
    extreme = rng.choice([1e-20, 1e-10, 1.0, 1e10, 1e20], (ROWS, 1)) * powers(rng, -4, 4, (ROWS, 1))
    return systems(rng, conditioned(rng), extreme, powers(rng, -35, 35, (ROWS, 1, 1)))


def not_finite(rng: np.random.Generator) -> Systems:
    """NaN or infinity in one entry of F or g."""
    s = systems(rng, conditioned(rng))
    row, i, j = np.arange(ROWS), rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS)
    odd, in_F = rng.choice([np.nan, np.inf, -np.inf], ROWS), rng.random(ROWS) < 0.5
    s.F[row, i, j] = s.F[row, j, i] = np.where(in_F, odd, s.F[row, i, j])
    s.g[row, i] = np.where(in_F, s.g[row, i], odd)
    return s


@dataclass(frozen=True, kw_only=True)
class SystemFamily(Family):
    """A family of systems, and the known properties of its answers."""

    answer: Literal["start", "better", "solved", "exact"]
    """Zero, the only good iterate; no worse than zero; F v = g; or F v = g that a direct solver confirms."""
    rises: bool = True  # the model g'v - ½ v'Fv does; not where products underflow, which makes steps too long


SYSTEMS = {
    "well_conditioned": SystemFamily(draw=well_conditioned, quick=True, answer="exact"),
    "indefinite": SystemFamily(draw=indefinite, quick=True, answer="better"),
    "zero_gradient": SystemFamily(draw=zero_gradient, quick=True, answer="start"),
    "tiny_and_huge": SystemFamily(draw=tiny_and_huge, quick=True, answer="better", rises=False),
    "not_finite": SystemFamily(draw=not_finite, quick=True, answer="start"),
    "consistent": SystemFamily(draw=consistent, answer="solved"),
    "singular": SystemFamily(draw=singular, answer="better"),
    "ill_conditioned": SystemFamily(draw=ill_conditioned, answer="better"),
    "negative": SystemFamily(draw=negative, answer="start"),
    "zero_matrix": SystemFamily(draw=zero_matrix, answer="start"),
}

RISE = 1e-6  # of the sum of the model's terms without their signs: eight times float32's eps
RESIDUAL = 5e-5  # of |g|: CG stops at 1e-5, the root of CG_TOLERANCE, of a residual that drifts from the true one
ERROR = 1e-4  # of |v|: the residual times a condition number of ten, which random directions do not attain
MOVING = 0.3  # of the rows at least must leave zero, or the family tests little


CONJUGATE = jax.jit(jax.vmap(lambda F, g: solvers.conjugate_gradient(lambda p: F @ p, g)))


@pytest.mark.parametrize("family", parameters(SYSTEMS))
def test_conjugate_gradient(family: str):
    """Always finite, and never below where it began: g'v - ½ v'Fv rises with every step of positive curvature."""
    known = SYSTEMS[family]
    F, g, on = known.draw(generator(family))
    v = np.asarray(CONJUGATE(*(jnp.asarray(x, jnp.float32) for x in (F, g))), np.float64)
    assert np.isfinite(v).all()
    np.testing.assert_array_equal(v[~on], 0.0)
    if known.answer == "start":
        np.testing.assert_array_equal(v, 0.0)
        return
    moved = (v != 0).any(1)
    size = np.abs(g * v).sum(1) + np.einsum("ni,nij,nj->n", np.abs(v), np.abs(F), np.abs(v))
    model = (g * v).sum(1) - 0.5 * np.einsum("ni,nij,nj->n", v, F, v)
    assert (model >= -RISE * size).all() or not known.rises
    if known.answer in ("solved", "exact"):
        residual = np.linalg.norm(np.einsum("nij,nj->ni", F, v) - g, axis=1)
        assert (residual <= RESIDUAL * np.linalg.norm(g, axis=1)).all()
    if known.answer == "exact":
        padded = F + np.where(on, 0.0, 1.0)[:, :, None] * np.eye(DIM)
        exact = np.linalg.solve(padded, g[:, :, None])[:, :, 0]
        assert (np.linalg.norm(v - exact, axis=1) <= ERROR * np.linalg.norm(exact, axis=1)).all()
    else:
        assert moved.mean() > MOVING, "the family tests little"


@pytest.mark.parametrize(
    ("diagonal", "g", "expected"),
    [
        ((2.0, -1.0), (1.0, 0.5), (5 / 7, 2.5 / 7)),  # g'g / g'Fg along g; there, the curvature turns negative
        ((1.0, -1.0), (1.0, 1.0), (0.0, 0.0)),  # none along g
        ((1.0, -1.0 + 2.0**-20), (1e14, 1e14), (0.0, 0.0)),  # finite, but its residual squared is not
        ((1e-30, 1e-30), (1e10, 0.0), (0.0, 0.0)),  # its residual is, but it is not
        ((4.0, 0.5), (1e-10, 1e-10), (0.25e-10, 2e-10)),  # small, and still solved
    ],
)
def test_conjugate_gradient_keeps_the_last_good_iterate(diagonal: Any, g: Any, expected: Any):
    F, b = (jnp.asarray(x, jnp.float32) for x in (diagonal, g))
    np.testing.assert_allclose(solvers.conjugate_gradient(lambda p: F * p, b), expected, rtol=1e-5)
