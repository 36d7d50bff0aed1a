"""Collecting: n samples of pi_k for every member of a population.

In one compiled scan or, where the environments are Python, in a loop on the host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpi.core.normaliser import CLIP, Lens, Normaliser, lens, normalise_obs
from gpi.core.policy import MIN_LOG_STD, Theta, act, distribution, draw_noise
from gpi.core.sample import Rollout
from gpi.envs.pool import Pool, Spec


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


def shape_of(P: int, E: int, T: int, horizon: int | None, *, reset_each_batch: bool | None) -> Shape:
    """The shape of a batch, and which rows of its scan to drop.

    Where batches start with a reset and episodes have one length, auto-resets fall on known rows: they are dropped,
    and exactly T transitions kept. Elsewhere they fall anywhere, stay in the batch, and are masked.
    """
    if horizon is None or not reset_each_batch:
        return Shape(P, E, T, ())
    return Shape(P, E, T, tuple((horizon + 1) * (i + 1) - 1 for i in range((T - 1) // horizon)))


def draw(spec: Spec, shape: Shape, key: Array) -> Array:
    """The randomness of a batch's actions `[T, P, E, A]`, from the members' keys."""
    size = (shape.T + len(shape.drop), shape.E, spec.action_size)
    return jax.vmap(lambda k: draw_noise(k, size, discrete=spec.discrete), out_axes=1)(key)


def collect(
    pool: Pool, shape: Shape, handle: Any, feed: Feed, theta: Theta, normaliser: Normaliser, key: Array
) -> tuple[Any, Feed, Rollout]:
    """Algorithm 2, line 3: transitions of pi_k, raw, axes `[P, T, E]`, for all members at once.

    `theta`, `normaliser` and `key` have a leading axis P. The pool's step cannot be `vmap`ped, everything around it is.
    """
    P, E, T, drop = shape
    eye = jax.vmap(lens)(normaliser.obs)

    def choose(theta: Theta, eye: Any, obs: Array, noise: Array) -> Array:
        return act(distribution(theta, normalise_obs(eye, obs)), noise)

    def step(carry: tuple[Any, Feed], noise: Array) -> tuple[tuple[Any, Feed], Rollout]:
        handle, (obs, ended) = carry
        action = jax.vmap(choose)(theta, eye, obs.reshape(P, E, -1), noise)
        action = action.reshape(P * E, *action.shape[2:])
        handle, out = pool.step(handle, action)
        valid = ~ended
        # The reward of an auto-reset row is uninitialised memory.
        reward = jnp.where(valid, out.reward, 0.0)
        terminated = out.terminated & valid
        done = (out.terminated | out.truncated) & valid
        row = Rollout(obs, action, reward, out.obs, terminated, done, valid)
        return (handle, Feed(out.obs, done)), row

    (handle, feed), rows = jax.lax.scan(step, (handle, feed), draw(pool.spec, shape, key))
    keep = np.delete(np.arange(T + len(drop)), drop)

    def arrange(x: Array) -> Array:
        x = x[keep] if drop else x
        return jnp.moveaxis(x.reshape(T, P, E, *x.shape[2:]), 0, 1)

    return handle, feed, jax.tree.map(arrange, rows)


class Actor(NamedTuple):
    """A population's policies with their normalisers, on the host; every array has a leading axis P."""

    layers: list[tuple[np.ndarray, np.ndarray]]
    std: np.ndarray | None  # nothing where actions are discrete
    centre: np.ndarray
    scale: np.ndarray

    def act(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """a ~ pi(.|s) for observations `[P, E, O]`, from their noise: what `choose` does, in NumPy."""
        x = np.clip((obs - self.centre[:, None]) / self.scale[:, None], -CLIP, CLIP)
        for kernel, bias in self.layers[:-1]:
            x = np.tanh(x @ kernel + bias[:, None])
        kernel, bias = self.layers[-1]
        x = x @ kernel + bias[:, None]
        if self.std is None:
            return np.argmax(x + noise, axis=-1).astype(np.int32)
        return x + self.std[:, None] * noise


def actor_of(theta: Theta, eye: Lens) -> Actor:
    """The policies of a population, and what they see through, as NumPy arrays."""
    layers = [(np.asarray(layer.kernel), np.asarray(layer.bias)) for layer in theta.net]
    std = None if theta.log_std is None else np.exp(np.maximum(np.asarray(theta.log_std), np.float32(MIN_LOG_STD)))
    return Actor(layers, std, np.asarray(eye.centre), np.asarray(eye.scale))


def collect_on_host(pool: Pool, shape: Shape, feed: Feed, actor: Actor, noise: np.ndarray) -> tuple[Feed, Rollout]:
    """Algorithm 2, line 3, like `collect`, where environments are Python.

    The network is evaluated in NumPy: for a few rows that is ten times faster than calling a compiled program.
    """
    P, E, T, _ = shape
    obs: Any = np.asarray(feed.obs)
    ended: Any = np.asarray(feed.ended)
    rows = []
    for t in range(T):
        action = actor.act(obs.reshape(P, E, -1), noise[t])
        action = action.reshape(P * E, *action.shape[2:])
        _, out = pool.step(None, action)
        valid = ~ended
        terminated, done = out.terminated & valid, (out.terminated | out.truncated) & valid
        reward: Any = np.where(valid, out.reward, np.float32(0))
        rows.append((obs, action, reward, out.obs, terminated, done, valid))
        obs, ended = out.obs, done

    def arrange(column: Any) -> Any:
        x = np.stack(column)
        return np.moveaxis(x.reshape(T, P, E, *x.shape[2:]), 0, 1)

    return Feed(obs, ended), Rollout(*map(arrange, zip(*rows, strict=True)))
