"""The solvers cannot fail: 10,000 cases each of the VMPO temperature, conjugate gradients and the two line searches."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from gpi.core import objectives, solvers

EPS32, TINY32 = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
Draw = Callable[[np.random.Generator], Any]


def generator(family: str) -> np.random.Generator:
    """Its own random numbers for every family, whatever the others draw."""
    return np.random.default_rng(list(family.encode()))


def powers(rng: np.random.Generator, low: float, high: float, shape: Any) -> np.ndarray:
    """Random numbers of every magnitude from 10^low to 10^high."""
    return 10.0 ** rng.uniform(low, high, shape)


# --- the temperature of VMPO's target -----------------------------------------------------------------------------

ROWS, WIDTH = 1000, 256  # of every one of ten families
COLUMNS = np.arange(WIDTH)[None, :]


class Targets(NamedTuple):
    """Rows of advantages, probabilities (zero where padded) and KL radii, all of them float32 numbers in float64."""

    adv: np.ndarray
    base: np.ndarray
    delta: np.ndarray


def targets(adv: np.ndarray, mass: np.ndarray, delta: np.ndarray) -> Targets:
    base = (mass / mass.sum(1, keepdims=True)).astype(np.float32)
    return Targets(*(x.astype(np.float32).astype(np.float64) for x in (adv, base, delta)))


def some(rng: np.random.Generator, least: int = 1) -> np.ndarray:
    """Which columns hold samples: from `least` to all of them, small numbers as often as large ones."""
    size = np.floor(np.exp(rng.uniform(np.log(least), np.log(WIDTH + 1), (ROWS, 1))))
    return size > COLUMNS


def radii(rng: np.random.Generator) -> np.ndarray:
    return powers(rng, -4, -1, ROWS)


def normal(rng: np.random.Generator) -> Targets:
    return targets(rng.standard_normal((ROWS, WIDTH)), some(rng) * rng.uniform(0.2, 1, (ROWS, WIDTH)), radii(rng))


def two_samples(rng: np.random.Generator) -> Targets:
    """Of equal probability, they attain the bound on the temperature as delta falls."""
    mass = (COLUMNS < 2) * np.where(rng.random((ROWS, 1)) < 0.5, 1.0, rng.uniform(1e-3, 1, (ROWS, WIDTH)))
    return targets(rng.standard_normal((ROWS, WIDTH)), mass, radii(rng))


def tied(rng: np.random.Generator, fraction: np.ndarray, delta: np.ndarray) -> Targets:
    """A probability `fraction` tied at the maximum, the rest below."""
    samples = some(rng, 2)
    top = samples & (np.maximum(1, samples.sum(1, keepdims=True) // 2) > COLUMNS)
    raw = rng.uniform(0.5, 1, (ROWS, WIDTH))
    share = [np.where(part, raw, 0) / (raw * part).sum(1, keepdims=True) for part in (top, samples & ~top)]
    mass = fraction[:, None] * share[0] + (1 - fraction[:, None]) * share[1]
    adv = np.where(top, 1.0, 1.0 - powers(rng, -2, 1, (ROWS, WIDTH)))
    order = rng.permuted(np.broadcast_to(COLUMNS, (ROWS, WIDTH)), axis=1)
    return targets(np.take_along_axis(adv, order, 1), np.take_along_axis(mass, order, 1), delta)


def ties_at_saturation(rng: np.random.Generator) -> Targets:
    """-log p = delta (1 + s), s from -1/2 to 1/2 and as small as 1e-6: a root that escapes to zero, or is not there."""
    delta = radii(rng)
    return tied(rng, np.exp(-delta * (1 + rng.choice([-0.5, 0.5], ROWS) * powers(rng, -6, 0, ROWS))), delta)


def ties(rng: np.random.Generator) -> Targets:
    """Ties of any size, from a probability of 1e-6 to all but 1e-6."""
    fraction = np.where(rng.random(ROWS) < 0.5, rng.uniform(0.01, 0.99, ROWS), powers(rng, -6, -2, ROWS))
    return tied(rng, np.where(rng.random(ROWS) < 0.3, 1 - powers(rng, -6, -2, ROWS), fraction), radii(rng))


def equal(rng: np.random.Generator) -> Targets:
    """One value, of any scale and sign or zero; the padding holds others."""
    samples = some(rng)
    value = rng.choice([-1.0, 0.0, 1.0], (ROWS, 1)) * powers(rng, -30, 30, (ROWS, 1))
    adv = np.where(samples, value, powers(rng, -30, 30, (ROWS, WIDTH)))
    return targets(adv, samples * rng.uniform(0.1, 1, (ROWS, WIDTH)), radii(rng))


def spike(rng: np.random.Generator) -> Targets:
    """A single sample above or below all others, which are equal or nearly so."""
    adv = rng.standard_normal((ROWS, WIDTH)) * rng.choice([0.0, 1e-6, 1e-3], (ROWS, 1))
    adv[:, 0] = rng.choice([-1.0, 1.0], ROWS) * powers(rng, -1, 3, ROWS)
    mass = some(rng, 2) * rng.uniform(0.5, 1, (ROWS, WIDTH))
    mass[:, 0] *= powers(rng, -8, 1, ROWS)
    return targets(adv, mass, radii(rng))


def cauchy(rng: np.random.Generator) -> Targets:
    adv = rng.standard_cauchy((ROWS, WIDTH)) * powers(rng, -20, 20, (ROWS, 1))
    return targets(adv, some(rng) * rng.uniform(0.1, 1, (ROWS, WIDTH)), radii(rng))


def scales(rng: np.random.Generator) -> Targets:
    """From 1e-30 to 1e30, some with a mean a thousand times their deviation."""
    adv = rng.standard_normal((ROWS, WIDTH)) + rng.choice([0.0, -1e3, 1e3], (ROWS, 1))
    return targets(adv * powers(rng, -30, 30, (ROWS, 1)), some(rng).astype(float), radii(rng))


def zero_ratios(rng: np.random.Generator) -> Targets:
    """Samples of probability zero have the best, the worst, or no advantage at all."""
    samples = some(rng)
    none = rng.random((ROWS, WIDTH)) < rng.uniform(0, 1, (ROWS, 1))
    none[:, 0] = False
    odd = rng.choice([np.nan, np.inf, -np.inf, 1e30, -1e30, 10.0, -10.0], (ROWS, WIDTH))
    adv = np.where(none | ~samples, odd, rng.standard_normal((ROWS, WIDTH)))
    return targets(adv, samples & ~none, radii(rng))


def huge_ratios(rng: np.random.Generator) -> Targets:
    """Ratios from e^-20 to e^20, the clamp's; the largest may have any advantage."""
    mass = some(rng) * np.exp(rng.uniform(-20, 20, (ROWS, WIDTH)))
    return targets(rng.standard_normal((ROWS, WIDTH)), mass, radii(rng))


def outliers(rng: np.random.Generator) -> Targets:
    """One disastrous sample, up to 1e12 times the deviation of the others: beside it they look tied."""
    adv = rng.standard_normal((ROWS, WIDTH))
    adv[:, 0] = -powers(rng, 3, 12, ROWS)
    return targets(adv * powers(rng, -20, 20, (ROWS, 1)), some(rng, 3).astype(float), radii(rng))


TARGETS: dict[str, Draw] = {
    f.__name__: f
    for f in (normal, two_samples, ties_at_saturation, ties, equal, spike, cauchy, scales, zero_ratios, huge_ratios)
} | {"outliers": outliers}


class Roots(NamedTuple):
    """The reference's answer, a row each: log(lambda*/spread), -inf where even cold targets keep inside the radius."""

    log_lam: np.ndarray
    slope: np.ndarray  # of KL, at the root, with minus log lambda: the variance of A/lambda under the target
    size: np.ndarray  # of the terms whose difference is KL: rounding is relative to them


def tilt(gap: np.ndarray, base: np.ndarray, log_lam: float) -> tuple[float, float, float]:
    """KL(psi‖psi_k) at a temperature in units of the spread, its slope and size.

    A sum of terms w log w - w + 1, none of them negative: unlike ours it does not cancel.
    """
    x = gap * np.exp(-log_lam)
    log_z = np.log(base @ np.exp(x))
    t = x - log_z
    w = np.exp(t)
    mean = base @ (w * t)
    return base @ (t * w - np.expm1(t)), base @ (w * (t - mean) ** 2), abs(base @ (w * x)) + abs(log_z)


@functools.cache
def target_case(family: str) -> tuple[Targets, np.ndarray, np.ndarray, Roots]:
    """The cases, their gaps to the best in units of the spread, their spreads, and the reference's roots."""
    case = TARGETS[family](generator(family))
    supported = case.base > 0
    best = np.where(supported, case.adv, -np.inf).max(1)
    spread = best - np.where(supported, case.adv, np.inf).min(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.where(supported & (spread > 0)[:, None], (case.adv - best[:, None]) / spread[:, None], 0.0)
    rows = [exact_root(g[s], b[s], d) for g, b, s, d in zip(gap, case.base, supported, case.delta, strict=True)]
    return case, gap, spread, Roots(*(np.array(column) for column in zip(*rows, strict=True)))


def exact_root(gap: np.ndarray, base: np.ndarray, delta: float) -> tuple[float, float, float]:
    """Brent's method in log lambda, in float64, on a bracket far wider than ours."""
    base = base / base.sum()
    with np.errstate(under="ignore"):
        if tilt(gap, base, -50.0)[0] <= delta:
            return -np.inf, 0.0, 0.0
        root: Any = scipy.optimize.brentq(lambda s: tilt(gap, base, s)[0] - delta, -50.0, 10.0, xtol=1e-14)
        return (float(root), *tilt(gap, base, root)[1:])


SOLVE = jax.jit(jax.vmap(objectives.target_weights))


def solve_targets(case: Targets, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Our weights and temperatures, of 1,000 cases in one call."""
    base = case.base if dtype == np.float32 else case.base / case.base.sum(1, keepdims=True)
    w, lam = SOLVE(*(jnp.asarray(x, dtype) for x in (case.adv, base, case.delta)))
    assert w.dtype == lam.dtype == dtype
    return np.asarray(w, np.float64), np.asarray(lam, np.float64)


def lowest(delta: np.ndarray) -> np.ndarray:
    """The smallest log(lambda/spread) that we consider: e^20 below the bound of Hoeffding's lemma."""
    return -0.5 * np.log(8 * delta) - 20


def divergence_of(w: np.ndarray, base: np.ndarray) -> np.ndarray:
    """KL(psi‖psi_k) of given weights, in float64."""
    base = base / base.sum(1, keepdims=True)
    w = w / (base * w).sum(1, keepdims=True)
    return (base * (w * np.log(np.where(w > 0, w, 1.0)) - w + 1)).sum(1)


@pytest.mark.parametrize("family", TARGETS)
def test_target_weights_of_float32(family: str):
    """What training runs. The tolerance is the rounding of KL's two terms: at the root they cancel down to delta."""
    case, gap, spread, roots = target_case(family)
    w, lam = solve_targets(case, np.float32)
    assert np.isfinite(w).all() and (w >= 0).all()
    assert np.isfinite(lam).all() and (lam >= 0).all()
    np.testing.assert_allclose((case.base * w).sum(1), 1.0, rtol=4 * EPS32)
    flat = ~(spread > 0)
    np.testing.assert_array_equal(w[flat], 1.0)
    np.testing.assert_array_equal(lam[flat], 0.0)

    tolerance = 2 * EPS32 * (1 + roots.size)
    kl = divergence_of(w, case.base)
    assert (kl <= case.delta * (1 + 1e-6) + tolerance).all()
    saturated = roots.log_lam < lowest(case.delta)
    assert (np.abs(kl - case.delta) <= 1e-5 * case.delta + tolerance)[~saturated].all(), "the radius is not used"
    with np.errstate(divide="ignore", invalid="ignore"):
        log_lam = np.log(lam / spread)
        coldest = np.abs(log_lam - lowest(case.delta)) < 1e-5
        # Within rounding of saturation, any temperature that is cold enough gives the same target.
        assert (coldest | (np.abs(kl - case.delta) <= tolerance))[saturated & ~flat].all()

        settled = ~saturated & (lam > TINY32) & (tolerance < 0.02 * roots.slope)
        error = np.abs(log_lam - roots.log_lam)[settled]
        assert (error <= 4e-6 + (tolerance / roots.slope)[settled]).all()
        # The weights belong to that temperature.
        x = gap * np.exp(-log_lam[:, None])
        e = np.exp(x)
        expected = e / (case.base * e).sum(1, keepdims=True)
    rows = ~flat & (lam > TINY32)
    relative = 4 * EPS32 * (1 + np.abs(x) + roots.size[:, None])
    assert (np.abs(w - expected) <= relative * expected + 1e-25)[rows].all()  # e^-88 underflows, before division by Z


@pytest.mark.parametrize("family", TARGETS)
def test_target_weights_of_float64(family: str):
    """Our method without rounding, against a bracketed root solve: 1e-8 where KL depends on the temperature."""
    case, gap, spread, roots = target_case(family)
    with jax.enable_x64(True):
        w, lam = solve_targets(case, np.float64)
    flat = ~(spread > 0)
    saturated = ~flat & (roots.log_lam < lowest(case.delta))
    assert np.isfinite(w).all() and (w >= 0).all() and np.isfinite(lam).all()
    base = case.base / case.base.sum(1, keepdims=True)
    np.testing.assert_allclose((base * w).sum(1), 1.0, rtol=1e-14)
    kl = divergence_of(w, case.base)
    assert (kl <= case.delta * (1 + 1e-9)).all()
    if family.startswith("ties"):
        tied_mass = (base * (gap == 0)).sum(1)
        np.testing.assert_allclose(kl[saturated], -np.log(tied_mass)[saturated], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(lam[saturated], (spread * np.exp(lowest(case.delta)))[saturated], rtol=1e-8)

    settled = ~flat & ~saturated & (roots.slope > 1e-6)
    assert settled.sum() > {"equal": -1, "ties_at_saturation": 300}.get(family, 700), "the family tests little"
    expected = spread * np.exp(roots.log_lam)
    np.testing.assert_allclose(lam[settled], expected[settled], rtol=1e-8)
    e = np.exp(gap[settled] * np.exp(-roots.log_lam[settled, None]))
    z = (base[settled] * e).sum(1, keepdims=True)
    np.testing.assert_allclose(w[settled], e / z, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("family", [f for f in TARGETS if f != "equal"])
def test_target_temperature_to_50_digits(family: str):
    """A few cases of each family against mpmath, which confirms the float64 reference as well."""
    mp = pytest.importorskip("mpmath")
    case, _, spread, roots = target_case(family)
    settled = (roots.log_lam > lowest(case.delta)) & (roots.slope > 1e-6) & ((case.base > 0).sum(1) <= 40)
    rows = np.flatnonzero(settled)[:4]
    assert len(rows) == 4
    with jax.enable_x64(True):
        _, lam = solve_targets(case, np.float64)
    with mp.workdps(50):
        for row in rows:
            support = case.base[row] > 0
            adv, base = ([mp.mpf(float(v)) for v in x[row][support]] for x in (case.adv, case.base))
            total, best = mp.fsum(base), max(adv)
            delta = mp.mpf(float(case.delta[row]))

            def excess(s: Any, adv=adv, base=base, total=total, best=best, delta=delta) -> Any:
                x = [(a - best) / mp.exp(s) for a in adv]
                e = [b / total * mp.exp(y) for b, y in zip(base, x, strict=True)]
                z = mp.fsum(e)
                return mp.fdot(e, x) / z - mp.log(z) - delta

            near = mp.log(mp.mpf(float(spread[row]))) + mp.mpf(float(roots.log_lam[row]))
            root = mp.findroot(excess, (near - 0.01, near + 0.01), solver="anderson", tol=1e-40)
            assert abs(mp.mpf(float(lam[row])) / mp.exp(root) - 1) < 1e-8
            assert abs(near - root) < 1e-8


# --- conjugate gradients ------------------------------------------------------------------------------------------

DIM = 32  # the largest; smaller problems are padded with zeros, which every step leaves alone


def active(rng: np.random.Generator) -> np.ndarray:
    """Which coordinates a case has: the first 2 to 32."""
    return np.arange(DIM)[None, :] < rng.integers(2, DIM + 1, (ROWS, 1))


def symmetric(rng: np.random.Generator, eigenvalues: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Matrices with these eigenvalues in random directions, a product of three reflections; zero outside `on`."""
    Q = np.broadcast_to(np.eye(DIM), (ROWS, DIM, DIM))
    for _ in range(3):
        u = on * rng.standard_normal((ROWS, DIM))
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        Q = Q - 2 * (Q @ u[:, :, None]) * u[:, None, :]
    return (Q * (on * eigenvalues)[:, None, :]) @ Q.swapaxes(1, 2)


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
    """NaN or infinity in one place of F or g."""
    s = systems(rng, conditioned(rng))
    row, i, j = np.arange(ROWS), rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS)
    odd, in_F = rng.choice([np.nan, np.inf, -np.inf], ROWS), rng.random(ROWS) < 0.5
    s.F[row, i, j] = s.F[row, j, i] = np.where(in_F, odd, s.F[row, i, j])
    s.g[row, i] = np.where(in_F, s.g[row, i], odd)
    return s


SYSTEMS: dict[str, Draw] = {
    f.__name__: f
    for f in (
        well_conditioned,
        consistent,
        singular,
        ill_conditioned,
        indefinite,
        negative,
        zero_matrix,
        zero_gradient,
        tiny_and_huge,
        not_finite,
    )
}

CONJUGATE = jax.jit(jax.vmap(lambda F, g: solvers.conjugate_gradient(lambda p: F @ p, g)))


@pytest.mark.parametrize("family", SYSTEMS)
def test_conjugate_gradient(family: str):
    """Always finite, and never below where it began: g'v - ½ v'Fv rises with every step of positive curvature."""
    F, g, on = SYSTEMS[family](generator(family))
    v = np.asarray(CONJUGATE(*(jnp.asarray(x, jnp.float32) for x in (F, g))), np.float64)
    assert np.isfinite(v).all()
    np.testing.assert_array_equal(v[~on], 0.0)
    if family in ("negative", "zero_matrix", "zero_gradient", "not_finite"):
        np.testing.assert_array_equal(v, 0.0)  # no good iterate but the first
        return
    moved = (v != 0).any(1)
    size = np.abs(g * v).sum(1) + np.einsum("ni,nij,nj->n", np.abs(v), np.abs(F), np.abs(v))
    model = (g * v).sum(1) - 0.5 * np.einsum("ni,nij,nj->n", v, F, v)
    assert (model >= -1e-6 * size).all() or family == "tiny_and_huge"  # where products underflow, steps are too long
    if family in ("well_conditioned", "consistent"):
        residual = np.linalg.norm(np.einsum("nij,nj->ni", F, v) - g, axis=1)
        assert (residual <= 5e-5 * np.linalg.norm(g, axis=1)).all()
    if family == "well_conditioned":
        padded = F + np.where(on, 0.0, 1.0)[:, :, None] * np.eye(DIM)
        exact = np.linalg.solve(padded, g[:, :, None])[:, :, 0]
        assert (np.linalg.norm(v - exact, axis=1) <= 1e-4 * np.linalg.norm(exact, axis=1)).all()
    else:
        assert moved.mean() > 0.3, "the family tests little"


@pytest.mark.parametrize(
    ("diagonal", "g", "expected"),
    [
        ((2.0, -1.0), (1.0, 0.5), (5 / 7, 2.5 / 7)),  # g'g / g'Fg along g; there, the curvature turns negative
        ((1.0, -1.0), (1.0, 1.0), (0.0, 0.0)),  # none along g
        ((1.0, -1.0 + 2.0**-20), (1e14, 1e14), (0.0, 0.0)),  # finite, but its residual squared is not
        ((1e-30, 1e-30), (1e10, 0.0), (0.0, 0.0)),  # its residual is, but it is not
        ((4.0, 0.5), (1e-10, 1e-10), (0.25e-10, 2e-10)),  # small, and solved all the same
    ],
)
def test_conjugate_gradient_keeps_the_last_good_iterate(diagonal: Any, g: Any, expected: Any):
    F, b = (jnp.asarray(x, jnp.float32) for x in (diagonal, g))
    np.testing.assert_allclose(solvers.conjugate_gradient(lambda p: F * p, b), expected, rtol=1e-5)


# --- the line search ----------------------------------------------------------------------------------------------

TRIALS = solvers.BACKTRACKS + 1
FRACTIONS = (2.0 ** (-0.5 * np.arange(TRIALS))).astype(np.float32)


def same_bits(a: Any, b: Any) -> np.ndarray:
    """Row by row, by their bytes: -0.0 is not 0.0, and a subnormal number is not zero."""
    return (np.asarray(a).view(np.uint32) == np.asarray(b).view(np.uint32)).reshape(len(a), -1).all(1)


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
    """At one trial, or at one beyond the last: that is a refusal."""
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


LINES: dict[str, Draw] = {
    f.__name__: f for f in (accepted_at_random, accepted_once, never_accepted, overflowing, step_not_finite)
}


@jax.jit
@jax.vmap
def search(theta: jax.Array, step: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    def accept(x: jax.Array) -> jax.Array:
        return table[jnp.round(-2.0 * jnp.log2(x[0])).astype(jnp.int32)]

    return solvers.backtrack(theta, step, accept)


@pytest.mark.parametrize("family", LINES)
def test_backtrack(family: str):
    """The first acceptable trial, or the old parameters bit for bit."""
    theta, step, table = LINES[family](generator(family))
    new, fraction = (np.asarray(x) for x in search(*(jnp.asarray(x) for x in (theta, step, table))))
    with np.errstate(over="ignore", invalid="ignore"):
        trials = theta[:, None, :] + FRACTIONS[None, :, None] * step[:, None, :]
    good = np.isfinite(trials).all(2) & table[:, :TRIALS]
    first = np.where(good.any(1), good.argmax(1), -1)
    np.testing.assert_allclose(fraction, np.where(first >= 0, FRACTIONS[first], 0.0), rtol=1e-6)
    refused = fraction == 0
    if family in ("never_accepted", "step_not_finite"):
        assert refused.all()
    else:
        assert 0 < refused.mean() < 1
    assert same_bits(new, theta)[refused].all()
    assert np.isfinite(new).all()
    taken = ~refused
    expected = trials[taken, first[taken]].astype(np.float64)
    size = np.abs(theta[taken].astype(np.float64)) + np.abs(step[taken])
    assert (np.abs(new[taken] - expected) <= 2 * EPS32 * size + TINY32).all()


def odd_bits(x: Any, xp: Any) -> Any:
    """Something that one bit of one number changes."""
    return (xp.sum(x.view(np.uint32), -1, dtype=np.uint32) >> np.uint32(2)) & np.uint32(1) == np.uint32(1)


def test_what_is_returned_is_what_was_accepted():
    """Bit for bit, or the bounds that were checked would be another point's."""
    rng = generator("bits")
    theta, step = rng.standard_normal((2, 2 * ROWS, 50)).astype(np.float32)
    search_bits = jax.jit(jax.vmap(lambda t, s: solvers.backtrack(t, s, lambda x: odd_bits(x, jnp))))
    new, fraction = (np.asarray(x) for x in search_bits(jnp.asarray(theta), jnp.asarray(step)))
    taken = fraction > 0
    assert len(np.unique(fraction)) > 8
    assert odd_bits(new, np)[taken].all()


# --- the natural-gradient step ------------------------------------------------------------------------------------

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
    allow: Any  # what acceptance is, at best


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

    return solvers.natural_step(objective, policy, divergence, p.theta, p.delta, accept)


def steps(rng: np.random.Generator, H: np.ndarray, **changes: Any) -> Steps:
    """A linear objective and random J, parameters of order one and some of them zeros of either sign, or subnormal."""
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
    """A positive H, in random directions."""
    return symmetric(rng, rng.uniform(0.5, 2, (ROWS, DIM)), np.ones((ROWS, DIM), bool))


def spoiled(column: int, value: np.ndarray | float) -> np.ndarray:
    spoil = np.tile([1.0, 0.0, 1.0, 0.0], (ROWS, 1))
    spoil[:, column] = value
    return spoil


def full_step(p: Steps) -> np.ndarray:
    """The whole step, by a direct solver in float64."""
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
    """A divergence that is none; some of its negative curvatures undo the damping, to the last bit or nearly."""
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


STEPS: dict[str, Draw] = {
    f.__name__: f
    for f in (
        positive,
        curved,
        singular_fisher,
        indefinite_fisher,
        gradients,
        spoiled_objective,
        spoiled_divergence,
        infinite_objective,
        nan_on_the_way,
        never_allowed,
        no_radius,
    )
}
REFUSED = {"spoiled_objective", "spoiled_divergence", "never_allowed", "no_radius"}


@pytest.mark.parametrize("family", STEPS)
def test_natural_step(family: str):
    """Accepted steps are inside the trust region and no worse; all others leave every bit of the parameters."""
    p = STEPS[family](generator(family))
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
    assert np.isclose(fraction[taken, None], FRACTIONS[None, :], rtol=1e-6).any(1).all()
    if family in REFUSED:
        assert refused.all()
        return

    rows = [np.concatenate([np.asarray(x[n], np.float64).reshape(ROWS, -1) for n in LEAVES], 1) for x in (new, p.theta)]
    d = rows[0] - rows[1]
    g, Q, J, H = (np.asarray(x, np.float64) for x in (p.g, p.Q, p.J, p.H))
    length = np.linalg.norm(d, axis=1)
    assert (length > 0)[taken].all(), "accepted, and not a step"
    gain = (g * d).sum(1) - 0.5 * np.einsum("ni,nij,nj->n", d, Q, d)
    size = np.abs(g * d).sum(1) + np.einsum("ni,nij,nj->n", np.abs(d), np.abs(Q), np.abs(d))
    assert (gain >= -1e-5 * size)[taken].all()
    y = np.einsum("nij,nj->ni", J, d)
    x = y + p.bend[:, None] * y * y
    kl = 0.5 * np.einsum("ni,nij,nj->n", x, H, x) + p.rise * (x * x).sum(1) ** 2
    size = SLACK * p.delta + np.einsum("ni,nij,nj->n", np.abs(x), np.abs(H), np.abs(x))
    assert (kl <= SLACK * p.delta + 1e-5 * size)[taken].all()
    assert (length <= p.far * (1 + 1e-5))[taken].all() and (length >= p.near * (1 - 1e-5))[taken].all()
    check_family(family, p, d, fraction)


def check_family(family: str, p: Steps, d: np.ndarray, fraction: np.ndarray) -> None:
    """What is known of a family beforehand: how far it goes, and where to."""
    moving, known = fraction > 0, np.ones(ROWS, bool)
    if family == "gradients":
        assert not moving[:200].any(), "a step without a gradient"
        known = np.arange(ROWS) >= 600
    if family in ("positive", "gradients", "nan_on_the_way"):
        with np.errstate(invalid="ignore", divide="ignore"):
            whole = full_step(p)
        expected = np.ones(ROWS, np.float32)
        if family == "nan_on_the_way":
            lengths = np.linalg.norm(whole, axis=1)[:, None] * FRACTIONS[None, :]
            good = (lengths <= p.far[:, None]) & (lengths >= p.near[:, None])
            expected = np.where(good.any(1), FRACTIONS[good.argmax(1)], 0.0)
            at_the_edge = np.isclose(lengths, p.far[:, None], rtol=1e-4) | np.isclose(
                lengths, p.near[:, None], rtol=1e-4
            )
            known = ~at_the_edge.any(1)
            assert (expected == 0).any() and (expected == 1).any() and known.mean() > 0.9
        np.testing.assert_allclose(fraction[known], expected[known], rtol=1e-6)
        error = np.linalg.norm(d - fraction[:, None] * whole, axis=1)
        assert (error <= 1e-4 * np.linalg.norm(whole, axis=1) + 1e-6)[known].all()
    elif family == "indefinite_fisher":
        assert 0.1 < moving.mean() < 0.9
    else:
        assert moving.mean() > 0.9, "the family tests little"
    if family in ("curved", "infinite_objective"):
        assert len(np.unique(fraction)) >= 8, "lines of every length"
