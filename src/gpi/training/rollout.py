"""Collecting: n samples of pi_k for every member of a population, in one compiled scan."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpi.core.normalize import Normaliser, lens, normalise_obs
from gpi.core.policy import Theta, act, distribution, draw_noise
from gpi.core.sample import Rollout
from gpi.envs.pool import Pool


class Feed(NamedTuple):
    """What the pool showed last, for all its N = P·E environments."""

    obs: Array  # [N, O]
    ended: Array  # [N], the next step is an auto-reset and no transition


class Shape(NamedTuple):
    """How a pool of environments is shared out: P members with E environments each, T transitions in each."""

    P: int
    E: int
    T: int
    drop: tuple[int, ...]  # rows of the scan that are auto-resets in every environment


def shape_of(P: int, E: int, T: int, horizon: int, *, reset_each_batch: bool) -> Shape:
    """Where every batch starts with a reset, auto-resets fall on known rows: drop them and keep exactly T transitions.

    Elsewhere they fall anywhere, stay in the batch, and are masked.
    """
    resets = (T - 1) // horizon if reset_each_batch else 0
    return Shape(P, E, T, tuple((horizon + 1) * (i + 1) - 1 for i in range(resets)))


def collect(
    pool: Pool, shape: Shape, handle: Any, feed: Feed, theta: Theta, normaliser: Normaliser, key: Array
) -> tuple[Any, Feed, Rollout]:
    """Algorithm 2, line 3: transitions of pi_k, raw, axes `[P, T, E]`, for all members at once.

    `theta`, `normaliser` and `key` have a leading axis P. The pool's step cannot be `vmap`ped, everything around it is.
    """
    P, E, T, drop = shape
    A = pool.spec.action_size
    draw = jax.vmap(lambda k: draw_noise(k, (T + len(drop), E, A), discrete=False), out_axes=1)
    eye = jax.vmap(lens)(normaliser.obs)

    def choose(theta: Theta, eye: Any, obs: Array, noise: Array) -> Array:
        return act(distribution(theta, normalise_obs(eye, obs)), noise)

    def step(carry: tuple[Any, Feed], noise: Array) -> tuple[tuple[Any, Feed], Rollout]:
        handle, (obs, ended) = carry
        action = jax.vmap(choose)(theta, eye, obs.reshape(P, E, -1), noise)
        handle, out = pool.step(handle, action.reshape(P * E, A))
        valid = ~ended
        # The reward of an auto-reset row is uninitialised memory.
        reward = jnp.where(valid, out.reward, 0.0)
        terminated = out.terminated & valid
        done = (out.terminated | out.truncated) & valid
        row = Rollout(obs, action.reshape(P * E, A), reward, out.obs, terminated, done, valid)
        return (handle, Feed(out.obs, done)), row

    (handle, feed), rows = jax.lax.scan(step, (handle, feed), draw(key))
    keep = np.delete(np.arange(T + len(drop)), drop)

    def arrange(x: Array) -> Array:
        x = x[keep] if drop else x
        return jnp.moveaxis(x.reshape(T, P, E, *x.shape[2:]), 0, 1)

    return handle, feed, jax.tree.map(arrange, rows)
