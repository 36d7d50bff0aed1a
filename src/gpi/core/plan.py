"""The six algorithms as 3 improvement rules x 2 plans. No JAX here: names and numbers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from gpi.theory.mixture import eps_gpi, nu

TrustMode = Literal["paper", "adaptive", "strict", "keep"]
TRUST_MODES: tuple[str, ...] = get_args(TrustMode)
"""How strictly an update keeps its trust region."""


@dataclass(frozen=True)
class Plan:
    """All that separates on-policy from generalized: the mixture, the samples per iteration, the trust region."""

    nu: tuple[float, ...]
    steps: int
    eps: float


def on_policy(B: int, n: int, eps: float, kappa: float) -> Plan:
    """Algorithm 1: N = B n samples of pi_k alone, trust region eps of eq (2)."""
    return Plan((1.0,), B * n, eps)


def reuse(B: int, n: int, eps: float, kappa: float) -> Plan:
    """Algorithm 2: n samples of each of the last M policies, mixture nu of eq (12), trust region eps_gpi of eq (10)."""
    weights = nu(B, kappa)
    return Plan(weights, n, eps_gpi(weights, eps))


PLANS: dict[str, Callable[[int, int, float, float], Plan]] = {"on_policy": on_policy, "reuse": reuse}
"""Functions that decide what to collect and to reuse, from B, n, eps and kappa."""


class Algorithm(NamedTuple):
    """An algorithm as a composition of parts, each named in its table."""

    rule: str  # of `rules.RULES`
    plan: str  # of `PLANS`
    critic: str = "mlp"  # of `critic.CRITICS`

    @property
    def reuses(self) -> bool:
        """Whether it is a generalized algorithm, which reuses samples of prior policies."""
        return self.plan != "on_policy"


ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm("ppo", "on_policy"),
    "trpo": Algorithm("trpo", "on_policy"),
    "vmpo": Algorithm("vmpo", "on_policy"),
    "geppo": Algorithm("ppo", "reuse"),
    "getrpo": Algorithm("trpo", "reuse"),
    "gevmpo": Algorithm("vmpo", "reuse"),
}


def plan(algorithm: str, B: int, n: int, eps: float, kappa: float) -> Plan:
    """Return the plan of an algorithm by its name."""
    return PLANS[ALGORITHMS[algorithm].plan](B, n, eps, kappa)
