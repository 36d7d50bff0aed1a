"""Collectors: n samples of pi_k for every member of a population, and the environments they come from.

EnvPool's environments are stepped in one compiled scan, environments in Python in a loop on the host. A collector owns
its pool: the last observations, its resets, and the position that a new pool can be brought to.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import SingleDeviceSharding
from jax.stages import Compiled, Lowered

from gpi.core.iteration import COLLECTING, State, key_for
from gpi.core.normaliser import Normaliser, Scaling, normalise_obs
from gpi.core.policy import Theta
from gpi.core.sample import Rollout
from gpi.envs.pool import CompiledPool, Handle, HostPool, Spec
from gpi.envs.replay import Position, first_position, position_after_batch, position_after_reset
from gpi.standalone import network, normalise
from gpi.training.population import Population


class Shape(NamedTuple):
    """How a pool of environments is shared out: P members with E environments each, T transitions in each."""

    P: int
    E: int
    T: int
    drop: tuple[int, ...]  # rows of the scan that begin an episode in every environment


def batch_shape(P: int, E: int, T: int, horizon: int | None, *, reset_each_batch: bool | None) -> Shape:
    """Return the shape of a batch, and which rows of its scan to drop.

    Where batches start with a reset and episodes have one length, later episodes begin on known rows: these are
    dropped, and exactly T transitions kept. Elsewhere they begin anywhere, stay in the batch, and are masked.
    """
    if horizon is None or not reset_each_batch:
        return Shape(P, E, T, ())
    return Shape(P, E, T, tuple((horizon + 1) * (i + 1) - 1 for i in range((T - 1) // horizon)))


class Acting(NamedTuple):
    """The part of the members' states that acting needs, with a leading axis P, padded."""

    theta: Theta
    normaliser: Normaliser
    key: Array


def acting_part(state: State) -> Acting:
    """Return the part of the members' states that acting needs."""
    return Acting(state.learned.agent.policy.params, state.learned.normaliser, state.key)


class Collector(Protocol):
    """The environments of a population, and how to collect in them."""

    obs: Array | np.ndarray
    """The last observations, `[N, O]`."""
    ended: np.ndarray
    """Whether an episode ended with them, `[N]`."""
    position: Position

    def reset(self) -> None:
        """Start a new episode in every environment."""
        ...

    def lower(self, acting: Acting) -> Lowered:
        """Return the program to compile, for a first batch of these members."""
        ...

    def use(self, program: Compiled) -> None:
        """Collect with this compiled program from now on."""
        ...

    def collect(self, acting: Acting, batch: int) -> Rollout:
        """Algorithm 2, line 3: collect the next batch of every member, raw, axes `[P, T, E]`."""
        ...

    def replay(self, position: Position) -> np.ndarray:
        """Bring a new pool to another's position; return which environments `[N]` repeat what the other's had shown."""
        ...


def batch_noise(theta: Theta, spec: Spec, shape: Shape, keys: Array) -> Array:
    """Return the randomness of a batch's actions `[T, P, E, ...]`, from the members' keys."""
    rows = (shape.T + len(shape.drop), shape.E)
    return jax.vmap(lambda key: theta.draw_noise(key, rows, spec.action_size), out_axes=1)(keys)


def batch_keys(keys: Array, batch: Array) -> Array:
    """Return the members' random keys for one batch."""
    return jax.vmap(lambda key: key_for(key, batch, COLLECTING))(keys)


class _Base:
    """The part that both collectors share: keeping track of the environments' position."""

    def __init__(self, pool: CompiledPool | HostPool, shape: Shape, population: Population, *, keep_actions: bool):
        """`keep_actions` keeps the actions of running episodes, not needed where batches start with a reset."""
        self.shape, self.population, self.keep_actions = shape, population, keep_actions
        self.host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        self.program: Compiled
        self.position = first_position(pool)
        self.obs: Any = None
        self.ended = np.zeros(pool.num_envs, np.bool_)

    def use(self, program: Compiled) -> None:
        """Collect with this compiled program from now on."""
        self.program = program

    def _was_reset(self, obs: np.ndarray) -> None:
        self.obs, self.ended = obs, np.zeros(len(self.ended), np.bool_)
        self.position = position_after_reset(self.position, np.asarray(obs))

    def _was_collected(self, raw: Rollout, sent: Array | np.ndarray | None) -> None:
        """Advance the position by a batch; `sent` are the actions that the environments got, where squashed."""
        self.ended = np.asarray(raw.done)[:, -1].reshape(-1)
        played = raw if sent is None else raw._replace(action=sent)
        # Where the next batch begins with a reset, actions since the last one do not matter.
        position = position_after_batch(self.position, played, keep=self.keep_actions)
        self.position = position._replace(resets=position.resets + len(self.shape.drop))

    def _replayable(self, position: Position) -> Position:
        """Return the position with episodes that are too long to be replayed set back to their beginning."""
        return position._replace(calls=np.where(position.calls <= len(position.actions), position.calls, 0))


class CompiledCollector(_Base):
    """Collects in one compiled scan: EnvPool steps inside it."""

    def __init__(self, pool: CompiledPool, shape: Shape, population: Population, *, keep_actions: bool):
        """Start the first episodes."""
        super().__init__(pool, shape, population, keep_actions=keep_actions)
        self.pool, self.handle = pool, pool.handle
        self.reset()

    def reset(self) -> None:
        """Start a new episode in every environment."""
        self.handle, obs = self.pool.reset(self.handle)
        self._was_reset(obs)

    def lower(self, acting: Acting) -> Lowered:
        """Return the program to compile, for a first batch of these members."""

        def program(handle: Handle, obs: Array, acting: Acting, batch: Array) -> tuple[Handle, Array, Collected]:
            theta, normaliser, key = self.population.real(acting)
            return scan(self.pool, self.shape, handle, obs, theta, normaliser, batch_keys(key, batch))

        return jax.jit(program).lower(*self._arguments(acting, 0))

    def collect(self, acting: Acting, batch: int) -> Rollout:
        """Algorithm 2, line 3: collect the next batch of every member, raw, axes `[P, T, E]`."""
        self.handle, self.obs, rows = jax.block_until_ready(self.program(*self._arguments(acting, batch)))
        self._was_collected(*rows)
        return rows.raw

    def _arguments(self, acting: Acting, batch: int) -> tuple[Any, ...]:
        """Return the program's arguments, on the device of the pool."""
        return jax.device_put((self.handle, self.obs, acting, np.int32(batch)), self.host)

    def replay(self, position: Position) -> np.ndarray:
        """Bring a new pool to another's position; return which environments `[N]` repeat what the other's had shown."""
        self.handle, _, digest = self.pool.seek(self._replayable(position))
        self.position = position
        return digest == position.digest


class Collected(NamedTuple):
    """A batch, and the actions that the environments got, where the policy squashes them."""

    raw: Rollout
    sent: Array | None


def scan(
    pool: CompiledPool, shape: Shape, handle: Handle, obs: Array, theta: Theta, normaliser: Normaliser, keys: Array
) -> tuple[Handle, Array, Collected]:
    """Collect transitions of pi_k, raw, axes `[P, T, E]`, for all members at once.

    `theta`, `normaliser` and `keys` have a leading axis P. The pool's step cannot be `vmap`ped; all else is.
    """
    P, E, T, drop = shape

    def choose(theta: Theta, scaling: Scaling, obs: Array, noise: Array) -> Array:
        return theta.distribution(normalise_obs(scaling, obs)).act(noise)

    def step(carry: tuple[Handle, Array], noise: Array) -> tuple[tuple[Handle, Array], Collected]:
        handle, obs = carry
        action = jax.vmap(choose)(theta, normaliser.in_force, obs.reshape(P, E, -1), noise)
        action = action.reshape(P * E, *action.shape[2:])
        sent = theta.squash(action)
        handle, out = pool.step(handle, sent)
        done = out.terminated | out.truncated
        raw = Rollout(obs, action, out.reward, out.obs, out.terminated, done, out.valid)
        return (handle, out.obs), Collected(raw, None if sent is action else sent)

    (handle, obs), rows = jax.lax.scan(step, (handle, obs), batch_noise(theta, pool.spec, shape, keys))
    keep = np.delete(np.arange(T + len(drop)), drop)

    def arrange(x: Array) -> Array:
        x = x[keep] if drop else x
        return jnp.moveaxis(x.reshape(T, P, E, *x.shape[2:]), 0, 1)

    return handle, obs, jax.tree.map(arrange, rows)


class HostCollector(_Base):
    """Collects in a loop on the host, where environments are Python.

    The networks are evaluated in NumPy: for a few rows that is ten times faster than calling a compiled program.
    """

    def __init__(self, pool: HostPool, shape: Shape, population: Population, *, keep_actions: bool):
        """Start the first episodes."""
        super().__init__(pool, shape, population, keep_actions=keep_actions)
        self.pool = pool
        self.reset()

    def reset(self) -> None:
        """Start a new episode in every environment."""
        self._was_reset(self.pool.reset())

    def lower(self, acting: Acting) -> Lowered:
        """Return the program to compile: it draws the noise of a batch and reads the normalisers."""

        def program(acting: Acting, batch: Array) -> tuple[Array, Scaling]:
            theta, normaliser, key = self.population.real(acting)
            noise = batch_noise(theta, self.pool.spec, self.shape, batch_keys(key, batch))
            return noise, normaliser.in_force

        return jax.jit(program).lower(*jax.device_put((acting, np.int32(0)), self.host))

    def collect(self, acting: Acting, batch: int) -> Rollout:
        """Algorithm 2, line 3: collect the next batch of every member, raw, axes `[P, T, E]`."""
        acting, number = jax.device_put((acting, np.int32(batch)), self.host)
        noise, scaling = jax.tree.map(np.asarray, self.program(acting, number))
        theta: Theta = self.population.real(jax.tree.map(np.asarray, acting.theta))
        layers = [(np.asarray(layer.kernel), np.asarray(layer.bias)[:, None]) for layer in theta.net]
        form = theta.net[0]
        centre, scale = scaling.centre[:, None], scaling.scale[:, None]
        P, E, T, _ = self.shape
        obs, rows, played = np.asarray(self.obs), [], []
        for t in range(T):
            seen = normalise(obs.reshape(P, E, -1), centre, scale)
            action = theta.act_on_host(network(layers, seen, form.activation, normed=form.layer_norm), noise[t])
            action = action.reshape(P * E, *action.shape[2:])
            sent = theta.squash(action)
            played += () if sent is action else (sent,)
            step = self.pool.step(sent)
            done = step.terminated | step.truncated
            rows.append((obs, action, step.reward, step.obs, step.terminated, done, step.valid))
            obs = step.obs

        def arrange(column: tuple[np.ndarray, ...]) -> np.ndarray:
            x = np.stack(column)
            return np.moveaxis(x.reshape(T, P, E, *x.shape[2:]), 0, 1)

        raw = Rollout(*map(arrange, zip(*rows, strict=True)))  # type: ignore[arg-type]
        self.obs = obs
        self._was_collected(raw, arrange(tuple(played)) if played else None)
        return raw

    def replay(self, position: Position) -> np.ndarray:
        """Bring a new pool to another's position; return which environments `[N]` repeat what the other's had shown."""
        _, digest = self.pool.seek(self._replayable(position))
        self.position = position
        return digest == position.digest
