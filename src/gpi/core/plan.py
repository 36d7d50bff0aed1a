"""The six algorithms as 3 improvement rules x 2 plans. No JAX here: names and numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpi.theory.mixture import mixture

Rule = Literal["ppo", "trpo", "vmpo"]
Trust = Literal["paper", "adaptive", "strict"]
TRUST: dict[str, Trust] = {name: name for name in ("paper", "adaptive", "strict")}
"""How strictly an update keeps its trust region."""

ALGORITHMS: dict[str, tuple[Rule, bool]] = {
    "ppo": ("ppo", False),
    "trpo": ("trpo", False),
    "vmpo": ("vmpo", False),
    "geppo": ("ppo", True),
    "getrpo": ("trpo", True),
    "gevmpo": ("vmpo", True),
}
"""Name of each algorithm, its improvement rule, and whether it reuses samples."""


@dataclass(frozen=True)
class Plan:
    """All that separates on-policy from generalized: the mixture, the samples per iteration, the trust region."""

    nu: tuple[float, ...]
    steps: int
    eps: float


def on_policy(B: int, n: int, eps: float) -> Plan:
    """Algorithm 1: N = B n samples of pi_k alone, trust region eps of eq (2)."""
    return Plan((1.0,), B * n, eps)


def reuse(B: int, n: int, eps: float, kappa: float) -> Plan:
    """Algorithm 2: n samples of each of the last M policies, mixture nu of eq (12), trust region eps_gpi of eq (10)."""
    best = mixture(B, kappa, eps, n)
    return Plan(best.nu, n, best.eps_gpi)


def plan(algorithm: str, B: int, n: int, eps: float, kappa: float) -> Plan:
    """The plan of an algorithm by its name."""
    _, generalized = ALGORITHMS[algorithm]
    return reuse(B, n, eps, kappa) if generalized else on_policy(B, n, eps)
