"""The six algorithms as 3 improvement rules x 2 plans. No JAX here: names and numbers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from gpi.theory.mixture import eps_gpi, nu

if TYPE_CHECKING:  # names and numbers must not start JAX
    from gpi.core.agent import Hyper
    from gpi.core.policy import Theta
    from gpi.core.sample import Buffer

TrustMode = Literal["paper", "adaptive", "strict", "keep"]
TRUST_MODES: tuple[str, ...] = get_args(TrustMode)
"""How strictly an update keeps its trust region."""


Solve = Callable[["Theta", "Buffer", "Hyper"], "Hyper"]
"""Returns the mixture and the trust region in force, from pi_k, the samples of all prior policies and those planned."""


def as_planned(theta_k: Theta, seen: Buffer, hyper: Hyper) -> Hyper:
    """Return the plan's mixture and trust region, regardless of what was measured."""
    return hyper


@dataclass(frozen=True)
class Plan:
    """All that separates on-policy from generalized: the mixture, the samples per iteration, the trust region."""

    nu: tuple[float, ...]
    steps: int
    eps: float
    solve: Solve = as_planned  # called at every update, inside the compiled program; it keeps M


def on_policy(B: int, n: int, eps: float, kappa: float) -> Plan:
    """Algorithm 1: N = B n samples of pi_k alone, trust region eps of eq (2)."""
    return Plan((1.0,), B * n, eps)


def reuse(B: int, n: int, eps: float, kappa: float) -> Plan:
    """Algorithm 2: n samples of each of the last M policies, mixture nu of eq (12), trust region eps_gpi of eq (10)."""
    weights = nu(B, kappa)
    return Plan(weights, n, eps_gpi(weights, eps))


PLANS: dict[str, Callable[[int, int, float, float], Plan]] = {"on_policy": on_policy, "reuse": reuse}
"""Functions that decide what to collect and to reuse, from B, n, eps and kappa."""


class RuleFacts(NamedTuple):
    """What an improvement rule uses and bounds: all that settings and reports know of it."""

    uses_lr: bool = False  # and `max_grad_norm`; the step of others has the length of the trust region
    bounds_kl: bool = False  # by delta, eqs (15) and (16), up to `kl_slack` times


RULE_FACTS: dict[str, RuleFacts] = {
    "ppo": RuleFacts(uses_lr=True),
    "trpo": RuleFacts(bounds_kl=True),
    "vmpo": RuleFacts(bounds_kl=True),
}
"""What each rule of `rules.RULES` declares."""


class Algorithm(NamedTuple):
    """An algorithm as a composition of parts, each named in its table."""

    rule: str  # of `rules.RULES`
    plan: str  # of `PLANS`
    critic: str = "mlp"  # of `critic.CRITICS`
    replay: int = 0  # transitions that its critic keeps beyond the M slots

    @property
    def reuses(self) -> bool:
        """Whether it is a generalized algorithm, which reuses samples of prior policies."""
        return self.plan != "on_policy"

    @property
    def facts(self) -> RuleFacts:
        """What its rule uses and bounds."""
        return RULE_FACTS[self.rule]

    @property
    def bounds(self) -> tuple[str, ...]:
        """The bounds that are the algorithm's own, the one that the guarantee rests on first."""
        first = ("penalty", "tv") if self.reuses else ("tv",)
        return (*first, "kl") if self.facts.bounds_kl else first


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
