"""Rollouts, the buffer of the last M policies, and the weights that make them one expectation."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Rollout(NamedTuple):
    """Transitions of one policy, axes `[T, E]`; raw from the environment, or normalised as the policy saw them."""

    obs: Array  # [T, E, O]
    action: Array  # [T, E, A], or [T, E] when discrete; before clipping
    reward: Array  # [T, E]
    next_obs: Array  # [T, E, O], the true next observation, also where the episode ends
    terminated: Array  # [T, E], the episode died: no value after it
    done: Array  # [T, E], the episode ended, by death or by its time limit: the trace is cut
    valid: Array  # [T, E], False on an auto-reset row, which is no transition


class Buffer(NamedTuple):
    """The data of the last M policies: slot i *is* pi_{k-i}."""

    rollout: Rollout  # [M, T, E]
    logp_i: Array  # [M, T, E], log pi_{k-i}(a|s)
    policies: Array  # how many slots are filled, int32


class Sample(NamedTuple):
    """What one update sees: all slots in one row of samples `[S]`."""

    obs: Array  # [S, O]
    action: Array  # [S, A] or [S]
    logp_i: Array  # log pi_{k-i}(a|s)
    rho: Array  # pi_k / pi_{k-i}: clip centre, V-trace ratio and VMPO's factor
    adv: Array  # A^{pi_k}
    target: Array  # V-trace target of the value function
    weight: Array  # averages to 1 over the batch


def mean(x: Array, weight: Array) -> Array:
    """E_{i~nu} E_{d^{pi_{k-i}}}[x]: the only expectation in the code; on a minibatch, an unbiased estimate of it."""
    return jnp.vdot(weight, x) / weight.size


def init_buffer(rollout: Rollout, M: int) -> Buffer:
    """An empty buffer of M slots shaped like `rollout`; zeros are finite and carry no weight."""
    slots = jax.tree.map(lambda x: jnp.zeros((M, *x.shape), x.dtype), rollout)
    return Buffer(slots, jnp.zeros((M, *rollout.reward.shape), jnp.float32), jnp.zeros((), jnp.int32))


def push(buffer: Buffer, rollout: Rollout, logp: Array) -> Buffer:
    """The buffer after one more policy: pi_{k-i} moves to slot i, the oldest leaves."""

    def shift(slots: Array, new: Array) -> Array:
        return jnp.concatenate([new[None], slots[:-1]])

    M = buffer.logp_i.shape[0]
    return Buffer(
        jax.tree.map(shift, buffer.rollout, rollout),
        shift(buffer.logp_i, logp),
        jnp.minimum(buffer.policies + 1, M).astype(jnp.int32),
    )


def weights(nu: Array, policies: Array, valid: Array) -> Array:
    """Weights `[M, T, E]`, 1 on average, of E_{i~nu} E_{d^{pi_{k-i}}}: nu_i is shared by slot i's valid rows.

    While fewer than M policies exist, nu is taken over those that do and renormalised.
    """
    held = jnp.arange(nu.shape[0], dtype=policies.dtype) < policies
    nu = jnp.where(held, nu, 0.0)
    rows = valid.astype(nu.dtype)
    per_row = nu / jnp.sum(nu) / jnp.maximum(rows.sum((1, 2)), 1.0)
    return per_row[:, None, None] * rows * rows.size
