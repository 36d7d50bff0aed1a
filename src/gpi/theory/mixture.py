"""Theorem 4: how much to reuse, and how far to step. Eq (12) in closed form, eq (10), and what reuse gains.

Stationarity of eq (12) makes the optimal mixture a straight line clipped at zero, ν_i = b·max(0, t − i). The objective
fixes the slope b and each guarantee bounds t from one side, so there is nothing to search for and no solver to trust.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypeVar

from gpi.errors import UsageError

LARGEST_B = 1_000_000  # policies to reuse are about three times as many, each with a weight to compute and print
Size = TypeVar("Size")  # a number, or an array of them


@dataclass(frozen=True)
class Mixture:
    """The mixture distribution nu over the last M policies, and its gains over on-policy updates."""

    nu: tuple[float, ...]
    """nu[i] is the probability of the data of policy k-i; all are positive."""
    M: int
    mean_age: float
    """E[i+1]: how many one-step trust regions lie between the new policy and the data."""
    eps_gpi: float
    delta_gpi: float
    ess: float
    tv_size: float
    """Total TV distance update size for every B·n samples collected."""
    ess_gain: float
    """Fraction by which `ess` exceeds the on-policy B·n."""
    tv_gain: float
    """Fraction by which `tv_size` exceeds the on-policy eps/2."""


def mixture(B: int, kappa: float, eps: float = 0.2, n: int = 1024) -> Mixture:
    """The optimal mixture distribution of Theorem 4, eq (12), with its trust region, eq (10).

    B and n are the paper's: on-policy collects N = B·n samples for each update, reuse collects n.
    kappa = 0 asks for the largest updates, kappa = 1 for the largest effective sample size.
    """
    return _describe(nu(B, kappa), B, eps, n)


def on_policy(B: int, eps: float = 0.2, n: int = 1024) -> Mixture:
    """The on-policy update, eq (2), as the special case nu = [1] with N = B·n samples."""
    return _describe((1.0,), 1, eps, _positive_integer("B", B) * _positive_integer("n", n))


def uniform_mixture(B: int, kappa: float, eps: float = 0.2, n: int = 1024) -> Mixture:
    """The optimal uniform mixture, eq (12) restricted to ν_i = 1/M; feasible for B ≤ M ≤ 2B − 1 (figure 1, right)."""
    B, kappa = _batches(B), _fraction("kappa", kappa)
    c_ess, c_tv = 1 / B - 1 / (2 * B - 1), B - (B + 1) / 2
    # Eq (12) times c_ess·c_tv: the same minimiser, and no 0/0 at B = 1.
    M = min(range(B, 2 * B), key=lambda M: kappa * c_tv / M + (1 - kappa) * c_ess * (M + 1) / 2)
    return _describe((1 / M,) * M, B, eps, n)


def nu(B: int, kappa: float) -> tuple[float, ...]:
    """The mixture distribution of Theorem 4, eq (12): ν_i ∝ max(0, t − i), without zeros."""
    B, kappa = _batches(B), _fraction("kappa", kappa)
    t = _ramp_end(B, kappa)
    nu = _ramp(t)
    # Rounding t can leave the sample size a last bit short of B·n: step inside, so that Theorem 4 holds to the letter.
    for _ in range(8):
        if 1 / _sum_of_squares(nu) >= B:
            break
        nu = _ramp(t := t * (1 + 2**-52))
    return nu


def mean_age(nu: Iterable[float]) -> float:
    """E_{i~ν}[i + 1], the quantity of eq (10) and eq (12) that the trust region divides by."""
    return math.fsum(p * (i + 1) for i, p in enumerate(nu))


def eps_gpi(nu: Iterable[float], eps: float) -> float:
    """The generalized trust region parameter, eq (10): ε / E[i + 1]."""
    return eps / mean_age(nu)


def delta(eps: Size) -> Size:
    """The KL divergence trust region, eq (15) and (16), that implies the TV trust region by Pinsker: δ = ε²/2."""
    return eps**2 / 2  # type: ignore[operator] (any type with powers)


def effective_sample_size(nu: Iterable[float], n: int) -> float:
    """The effective sample size of Theorem 4 (Definition 3): n / Σ ν_i²."""
    # 1/Σν² first: where that is at least B, ess is at least B·n for every n, in floating point too.
    return n * (1 / _sum_of_squares(nu))


def tv_update_size(nu: Iterable[float], B: int, eps: float) -> float:
    """The total TV distance update size of Theorem 4 (Definition 4): B / E[i + 1] · ε/2."""
    return B / mean_age(nu) * eps / 2


def _describe(nu: tuple[float, ...], B: int, eps: float, n: int) -> Mixture:
    B, eps, n = _positive_integer("B", B), _trust_region("eps", eps), _positive_integer("n", n)
    return Mixture(
        nu=nu,
        M=len(nu),
        mean_age=mean_age(nu),
        eps_gpi=eps_gpi(nu, eps),
        delta_gpi=delta(eps_gpi(nu, eps)),
        ess=effective_sample_size(nu, n),
        tv_size=tv_update_size(nu, B, eps),
        ess_gain=1 / _sum_of_squares(nu) / B - 1,
        tv_gain=B / mean_age(nu) - 1,
    )


def _sum_of_squares(nu: Iterable[float]) -> float:
    """Σ ν_i², the quantity of eq (12) that the effective sample size divides by."""
    return math.fsum(p * p for p in nu)


def _ramp(t: float) -> tuple[float, ...]:
    """ν_i ∝ t − i for i < t: every weight is positive, because i stops before t."""
    ramp = [t - i for i in range(math.ceil(t))]
    total = math.fsum(ramp)
    return tuple(x / total for x in ramp)


def _ramp_end(B: int, kappa: float) -> float:
    """The t of eq (12)'s solution ν_i ∝ max(0, t − i).

    With m = ⌈t⌉ weights and u = t − (m−1)/2, eq (12) is in terms of
    Σ ν_i² = 1/m + (m²−1)/(12·m·u²) and E[i+1] = (m+1)/2 − (m²−1)/(12·u).
    """
    largest = 3 * B - 2  # E[i+1] = B exactly: the largest t that keeps the total TV update size
    if kappa == 1 or B == 1:
        return float(largest)
    # Σν² = 1/B: the smallest t that keeps the effective sample size, with the smallest m that can reach it.
    m = math.ceil((4 * B - 3 + math.sqrt(16 * B**2 + 9)) / 6)
    u = math.sqrt(B * (m**2 - 1) / (12 * (m - B)))
    smallest = (m - 1) / 2 + u
    # The scaling coefficients: what each guarantee leaves to spare where the other one binds.
    c_ess = (5 * B - 2) * (B - 1) / (B * (3 * B - 2) * (3 * B - 1))
    c_tv = B - (m + 1) / 2 + (m**2 - 1) / (12 * u)
    # In between, the objective is stationary at slope b = (1−κ)·c_ess / (2κ·c_tv), for every m; then u = 1/(m·b),
    # and m is the smallest with (m+1)·m·b ≥ 2, or weight m+1 would be positive too.
    inverse_slope = 2 * kappa * c_tv / ((1 - kappa) * c_ess)
    m = max(1, math.ceil((math.sqrt(1 + 8 * inverse_slope) - 1) / 2))
    return min(max((m - 1) / 2 + inverse_slope / m, smallest), largest)


def _positive_integer(name: str, value: int) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= 1:
        return int(value)
    raise UsageError(f"{name} must be a positive integer, got {value!r}; use an integer of 1 or more")


def _batches(B: int) -> int:
    if _positive_integer("B", B) > LARGEST_B:
        raise UsageError(f"B must be at most {LARGEST_B:,}, got {B:,}; use a smaller B, the paper has 2")
    return int(B)


def _fraction(name: str, value: float) -> float:
    if isinstance(value, Real) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise UsageError(f"{name} must be in [0, 1], got {value!r}; use 0 for the largest updates, 1 for the largest batch")


def _trust_region(name: str, value: float) -> float:
    if isinstance(value, Real) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise UsageError(f"{name} must be a positive number, got {value!r}; use for example 0.2")
