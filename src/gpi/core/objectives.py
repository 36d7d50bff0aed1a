"""What each algorithm maximises, and the distances that bound it. Everything is a function of log pi(a|s)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpi.core.sample import Sample, mean

MAX_LOG_RATIO = 20.0  # exp overflows float32 at 88.7; e^20 is already far outside any trust region
BISECTIONS = 50


def ratio_to(logp: Float[Array, " S"], logp_i: Float[Array, " S"]) -> Float[Array, " S"]:
    """Return pi(a|s) / pi_{k-i}(a|s), clamped to e^±20."""
    return jnp.exp(jnp.clip(logp - logp_i, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def surrogate(logp: Float[Array, " S"], s: Sample) -> Float[Array, ""]:
    """The generalized surrogate of eqs (7) and (16), E[ratio·A]; the on-policy one of (2) and (15) when nu = [1]."""
    return mean(ratio_to(logp, s.logp_i) * s.adv, s.weight)


def cautious_gain(logp: Float[Array, " S"], s: Sample) -> Float[Array, ""]:
    """What a policy adds to the surrogate of eq (7), at least: E[(ratio - rho)·A], ratio - rho at most 1 where A > 0.

    A single action that became thousands of times likelier would otherwise outweigh what all others lost.
    """
    change = ratio_to(logp, s.logp_i) - s.rho
    return mean(jnp.minimum(change, jnp.where(s.adv > 0.0, 1.0, jnp.inf)) * s.adv, s.weight)


def gains(logp: Float[Array, " S"], s: Sample) -> Float[Array, " S"]:
    """What each sample adds to the surrogate of eq (7), without heavy tails: (ratio - rho)·A, ratio - rho within ±1."""
    return jnp.clip(ratio_to(logp, s.logp_i) - s.rho, -1.0, 1.0) * s.adv


def clipped_surrogate(logp: Float[Array, " S"], s: Sample, eps: Float[Array, ""]) -> Float[Array, ""]:
    """The GePPO objective, eq (14): E[min(ratio·A, clip(ratio, rho-eps, rho+eps)·A)]; PPO's eq (13) when rho = 1."""
    ratio = ratio_to(logp, s.logp_i)
    clipped = jnp.clip(ratio, s.rho - eps, s.rho + eps)
    return mean(jnp.minimum(ratio * s.adv, clipped * s.adv), s.weight)


def likelihood(logp: Float[Array, " S"], s: Sample, w: Float[Array, " S"]) -> Float[Array, ""]:
    """The GeVMPO objective, eq (19): E[rho·w·log pi], with baseline 1 and self-normalised; eq (18) when rho = 1.

    The baseline: w averages to 1, so `w - 1` has the same expected gradient and less variance (docs/deviations.md).
    """
    return mean(s.rho * (w - 1.0) * logp, s.weight) / mean(s.rho, s.weight)


def one_step_tv(logp: Float[Array, " S"], s: Sample) -> Float[Array, ""]:
    """The expected one-step TV distance of eqs (6) and (7), from samples: ½ E|ratio - rho|."""
    return 0.5 * mean(jnp.abs(ratio_to(logp, s.logp_i) - s.rho), s.weight)


def penalty(logp: Float[Array, " S"], s: Sample) -> Float[Array, ""]:
    """The expected TV distance to all prior policies, left side of eqs (5) and (11): ½ E|ratio - 1|."""
    return 0.5 * mean(jnp.abs(ratio_to(logp, s.logp_i) - 1.0), s.weight)


def bounded_one_step_tv(logp: Float[Array, " S"], s: Sample) -> Float[Array, ""]:
    """The expected one-step TV distance of eqs (6) and (7), from samples without heavy tails: E[(rho - ratio)+].

    ratio and rho both average to 1, so what they differ by downwards is half of E|ratio - rho|, and never above rho.
    """
    return mean(jnp.maximum(s.rho - ratio_to(logp, s.logp_i), 0.0), s.weight)


def bounded_penalty(logp: Float[Array, " S"], s: Sample) -> Float[Array, ""]:
    """The left side of eqs (5) and (11), from samples without heavy tails: E[(1 - ratio)+], within [0, 1]."""
    return mean(probability_lost(logp, s), s.weight)


def cautious_penalty(logp: Float[Array, " S"], s: Sample) -> Float[Array, ""]:
    """The left side of eq (11) for a policy fitted to these samples: the larger of E[(1 - ratio)+] and E[(ratio - 1)+].

    A policy that shrinks its deviation around the sampled actions makes every one of them likelier: nothing is lost on
    the samples, however far it moved, but there it gains. The gain of a sample counts as 1 at most: no heavy tails.
    """
    gained = jnp.clip(ratio_to(logp, s.logp_i) - 1.0, 0.0, 1.0)
    return jnp.maximum(bounded_penalty(logp, s), mean(gained, s.weight))


def probability_lost(logp: Float[Array, " S"], s: Sample) -> Float[Array, " S"]:
    """Return (1 - ratio)+, whose expectation over a ~ pi_{k-i} is the TV distance of pi to pi_{k-i}, inside eq (11)."""
    return jnp.maximum(1.0 - ratio_to(logp, s.logp_i), 0.0)


def target_weights(
    adv: Float[Array, " S"], base: Float[Array, " S"], delta: Float[Array, ""]
) -> tuple[Float[Array, " S"], Float[Array, ""]]:
    """The non-parametric target of eq (17), w = exp(A/lambda*)/Z, and its temperature lambda*.

    `base` holds the probabilities psi_k of the samples, weight·rho normalised. The dual lambda·delta + lambda·log Z
    is convex with derivative delta - KL(psi‖psi_k), which rises with lambda: bisect it in log lambda. By Hoeffding's
    lemma the root is at most spread/sqrt(8 delta). If even the smallest temperature leaves KL below delta (nearly
    all samples tied at the maximum), that temperature is the answer.
    """
    supported = base > 0.0
    best = jnp.max(jnp.where(supported, adv, -jnp.inf))
    spread = best - jnp.min(jnp.where(supported, adv, jnp.inf))
    flat = ~(spread > 0.0)  # all advantages equal (or none finite): the target is pi_k itself
    gap = jnp.where(supported & ~flat, adv - best, 0.0) / jnp.where(flat, 1.0, spread)  # in [-1, 0]

    def divergence(log_lam: Array) -> Array:
        """KL(psi‖psi_k) of the target at a temperature in units of the spread."""
        x = gap * jnp.exp(-log_lam)
        e = base * jnp.exp(x)
        z = jnp.sum(e)
        return jnp.sum(e * x) / z - jnp.log(z)

    high = -0.5 * jnp.log(8.0 * delta)

    def halve(bracket: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        low, high = bracket
        middle = 0.5 * (low + high)
        too_cold = divergence(middle) > delta
        return (jnp.where(too_cold, middle, low), jnp.where(too_cold, high, middle)), None

    (_, log_lam), _ = jax.lax.scan(halve, (high - 20.0, high), None, length=BISECTIONS)
    e = jnp.exp(gap * jnp.exp(-log_lam))
    w = jnp.where(flat, 1.0, e / jnp.sum(base * e))
    return w, jnp.exp(log_lam) * spread
