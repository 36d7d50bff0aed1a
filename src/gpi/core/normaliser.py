"""Running statistics of observations and rewards, in float64, merged batch by batch."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gpi.core.sample import Rollout

CLIP = 10.0
MIN_STD = 1e-6  # a quantity that never varied is not scaled: dividing by its rounding noise would blow it up


class Stats(NamedTuple):
    """Count, mean and sum of squared deviations of everything seen so far."""

    count: Array  # float64 scalar
    mean: Array  # float64 [...]
    squares: Array  # float64 [...]


class Lens(NamedTuple):
    """What normalising needs of statistics."""

    centre: Array  # float32 [...]
    scale: Array  # float32 [...]


class Normaliser(NamedTuple):
    """What a policy needs to read the world: statistics of observations and of discounted returns-to-go."""

    obs: Stats
    returns: Stats


def init_stats(shape: tuple[int, ...]) -> Stats:
    """Statistics of nothing yet."""
    zero = jnp.zeros(shape, jnp.float64)
    return Stats(jnp.zeros((), jnp.float64), zero, zero)


def init_normaliser(observation_size: int) -> Normaliser:
    """A normaliser that changes nothing yet."""
    return Normaliser(init_stats((observation_size,)), init_stats(()))


def update_stats(stats: Stats, x: Array, valid: Array) -> Stats:
    """Statistics after the rows of `x` where `valid`: two exact means and variances merged into one."""
    x = x.astype(jnp.float64)
    rows = valid.astype(jnp.float64).reshape(valid.shape + (1,) * (x.ndim - valid.ndim))
    count = rows.sum()
    mean = jnp.sum(rows * x, axis=0) / jnp.maximum(count, 1.0)
    squares = jnp.sum(rows * (x - mean[None]) ** 2, axis=0)
    total = jnp.maximum(stats.count + count, 1.0)
    gap = mean - stats.mean
    return Stats(
        stats.count + count,
        stats.mean + gap * (count / total),
        stats.squares + squares + gap**2 * (stats.count * count / total),
    )


def std(stats: Stats) -> Array:
    """Sample standard deviation (n - 1); 1 where nothing has varied yet."""
    var = stats.squares / jnp.maximum(stats.count - 1.0, 1.0)
    raw = jnp.sqrt(var)
    return jnp.where(raw < MIN_STD, 1.0, raw)


def lens(stats: Stats) -> Lens:
    """Centre and scale, in float32, of the statistics so far."""
    return Lens(stats.mean.astype(jnp.float32), std(stats).astype(jnp.float32))


def normalise_obs(lens: Lens, obs: Array) -> Array:
    """Observations `[S, O]` as the policy sees them: centred, scaled, clipped at 10."""
    return jnp.clip((obs - lens.centre[None]) / lens.scale[None], -CLIP, CLIP)


def normalise_reward(lens: Lens, reward: Array) -> Array:
    """Rewards divided by the standard deviation of returns-to-go, clipped at 10; not centred."""
    return jnp.clip(reward / lens.scale, -CLIP, CLIP)


def normalise(normaliser: Normaliser, raw: Rollout) -> Rollout:
    """A rollout as its policy saw it, and as it is stored for later policies."""
    eye = lens(normaliser.obs)

    def see(obs: Array) -> Array:
        return normalise_obs(eye, obs.reshape(-1, obs.shape[-1])).reshape(obs.shape)

    reward = normalise_reward(lens(normaliser.returns), raw.reward)
    return raw._replace(obs=see(raw.obs), next_obs=see(raw.next_obs), reward=reward)


def returns_to_go(raw: Rollout, gamma: Array) -> tuple[Array, Array]:
    """Discounted returns-to-go `[T, E]` of raw rewards, and which of them belong to an episode completed here."""

    def back(carry: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        reward, done = now
        after, complete = carry
        total = reward + gamma * jnp.where(done, 0.0, after)
        complete = complete | done
        return (total, complete), (total, complete)

    start = (jnp.zeros_like(raw.reward[0]), jnp.zeros_like(raw.done[0]))
    _, (totals, complete) = jax.lax.scan(back, start, (raw.reward, raw.done), reverse=True)
    return totals, complete & raw.valid


def update(normaliser: Normaliser, raw: Rollout, gamma: Array) -> Normaliser:
    """The normaliser after one more rollout; to be taken after the policy update, or ratio would not start at rho."""
    totals, complete = returns_to_go(raw, gamma)
    return Normaliser(
        update_stats(normaliser.obs, raw.obs.reshape(-1, raw.obs.shape[-1]), raw.valid.reshape(-1)),
        update_stats(normaliser.returns, totals.reshape(-1), complete.reshape(-1)),
    )
