"""Probe environments: tiny tasks in pure JAX whose optimal values and policies are known.

Each isolates one thing that an agent can get wrong, and all of them behave as EnvPool does: the step after an end
ignores its action, returns a first observation, and is not valid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpi.envs.pool import HostPool, Notes, Spec, Step
from gpi.envs.replay import Position

# Observations and actions of all probes have one entry; rules see them without that axis, [N].
Array = jax.Array


class Rules(NamedTuple):
    """One probe: its dynamics, and its optimal values and actions."""

    first: Callable[[Array], Array]
    """First observation, from a key."""
    reward: Callable[[Array, Array], Array]
    """Reward of observation and action."""
    following: Callable[[Array], Array]
    """Next observation, from the present one."""
    horizon: int
    """Length of every episode."""
    terminates: bool
    """Whether episodes end by termination; otherwise they are truncated."""
    optimal_value: Callable[[Array, float], Array]
    """Optimal value of observations, given gamma."""
    optimal_action: Callable[[Array], Array] | None = None
    """Optimal action at observations; None where actions do not matter."""


def _sign(key: Array) -> Array:
    return jax.random.rademacher(key, (), jnp.float32)


def _interval(key: Array) -> Array:
    return jax.random.uniform(key, (), jnp.float32, -1.0, 1.0)


def _same(obs: Array) -> Array:
    return obs


PROBES: dict[str, Rules] = {
    # Reward 1 in every step, cut off only by a time limit: value 1/(1-γ) if truncation is bootstrapped, less if it is
    # taken for an end.
    "time-limit": Rules(
        first=lambda key: jnp.ones((), jnp.float32),
        reward=lambda obs, action: jnp.ones_like(obs),
        following=_same,
        horizon=10,
        terminates=False,
        optimal_value=lambda obs, gamma: jnp.full_like(obs, 1.0 / (1.0 - gamma)),
    ),
    # Reward equals the observation, ±1, and that is all: the value network must see observations, and nothing may be
    # bootstrapped over a termination.
    "observation": Rules(
        first=_sign,
        reward=lambda obs, action: obs,
        following=_same,
        horizon=1,
        terminates=True,
        optimal_value=lambda obs, gamma: obs,
    ),
    # Observation 0, then 1 and reward 1: the first value is γ, the second 1.
    "delayed": Rules(
        first=lambda key: jnp.zeros((), jnp.float32),
        reward=lambda obs, action: obs,
        following=lambda obs: obs + 1.0,
        horizon=2,
        terminates=True,
        optimal_value=lambda obs, gamma: jnp.where(obs > 0.5, 1.0, gamma).astype(obs.dtype),
    ),
    # The best action is 0.5, everywhere.
    "action": Rules(
        first=lambda key: jnp.ones((), jnp.float32),
        reward=lambda obs, action: 1.0 - jnp.square(action - 0.5),
        following=_same,
        horizon=1,
        terminates=True,
        optimal_value=lambda obs, gamma: jnp.ones_like(obs),
        optimal_action=lambda obs: jnp.full_like(obs, 0.5),
    ),
    # The best action is half the observation.
    "observation-action": Rules(
        first=_interval,
        reward=lambda obs, action: 1.0 - jnp.square(action - 0.5 * obs),
        following=_same,
        horizon=1,
        terminates=True,
        optimal_value=lambda obs, gamma: jnp.ones_like(obs),
        optimal_action=lambda obs: 0.5 * obs,
    ),
}


class ProbeState(NamedTuple):
    """The handle of a `Probe`: the whole state of its environments."""

    key: Array
    """[N] keys"""
    time: Array
    """[N] int32: steps since the episode began"""
    obs: Array
    """[N] float32"""
    done: Array
    """[N] bool: the next step is a reset"""


class Probe:
    """A `CompiledPool` of N environments that follow `PROBES[name]`."""

    def __init__(self, name: str, num_envs: int, seed: int = 0, horizon: int | None = None):
        """Environment i depends on `seed` and i only; `horizon` replaces that of the rules."""
        self.rules = PROBES[name]
        if horizon is not None:
            self.rules = self.rules._replace(horizon=horizon)
        self.notes: Notes = {}
        self.spec = Spec(f"probe/{name}", 1, 1, self.rules.horizon)
        self.num_envs = num_envs
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(num_envs, dtype=jnp.uint32))
        self.handle = ProbeState(*self._begin(keys), done=jnp.zeros(num_envs, bool))

    def reset(self, handle: ProbeState) -> tuple[ProbeState, np.ndarray]:
        """Start a new episode in every environment."""
        handle = ProbeState(*self._begin(handle.key), done=jnp.zeros(self.num_envs, bool))
        return handle, np.asarray(handle.obs)[:, None]

    def step(self, handle: ProbeState, action: Array) -> tuple[ProbeState, Step[Array]]:
        """Step every environment with action [N, 1], clipped to [-1, 1]."""
        reset = handle.done
        key, start, first = self._begin(handle.key)
        time = jnp.where(reset, start, handle.time + 1)
        obs = jnp.where(reset, first, self.rules.following(handle.obs))
        reward = self.rules.reward(handle.obs, jnp.clip(action[:, 0], -1.0, 1.0))
        done = time == self.rules.horizon
        step = Step(
            obs=obs[:, None],
            reward=jnp.where(reset, 0.0, reward),
            terminated=done & self.rules.terminates,
            truncated=done & (not self.rules.terminates),
            valid=~reset,
        )
        return ProbeState(key, time, obs, done), step

    def seek(self, position: Position) -> tuple[ProbeState, np.ndarray, np.ndarray]:
        """Raise: probes cannot be replayed."""
        raise NotImplementedError

    def on_host(self) -> HostPool:
        """Raise: probes cannot be stepped on the host."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def optimal_value(self, obs: Array, gamma: float) -> Array:
        """Return the optimal values [N] of observations [N, 1]."""
        return self.rules.optimal_value(obs[:, 0], gamma)

    def optimal_action(self, obs: Array) -> Array | None:
        """Return the optimal actions [N, 1] at observations [N, 1]; None where actions do not matter."""
        best = self.rules.optimal_action
        return None if best is None else best(obs[:, 0])[:, None]

    def _begin(self, key: Array) -> tuple[Array, Array, Array]:
        """Return fresh keys, time zero and first observations."""
        following, draw = jnp.moveaxis(jax.vmap(jax.random.split)(key), 1, 0)
        return following, jnp.zeros(self.num_envs, jnp.int32), jax.vmap(self.rules.first)(draw)
