"""Rollouts, the buffer of the last M policies, and the weights that make them one expectation."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num


class Rollout(NamedTuple):
    """Transitions of one policy, axes `[T, E]`; raw from the environment, or normalised as a policy sees them."""

    obs: Float[Array, "... T E O"]
    action: Num[Array, "..."]  # before clipping; without the axis A when discrete
    reward: Float[Array, "... T E"]
    next_obs: Float[Array, "... T E O"]  # the true next observation, also where the episode ends
    terminated: Bool[Array, "... T E"]  # the episode died: no value after it
    done: Bool[Array, "... T E"]  # the episode ended, by death or by its time limit: the trace is cut
    valid: Bool[Array, "... T E"]  # False where the row is not a transition, but only began an episode


class Buffer(NamedTuple):
    """The data of the last M policies: slot i *is* pi_{k-i}."""

    rollout: Rollout  # normalised as pi_{k-i} saw it; raw where the normaliser is still
    logp_i: Float[Array, "M T E"]  # log pi_{k-i}(a|s)
    policies: Int[Array, ""]  # how many slots are filled
    raw: Float[Array, "M T E O"] | None = None  # observations as they came; None where the rollout is raw itself

    @property
    def raw_obs(self) -> Float[Array, "M T E O"]:
        """Observations as they came."""
        return self.rollout.obs if self.raw is None else self.raw


class Sample(NamedTuple):
    """The samples of one update: all slots in one row `[S]`."""

    obs: Float[Array, "S O"]
    action: Num[Array, "S ..."]
    logp_i: Float[Array, " S"]  # log pi_{k-i}(a|s)
    rho: Float[Array, " S"]  # pi_k / pi_{k-i}: clip centre, V-trace ratio and VMPO's factor
    adv: Float[Array, " S"]  # A^{pi_k}
    target: Float[Array, " S"]  # V-trace target of the value function
    weight: Float[Array, " S"]  # averages to 1 over the batch


def mean(x: Float[Array, " S"], weight: Float[Array, " S"]) -> Float[Array, ""]:
    """E_{i~nu} E_{d^{pi_{k-i}}}[x]: the only expectation in the code; on a minibatch, an unbiased estimate of it."""
    return jnp.vdot(weight, x) / weight.size


def init_buffer(rollout: Rollout, M: int, *, raw: bool = False) -> Buffer:
    """Return an empty buffer of M slots shaped like `rollout`; zeros are finite and carry no weight.

    `raw`: rollouts are kept normalised, and their observations also as they came. Else rollouts are kept raw.
    """
    slots = jax.tree.map(lambda x: jnp.zeros((M, *x.shape), x.dtype), rollout)
    logp_i = jnp.zeros((M, *rollout.reward.shape), jnp.float32)
    return Buffer(slots, logp_i, jnp.zeros((), jnp.int32), jnp.zeros_like(slots.obs) if raw else None)


def push(buffer: Buffer, raw: Rollout, rollout: Rollout, logp: Float[Array, "T E"]) -> Buffer:
    """Return the buffer after one more policy, whose rollout is given raw and normalised.

    pi_{k-i} moves to slot i, the oldest leaves.
    """

    def shift(slots: Array, new: Array) -> Array:
        return jnp.concatenate([new[None], slots[:-1]])

    M = buffer.logp_i.shape[0]
    return Buffer(
        jax.tree.map(shift, buffer.rollout, raw if buffer.raw is None else rollout),
        shift(buffer.logp_i, logp),
        jnp.minimum(buffer.policies + 1, M).astype(jnp.int32),
        None if buffer.raw is None else shift(buffer.raw, raw.obs),
    )


def weights(nu: Float[Array, " M"], policies: Int[Array, ""], valid: Bool[Array, "M T E"]) -> Float[Array, "M T E"]:
    """Return the weights `[M, T, E]`, 1 on average, of E_{i~nu} E_{d^{pi_{k-i}}}: slot i's valid rows share nu_i.

    While fewer than M policies exist, nu is taken over those that do and renormalised.
    """
    held = jnp.arange(nu.shape[0], dtype=policies.dtype) < policies
    nu = jnp.where(held, nu, 0.0)
    rows = valid.astype(nu.dtype)
    per_row = nu / jnp.sum(nu) / jnp.maximum(rows.sum((1, 2)), 1.0)
    return per_row[:, None, None] * rows * rows.size
