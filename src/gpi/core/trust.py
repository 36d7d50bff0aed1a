"""How strictly an update keeps its trust region: the budget of its step, and a test that any rule's step must pass.

To add a mode: an entry of `TRUST`, and its name in `plan.TrustMode`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpi.core import objectives
from gpi.core.agent import Hyper
from gpi.core.policy import Theta, log_pi
from gpi.core.sample import Sample, mean

Test = Callable[[Theta], Bool[Array, ""]]
MARGIN = 1e-5  # relative, of strict bounds: measuring them again, rounded otherwise, must agree


class Trust(NamedTuple):
    """How strictly an update keeps its trust region."""

    budget: Callable[[Sample, Hyper], Float[Array, ""]]  # the one-step trust region
    test: Callable[[Theta, Sample, Hyper], Test] | None = None  # that a policy must pass under every rule
    kl_slack: float | None = None  # instead of the setting: the multiple of delta up to which KL is accepted
    normaliser: str = "paper"  # of `still.NORMALISING`, where `--normaliser` is auto


def fixed_budget(s: Sample, hyper: Hyper) -> Float[Array, ""]:
    """Return the one-step trust region eps_gpi of eq (10)."""
    return hyper.eps_gpi


def remaining_budget(s: Sample, hyper: Hyper) -> Float[Array, ""]:
    """Return what eq (8) leaves of eps: less twice the measured TV between pi_k and the prior policies; at least 0."""
    return jnp.maximum(hyper.eps - mean(jnp.abs(s.rho - 1.0), s.weight), 0.0)


def inside(logp: Float[Array, " S"], s: Sample, hyper: Hyper) -> Bool[Array, ""]:
    """Return whether a policy is inside eq (11), cautiously measured."""
    return objectives.cautious_penalty(logp, s) <= 0.5 * hyper.eps * (1.0 - MARGIN)


def keeps_guarantee(theta_k: Theta, s: Sample, hyper: Hyper) -> Test:
    """Return the test of eq (11) as measured, and of a surrogate of eq (7) at least as good as pi_k's.

    The worst-case decline of eq (3) rests on both. The policy was fitted to the samples that judge it, so the distance
    and the gain are the cautious ones; and pi_k's own gain is 0 but for rounding.
    """
    start = objectives.cautious_gain(log_pi(theta_k, s.obs, s.action), s)

    def holds(theta: Theta) -> Bool[Array, ""]:
        logp = log_pi(theta, s.obs, s.action)
        return inside(logp, s, hyper) & (objectives.cautious_gain(logp, s) >= start)

    return holds


TRUST: dict[str, Trust] = {
    "paper": Trust(fixed_budget),
    "adaptive": Trust(remaining_budget),
    "strict": Trust(fixed_budget, keeps_guarantee, kl_slack=1.0 - MARGIN),
    "keep": Trust(fixed_budget, keeps_guarantee, kl_slack=1.0 - MARGIN, normaliser="still"),
}
