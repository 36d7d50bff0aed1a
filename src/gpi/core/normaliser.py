"""Running statistics of observations and rewards, in float64, merged batch by batch."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpi.core.sample import Rollout

CLIP = 10.0
MIN_STD = 1e-6  # a quantity that never varied is not scaled: dividing by its rounding noise would blow it up


class Stats(NamedTuple):
    """Count, mean and sum of squared deviations of everything seen so far."""

    count: Float[Array, ""]  # all three in float64
    mean: Float[Array, "..."]
    squares: Float[Array, "..."]


class Scaling(NamedTuple):
    """The centre and scale of statistics, in float32: what normalising needs of them."""

    centre: Float[Array, "..."]
    scale: Float[Array, "..."]


class Normaliser(NamedTuple):
    """The running statistics of observations and of discounted returns-to-go, and what of the former is in force."""

    obs: Stats
    returns: Stats
    in_force: Scaling  # with which observations are read: that of `obs`, or behind it, where a still one lags


def init_stats(shape: tuple[int, ...]) -> Stats:
    """Return the statistics before any data."""
    zero = jnp.zeros(shape, jnp.float64)
    return Stats(jnp.zeros((), jnp.float64), zero, zero)


def init_normaliser(observation_size: int) -> Normaliser:
    """Return a normaliser that has seen nothing and changes nothing."""
    return with_all_in_force(init_stats((observation_size,)), init_stats(()))


def update_stats(stats: Stats, x: Float[Array, "S ..."], valid: Bool[Array, " S"]) -> Stats:
    """Return the statistics after the rows of `x` where `valid`: two exact means and variances merged into one."""
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


def std(stats: Stats) -> Float[Array, "..."]:
    """Return the sample standard deviation (n - 1); 1 where nothing has varied yet."""
    var = stats.squares / jnp.maximum(stats.count - 1.0, 1.0)
    raw = jnp.sqrt(var)
    return jnp.where(raw < MIN_STD, 1.0, raw)


def scaling_of(stats: Stats) -> Scaling:
    """Return centre and scale, in float32, of the statistics so far."""
    return Scaling(stats.mean.astype(jnp.float32), std(stats).astype(jnp.float32))


def with_all_in_force(obs: Stats, returns: Stats) -> Normaliser:
    """Return the normaliser that reads with all that it has seen."""
    return Normaliser(obs, returns, scaling_of(obs))


def normalise_obs(scaling: Scaling, obs: Float[Array, "S O"]) -> Float[Array, "S O"]:
    """Return observations as the policy sees them: centred, scaled, clipped at 10."""
    return jnp.clip((obs - scaling.centre[None]) / scaling.scale[None], -CLIP, CLIP)


def normalise_reward(scaling: Scaling, reward: Float[Array, "... T E"]) -> Float[Array, "... T E"]:
    """Return rewards divided by the standard deviation of returns-to-go, clipped at 10; not centred."""
    return jnp.clip(reward / scaling.scale, -CLIP, CLIP)


def normalise(normaliser: Normaliser, raw: Rollout) -> Rollout:
    """Return a rollout as a policy sees it under the statistics in force."""

    def see(obs: Array) -> Array:
        return normalise_obs(normaliser.in_force, obs.reshape(-1, obs.shape[-1])).reshape(obs.shape)

    reward = normalise_reward(scaling_of(normaliser.returns), raw.reward)
    return raw._replace(obs=see(raw.obs), next_obs=see(raw.next_obs), reward=reward)


def lag(normaliser: Normaliser) -> Float[Array, ""]:
    """Return the lag of the statistics in force behind those seen: the largest shift of a centre or log of a scale.

    A shift is in units of the scale; 0 where all is in force.
    """
    seen, read = scaling_of(normaliser.obs), normaliser.in_force
    shift, stretch = jnp.abs(seen.centre - read.centre) / seen.scale, jnp.abs(jnp.log(seen.scale / read.scale))
    return jnp.max(jnp.maximum(shift, stretch), initial=0.0)


def returns_to_go(raw: Rollout, gamma: Float[Array, ""]) -> tuple[Float[Array, "T E"], Bool[Array, "T E"]]:
    """Return discounted returns-to-go `[T, E]` of raw rewards, and which of them belong to episodes completed here."""

    def back(carry: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        reward, done = now
        after, complete = carry
        total = reward + gamma * jnp.where(done, 0.0, after)
        complete = complete | done
        return (total, complete), (total, complete)

    start = (jnp.zeros_like(raw.reward[0]), jnp.zeros_like(raw.done[0]))
    _, (totals, complete) = jax.lax.scan(back, start, (raw.reward, raw.done), reverse=True)
    return totals, complete & raw.valid


def update(normaliser: Normaliser, raw: Rollout, gamma: Float[Array, ""], frozen: Bool[Array, ""]) -> Normaliser:
    """Return the normaliser after one more rollout, or as it was if it is frozen.

    Call it after the policy update, or ratio would not start at rho.
    """
    totals, complete = returns_to_go(raw, gamma)
    updated = with_all_in_force(
        update_stats(normaliser.obs, raw.obs.reshape(-1, raw.obs.shape[-1]), raw.valid.reshape(-1)),
        update_stats(normaliser.returns, totals.reshape(-1), complete.reshape(-1)),
    )
    return jax.tree.map(lambda new, old: jnp.where(frozen, old, new), updated, normaliser)
