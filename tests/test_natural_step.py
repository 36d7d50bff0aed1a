"""The natural-gradient step: inside the trust region and no worse, or every bit of the parameters as before."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import (
    DIM,
    FRACTIONS,
    ROWS,
    TRIALS,
    Family,
    active,
    generator,
    parameters,
    powers,
    radii,
    same_bits,
    symmetric,
)
from gpi.core import solvers

SLACK = 1.5
LEAVES = {"bias": (7,), "scale": (), "weight": (4, 6)}  # 32 numbers


class Steps(NamedTuple):
    """Rows of problems around theta_k, with d = theta - theta_k and y = J d.

    The policy is y + bend y², the divergence ½ pi'H pi + rise |pi|⁴ and the objective g'd - ½ d'Qd. `spoil` holds what
    multiplies and is added to both; the objective is NaN for |d| above `far`, and from zero to `near`, both excluded.
    """

    theta: dict[str, Any]
    g: Any
    Q: Any
    J: Any
    H: Any
    bend: Any
    rise: Any
    delta: Any
    far: Any
    near: Any
    spoil: Any  # objective: factor, term; divergence: factor, term
    allow: Any  # whether a step may be accepted at all


def join(theta: dict[str, Any]) -> jax.Array:
    return jnp.concatenate([theta[name].reshape(-1) for name in LEAVES])


def split(rows: np.ndarray) -> dict[str, np.ndarray]:
    cuts = np.cumsum([int(np.prod(shape)) for shape in LEAVES.values()])[:-1]
    parts = np.split(rows, cuts, axis=1)
    return {name: part.reshape(-1, *LEAVES[name]) for name, part in zip(LEAVES, parts, strict=True)}


@jax.jit
@jax.vmap
def take_step(p: Steps) -> tuple[dict[str, jax.Array], jax.Array]:
    def objective(theta: dict[str, jax.Array]) -> jax.Array:
        d = join(theta) - join(p.theta)
        length = jnp.sqrt(jax.lax.stop_gradient(d @ d))
        value = (p.g @ d - 0.5 * (d @ (p.Q @ d))) * p.spoil[0] + p.spoil[1]
        return jnp.where((length > p.far) | ((length > 0.0) & (length < p.near)), jnp.nan, value)

    def policy(theta: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        y = p.J @ (join(theta) - join(p.theta))
        pi = y + p.bend * y * y
        return pi[:20], {"rest": pi[20:]}

    def divergence(pi: tuple[jax.Array, dict[str, jax.Array]]) -> jax.Array:
        x = jnp.concatenate([pi[0], pi[1]["rest"]])
        return (0.5 * (x @ (p.H @ x)) + p.rise * (x @ x) ** 2) * p.spoil[2] + p.spoil[3]

    start = objective(p.theta)

    def accept(theta: dict[str, jax.Array]) -> jax.Array:
        inside = divergence(policy(theta)) <= SLACK * p.delta
        return inside & (objective(theta) >= start) & p.allow

    direction = solvers.natural_direction(objective, policy, divergence, p.theta, p.delta)
    step = solvers.take_step(p.theta, direction, accept)
    return step.theta, jnp.where(step.finite, step.fraction, jnp.nan)


def steps(rng: np.random.Generator, H: np.ndarray, **changes: Any) -> Steps:
    """Return a linear objective and random J; parameters are of order one, some zero of either sign or subnormal."""
    on = active(rng)
    theta = np.where(
        rng.random((ROWS, DIM)) < 0.8,
        rng.standard_normal((ROWS, DIM)),
        rng.choice([0.0, -0.0, 1e-40], (ROWS, DIM)),
    )
    case = Steps(
        theta=split(theta.astype(np.float32)),
        g=on * rng.standard_normal((ROWS, DIM)),
        Q=np.zeros((ROWS, DIM, DIM)),
        J=symmetric(rng, rng.choice([-1.0, 1.0], (ROWS, DIM)) * rng.uniform(0.7, 1.4, (ROWS, DIM)), on),
        H=H,
        bend=np.zeros(ROWS),
        rise=np.zeros(ROWS),
        delta=radii(rng),
        far=np.full(ROWS, np.inf),
        near=np.zeros(ROWS),
        spoil=np.tile([1.0, 0.0, 1.0, 0.0], (ROWS, 1)),
        allow=np.ones(ROWS, bool),
    )._replace(**changes)
    cast = {name: np.asarray(x, np.float32) for name, x in case._asdict().items() if name not in ("theta", "allow")}
    return case._replace(**cast)


def metric(rng: np.random.Generator) -> np.ndarray:
    """Return a positive H, in random directions."""
    return symmetric(rng, rng.uniform(0.5, 2, (ROWS, DIM)), np.ones((ROWS, DIM), bool))


def spoiled(column: int, value: np.ndarray | float) -> np.ndarray:
    spoil = np.tile([1.0, 0.0, 1.0, 0.0], (ROWS, 1))
    spoil[:, column] = value
    return spoil


def full_step(p: Steps) -> np.ndarray:
    """Return the whole step, by a direct solver in float64."""
    J, H, g = (np.asarray(x, np.float64) for x in (p.J, p.H, p.g))
    F = J.swapaxes(1, 2) @ H @ J + solvers.DAMPING * np.eye(DIM)
    v = np.linalg.solve(F, g[:, :, None])[:, :, 0]
    return np.sqrt(2 * p.delta.astype(np.float64) / np.einsum("ni,nij,nj->n", v, F, v))[:, None] * v


def positive(rng: np.random.Generator) -> Steps:
    return steps(rng, metric(rng))


def curved(rng: np.random.Generator) -> Steps:
    """Objective, policy and divergence curve away from their models: steps have to be shortened."""
    Q = symmetric(rng, rng.standard_normal((ROWS, DIM)) * powers(rng, 0, 4, (ROWS, 1)), np.ones((ROWS, DIM), bool))
    bend, rise = rng.uniform(-5, 5, ROWS), powers(rng, -2, 6, ROWS)
    return steps(rng, metric(rng), Q=Q, bend=bend, rise=rise)


def singular_fisher(rng: np.random.Generator) -> Steps:
    """H of any rank, zero included."""
    keep = rng.random((ROWS, DIM)) < rng.choice([0.0, 0.3, 0.8], (ROWS, 1))
    return steps(rng, symmetric(rng, keep * powers(rng, -6, 4, (ROWS, DIM)), np.ones((ROWS, DIM), bool)))


def indefinite_fisher(rng: np.random.Generator) -> Steps:
    """An indefinite H, not a true divergence; some negative curvatures cancel the damping, exactly or nearly."""
    values = rng.standard_normal((ROWS, DIM)) * powers(rng, -3, 2, (ROWS, 1))
    values = np.where(rng.random((ROWS, 1)) < 0.3, -solvers.DAMPING, values)
    J = np.tile(np.eye(DIM), (ROWS, 1, 1))
    return steps(rng, symmetric(rng, values, np.ones((ROWS, DIM), bool)), J=J)


def gradients(rng: np.random.Generator) -> Steps:
    """No gradient, gradients around 1e-20 and 1e20, whose squares are beyond float32, and those between.

    The largest come with an H of zero: there, v'Fv overflows before g'g does.
    """
    ranges = ((-21, -19, 200), (17, 21, 200), (-12, 16, 400))
    scale = np.concatenate([np.zeros(200), *(powers(rng, *r) for r in ranges)])
    p = steps(rng, metric(rng))
    p.H[400:600] = 0
    return p._replace(g=(p.g * scale[:, None]).astype(np.float32))


def spoiled_objective(rng: np.random.Generator) -> Steps:
    """NaN as a value with a gradient, or NaN and infinity in both."""
    spoil = np.where(rng.random((ROWS, 1)) < 0.5, spoiled(1, np.nan), spoiled(0, rng.choice([np.nan, np.inf], ROWS)))
    return steps(rng, metric(rng), spoil=spoil)


def spoiled_divergence(rng: np.random.Generator) -> Steps:
    term = spoiled(3, rng.choice([np.nan, np.inf], ROWS))
    spoil = np.where(rng.random((ROWS, 1)) < 0.5, term, spoiled(2, rng.choice([np.nan, np.inf, -np.inf], ROWS)))
    return steps(rng, metric(rng), spoil=spoil)


def infinite_objective(rng: np.random.Generator) -> Steps:
    """Infinite everywhere but with a gradient: no step can be worse, and the trust region still binds."""
    return steps(rng, metric(rng), spoil=spoiled(1, rng.choice([np.inf, -np.inf], ROWS)), rise=powers(rng, -2, 6, ROWS))


def nan_on_the_way(rng: np.random.Generator) -> Steps:
    """NaN beyond some length, up to some length, or both."""
    p = steps(rng, metric(rng))
    length = np.linalg.norm(full_step(p), axis=1)
    u = 2.0 ** (-0.5 * rng.uniform(-1, TRIALS + 1, ROWS))
    far = np.where(rng.random(ROWS) < 0.8, u, np.inf) * length
    near = np.where(rng.random(ROWS) < 0.5, 2.0 ** (-0.5 * rng.uniform(-1, TRIALS + 1, ROWS)), 0.0) * length
    return p._replace(far=far.astype(np.float32), near=near.astype(np.float32))


def never_allowed(rng: np.random.Generator) -> Steps:
    return steps(rng, metric(rng), allow=np.zeros(ROWS, bool))


def no_radius(rng: np.random.Generator) -> Steps:
    return steps(rng, metric(rng), delta=rng.choice([np.nan, -1.0, -1e-3, 0.0, np.inf], ROWS))


@dataclass(frozen=True, kw_only=True)
class StepFamily(Family):
    """A family of steps, and its known properties."""

    answer: Literal["refused", "some", "most", "known"]
    """Which rows move: none; some and not others; more than nine in ten; or a direct solver says which, and where."""
    every_length: bool = False  # at least 8 of the 11 trials are accepted somewhere


STEPS = {
    "positive": StepFamily(draw=positive, quick=True, answer="known"),
    "curved": StepFamily(draw=curved, quick=True, answer="most", every_length=True),
    "indefinite_fisher": StepFamily(draw=indefinite_fisher, quick=True, answer="some"),
    "gradients": StepFamily(draw=gradients, quick=True, answer="known"),
    "spoiled_objective": StepFamily(draw=spoiled_objective, quick=True, answer="refused"),
    "singular_fisher": StepFamily(draw=singular_fisher, answer="most"),
    "spoiled_divergence": StepFamily(draw=spoiled_divergence, answer="refused"),
    "infinite_objective": StepFamily(draw=infinite_objective, answer="most", every_length=True),
    "nan_on_the_way": StepFamily(draw=nan_on_the_way, answer="known"),
    "never_allowed": StepFamily(draw=never_allowed, answer="refused"),
    "no_radius": StepFamily(draw=no_radius, answer="refused"),
}

FRACTION = 1e-6  # relative: ten products with the rounded root of one half, eps32 each
SIGNS = 1e-5  # of the sum of the terms without their signs: a hundred eps32, for sums of 32² products
STEP = 1e-4  # of the whole step: CG stops at a residual of 1e-5, times a condition number of at most 16
EDGE = 1e-4  # a trial this near to a boundary may fall on either side


@pytest.mark.parametrize("family", parameters(STEPS))
def test_natural_step(family: str):
    """Accepted steps are inside the trust region and no worse; all others leave every bit of the parameters."""
    p = STEPS[family].draw(generator(family))
    new, fraction = take_step(jax.tree.map(jnp.asarray, p))
    fraction = np.asarray(fraction)
    assert {name: (x.shape, x.dtype) for name, x in new.items()} == {n: (x.shape, x.dtype) for n, x in p.theta.items()}
    assert all(np.isfinite(np.asarray(x)).all() for x in new.values())
    with np.errstate(invalid="ignore"):
        gradient = p.g * p.spoil[:, :1]
    np.testing.assert_array_equal(np.isnan(fraction), ~np.isfinite(gradient).all(1))
    refused = ~(fraction > 0)
    for name, old in p.theta.items():
        assert same_bits(np.asarray(new[name]), old)[refused].all()
    taken = ~refused
    assert np.isclose(fraction[taken, None], FRACTIONS[None, :], rtol=FRACTION).any(1).all()
    if STEPS[family].answer == "refused":
        assert refused.all()
        return

    rows = [np.concatenate([np.asarray(x[n], np.float64).reshape(ROWS, -1) for n in LEAVES], 1) for x in (new, p.theta)]
    d = rows[0] - rows[1]
    g, Q, J, H = (np.asarray(x, np.float64) for x in (p.g, p.Q, p.J, p.H))
    length = np.linalg.norm(d, axis=1)
    assert (length > 0)[taken].all(), "accepted, and not a step"
    gain = (g * d).sum(1) - 0.5 * np.einsum("ni,nij,nj->n", d, Q, d)
    size = np.abs(g * d).sum(1) + np.einsum("ni,nij,nj->n", np.abs(d), np.abs(Q), np.abs(d))
    assert (gain >= -SIGNS * size)[taken].all()
    y = np.einsum("nij,nj->ni", J, d)
    x = y + p.bend[:, None] * y * y
    kl = 0.5 * np.einsum("ni,nij,nj->n", x, H, x) + p.rise * (x * x).sum(1) ** 2
    size = SLACK * p.delta + np.einsum("ni,nij,nj->n", np.abs(x), np.abs(H), np.abs(x))
    assert (kl <= SLACK * p.delta + SIGNS * size)[taken].all()
    assert (length <= p.far * (1 + SIGNS))[taken].all() and (length >= p.near * (1 - SIGNS))[taken].all()
    check_family(family, p, d, fraction)


def check_family(family: str, p: Steps, d: np.ndarray, fraction: np.ndarray) -> None:
    """Check the known properties of a family: how many of its rows move, how far, and where to."""
    moving, answer = fraction > 0, STEPS[family].answer
    if answer == "some":
        assert 0.1 < moving.mean() < 0.9, "the family tests little"
    elif answer == "most":
        assert moving.mean() > 0.9, "the family tests little"
    if STEPS[family].every_length:
        assert len(np.unique(fraction)) >= 8, "lines of every length"
    if answer != "known":
        return
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = full_step(p)
    if family == "gradients":
        assert not moving[:200].any(), "a step without a gradient"
    expected, known = expected_fractions(family, p, np.linalg.norm(whole, axis=1))
    np.testing.assert_allclose(fraction[known], expected[known], rtol=FRACTION)
    error = np.linalg.norm(d - fraction[:, None] * whole, axis=1)
    assert (error <= STEP * np.linalg.norm(whole, axis=1) + 1e-6)[known].all()


def expected_fractions(family: str, p: Steps, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fraction that each row should take, and for which rows this is known."""
    if family == "gradients":  # those whose squares are beyond float32 are only to be finite and inside the region
        return np.ones(ROWS), np.arange(ROWS) >= 600
    if family != "nan_on_the_way":
        return np.ones(ROWS), np.ones(ROWS, bool)
    lengths = length[:, None] * FRACTIONS[None, :]
    good = (lengths <= p.far[:, None]) & (lengths >= p.near[:, None])
    expected = np.where(good.any(1), FRACTIONS[good.argmax(1)], 0.0)
    edges = np.stack([p.far, p.near])[:, :, None]
    known = np.array(~np.isclose(lengths[None], edges, rtol=EDGE).any(axis=(0, 2)))
    assert (expected == 0).any() and (expected == 1).any() and known.mean() > 0.9
    return expected, known
