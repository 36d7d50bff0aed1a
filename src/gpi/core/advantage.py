"""The advantage A^{pi_k} from data of prior policies: off-policy GAE with V-trace."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpi.core.sample import Rollout


def vtrace(
    rollout: Rollout,
    value: Float[Array, "T E"],
    next_value: Float[Array, "T E"],
    rho: Float[Array, "T E"],
    gamma: Float[Array, ""],
    gae_lambda: Float[Array, ""],
) -> tuple[Float[Array, "T E"], Float[Array, "T E"]]:
    """Off-policy GAE with V-trace (section VII-A): A^{pi_k} and the value target, along axis 0; GAE when rho = 1.

    adv_t = td_t + gamma lambda c_{t+1} adv_{t+1}, target_t = V(s_t) + c_t adv_t, c = min(1, rho).
    """
    # Truncation is not termination: only death removes the value of the next state, either cuts the trace.
    alive = 1.0 - rollout.terminated.astype(value.dtype)
    connected = 1.0 - rollout.done.astype(value.dtype)
    td = rollout.reward + gamma * alive * next_value - value
    c = jnp.minimum(1.0, rho)

    def back(carry: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        td_t, c_t, connected_t = now
        adv = td_t + gamma * gae_lambda * connected_t * carry
        return c_t * adv, adv

    _, adv = jax.lax.scan(back, jnp.zeros_like(td[0]), (td, c, connected), reverse=True)
    return adv, value + c * adv


def standardise(adv: Float[Array, " S"], rho: Float[Array, " S"], weight: Float[Array, " S"]) -> Float[Array, " S"]:
    """Return advantages with rho-weighted mean 0, divided by the standard deviation of rho·w·A over samples.

    Samples without weight do not count: `w` is the weight scaled to mean 1 over those that do.
    """
    counts = (weight > 0.0).astype(adv.dtype)
    total = jnp.maximum(jnp.sum(counts), 1.0)
    x = rho * weight * (total / weight.size) * adv
    centre = jnp.sum(rho * weight * adv) / jnp.maximum(jnp.sum(rho * weight), 1e-30)
    std = jnp.sqrt(jnp.sum(counts * (x - jnp.sum(x) / total) ** 2) / total)
    return (adv - centre) / (std + 1e-8)


def degenerate(adv: Float[Array, " S"], weight: Float[Array, " S"]) -> Bool[Array, ""]:
    """Return whether the advantages do not differ: standardising them would only blow up rounding noise.

    Their deviation is below what float32 resolves of the largest, or below 1e-8 in units of normalised reward.
    """
    counts = (weight > 0.0).astype(adv.dtype)
    centre = jnp.sum(counts * adv) / jnp.maximum(jnp.sum(counts), 1.0)
    gap = jnp.max(counts * jnp.abs(adv - centre))
    return ~(gap > 1e-6 * jnp.abs(centre)) | ~(gap > 1e-8)
