"""VMPO's temperature, eq (17): 1,000 cases of each family against a bracketed root solve, and a few to 50 digits."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from cases import EPS32, ROWS, TINY32, Family, generator, parameters, powers, radii
from gpi.core import objectives

WIDTH = 256  # samples of a row, padding included
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
    """Draw which columns hold samples: from `least` to all of them, small numbers as often as large ones."""
    size = np.floor(np.exp(rng.uniform(np.log(least), np.log(WIDTH + 1), (ROWS, 1))))
    return size > COLUMNS


def normal(rng: np.random.Generator) -> Targets:
    return targets(rng.standard_normal((ROWS, WIDTH)), some(rng) * rng.uniform(0.2, 1, (ROWS, WIDTH)), radii(rng))


def two_samples(rng: np.random.Generator) -> Targets:
    """Two samples of equal probability reach the bound on the temperature as delta falls."""
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


@dataclass(frozen=True, kw_only=True)
class TargetFamily(Family):
    """A family of targets, and its known properties."""

    settled_rows: int = 700  # of 1,000 at least must have a root on which KL depends, or the family tests little
    ties: bool = False  # the cold target is uniform over the tied samples, so that its KL is known: -log of their mass


TARGETS = {
    "normal": TargetFamily(draw=normal, quick=True),
    "two_samples": TargetFamily(draw=two_samples, quick=True),
    # Half of the ties have more mass than e^-delta, by design: there, no temperature spends the radius.
    "ties_at_saturation": TargetFamily(draw=ties_at_saturation, quick=True, ties=True, settled_rows=300),
    # Equal advantages have no root at all: the target is pi_k.
    "equal": TargetFamily(draw=equal, quick=True, settled_rows=0),
    "zero_ratios": TargetFamily(draw=zero_ratios, quick=True),
    "ties": TargetFamily(draw=ties, ties=True),
    "spike": TargetFamily(draw=spike),
    "cauchy": TargetFamily(draw=cauchy),
    "scales": TargetFamily(draw=scales),
    "huge_ratios": TargetFamily(draw=huge_ratios),
    "outliers": TargetFamily(draw=outliers),
}

# float32, what training runs.
ROUNDING = 2 * EPS32  # of KL, relative to its two terms, which at the root cancel down to delta
LOG_LAMBDA = 4e-6  # two steps between float32 numbers of size 20, the lowest log(lambda/spread), beside that rounding
RADIUS = 1e-5  # relative: KL falls with the square of lambda, so twice the tolerance of its logarithm
STEEP = (
    0.02  # only roots that ROUNDING moves by less are compared; where KL hardly depends on lambda, any root is right
)
UNDERFLOW = 1e-25  # of a weight: e^-88 underflows in float32, and is divided by Z afterwards

# float64, the same method with rounding out of the way: 50 bisections of a bracket of 20 leave 2e-14.
LEAST_SLOPE = 1e-6  # of KL in log lambda, for a root to be compared
EXACT = 1e-8  # relative: eps of float64 over LEAST_SLOPE is 2e-10, and KL's terms are larger than one


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
    """Return the cases, their gaps to the best in units of the spread, their spreads, and the reference's roots."""
    case = TARGETS[family].draw(generator(family))
    supported = case.base > 0
    best = np.where(supported, case.adv, -np.inf).max(1)
    spread = best - np.where(supported, case.adv, np.inf).min(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.where(supported & (spread > 0)[:, None], (case.adv - best[:, None]) / spread[:, None], 0.0)
    rows = [exact_root(g[s], b[s], d) for g, b, s, d in zip(gap, case.base, supported, case.delta, strict=True)]
    return case, gap, spread, Roots(*(np.array(column) for column in zip(*rows, strict=True)))


def exact_root(gap: np.ndarray, base: np.ndarray, delta: float) -> tuple[float, float, float]:
    """Find the root by Brent's method in log lambda, in float64, on a bracket far wider than ours."""
    base = base / base.sum()
    with np.errstate(under="ignore"):
        if tilt(gap, base, -50.0)[0] <= delta:
            return -np.inf, 0.0, 0.0
        root: Any = scipy.optimize.brentq(lambda s: tilt(gap, base, s)[0] - delta, -50.0, 10.0, xtol=1e-14)
        return (float(root), *tilt(gap, base, root)[1:])


SOLVE = jax.jit(jax.vmap(objectives.target_weights))


def solve_targets(case: Targets, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return our weights and temperatures of 1,000 cases, from one call."""
    base = case.base if dtype == np.float32 else case.base / case.base.sum(1, keepdims=True)
    w, lam = SOLVE(*(jnp.asarray(x, dtype) for x in (case.adv, base, case.delta)))
    assert w.dtype == lam.dtype == dtype
    return np.asarray(w, np.float64), np.asarray(lam, np.float64)


def lowest(delta: np.ndarray) -> np.ndarray:
    """Return the smallest log(lambda/spread) that we consider: e^20 below the bound of Hoeffding's lemma."""
    return -0.5 * np.log(8 * delta) - 20


def divergence_of(w: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return KL(psi‖psi_k) of given weights, in float64."""
    base = base / base.sum(1, keepdims=True)
    w = w / (base * w).sum(1, keepdims=True)
    return (base * (w * np.log(np.where(w > 0, w, 1.0)) - w + 1)).sum(1)


@pytest.mark.parametrize("family", parameters(TARGETS))
def test_target_weights_of_float32(family: str):
    """The program that training runs: finite, normalised, inside the radius and using it, at the right temperature."""
    case, gap, spread, roots = target_case(family)
    w, lam = solve_targets(case, np.float32)
    assert np.isfinite(w).all() and (w >= 0).all()
    assert np.isfinite(lam).all() and (lam >= 0).all()
    np.testing.assert_allclose((case.base * w).sum(1), 1.0, rtol=4 * EPS32)
    flat = ~(spread > 0)
    np.testing.assert_array_equal(w[flat], 1.0)
    np.testing.assert_array_equal(lam[flat], 0.0)

    tolerance = ROUNDING * (1 + roots.size)
    kl = divergence_of(w, case.base)
    assert (kl <= case.delta * (1 + 1e-6) + tolerance).all()
    saturated = roots.log_lam < lowest(case.delta)
    assert (np.abs(kl - case.delta) <= RADIUS * case.delta + tolerance)[~saturated].all(), "the radius is not used"
    with np.errstate(divide="ignore", invalid="ignore"):
        log_lam = np.log(lam / spread)
        coldest = np.abs(log_lam - lowest(case.delta)) < 1e-5
        # Within rounding of saturation, any temperature that is cold enough gives the same target.
        assert (coldest | (np.abs(kl - case.delta) <= tolerance))[saturated & ~flat].all()

        settled = ~saturated & (lam > TINY32) & (tolerance < STEEP * roots.slope)
        error = np.abs(log_lam - roots.log_lam)[settled]
        assert (error <= LOG_LAMBDA + (tolerance / roots.slope)[settled]).all()
        # The weights belong to that temperature.
        x = gap * np.exp(-log_lam[:, None])
        e = np.exp(x)
        expected = e / (case.base * e).sum(1, keepdims=True)
    rows = ~flat & (lam > TINY32)
    relative = 4 * EPS32 * (1 + np.abs(x) + roots.size[:, None])
    assert (np.abs(w - expected) <= relative * expected + UNDERFLOW)[rows].all()


@pytest.mark.parametrize("family", parameters(TARGETS))
def test_target_weights_of_float64(family: str):
    """Our method without rounding, against a bracketed root solve."""
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
    if TARGETS[family].ties:
        tied_mass = (base * (gap == 0)).sum(1)
        np.testing.assert_allclose(kl[saturated], -np.log(tied_mass)[saturated], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(lam[saturated], (spread * np.exp(lowest(case.delta)))[saturated], rtol=EXACT)

    settled = ~flat & ~saturated & (roots.slope > LEAST_SLOPE)
    assert settled.sum() >= TARGETS[family].settled_rows, "the family tests little"
    expected = spread * np.exp(roots.log_lam)
    np.testing.assert_allclose(lam[settled], expected[settled], rtol=EXACT)
    e = np.exp(gap[settled] * np.exp(-roots.log_lam[settled, None]))
    z = (base[settled] * e).sum(1, keepdims=True)
    np.testing.assert_allclose(w[settled], e / z, rtol=EXACT, atol=1e-12)


@pytest.mark.parametrize("family", parameters({name: f for name, f in TARGETS.items() if f.settled_rows}))
def test_target_temperature_to_50_digits(family: str):
    """A few cases of each family against mpmath, which confirms the float64 reference as well."""
    mp = pytest.importorskip("mpmath")
    case, _, spread, roots = target_case(family)
    settled = (roots.log_lam > lowest(case.delta)) & (roots.slope > LEAST_SLOPE) & ((case.base > 0).sum(1) <= 40)
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
            assert abs(mp.mpf(float(lam[row])) / mp.exp(root) - 1) < EXACT
            assert abs(near - root) < EXACT
