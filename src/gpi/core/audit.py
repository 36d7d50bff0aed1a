"""The audit of one update: did the trust region hold, and what does eq (3) then promise?

Expectations are over the stored samples, which are undiscounted, while the d of the theorems is discounted; ratios see
neither that nor the movement of the observation normaliser, which is measured apart.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpi.core import objectives
from gpi.core.agent import Hyper, Metrics
from gpi.core.normaliser import Normaliser, normalise_obs
from gpi.core.policy import Theta, log_pi
from gpi.core.sample import Buffer, Rollout, Sample, mean
from gpi.theory.mixture import delta

C_QUANTILE = 0.99


class Audit(NamedTuple):
    """What one update did to each quantity the theorems bound, and whether each bound held."""

    tv_age: Float[Array, " M"]  # expected TV of pi_{k+1} to pi_{k-i}; NaN for policies that do not exist
    penalty_lost: Float[Array, ""]  # the nu-mean of tv_age, left side of eq (11): E[(1 - ratio)+]
    penalty_bound: Float[Array, ""]  # eps/2, eq (11)
    penalty_held: Bool[Array, ""]
    penalty_acted: Float[Array, ""]  # the same of pi_{k+1} as it will act to pi_{k-i} as they acted
    tv_lost: Float[Array, ""]  # the one-step TV, from samples, E[(rho - ratio)+]; never above `tv_closed`
    tv_bound: Float[Array, ""]  # eps_gpi/2, eq (7)
    tv_held: Bool[Array, ""]
    tv_closed: Float[Array, ""]  # the one-step TV or a bound on it, from the distributions: no action is sampled
    kl_bound: Float[Array, ""]  # delta, of KL(pi_k‖pi_{k+1}), eq (16)
    kl_held: Bool[Array, ""]
    ess_realised: Float[Array, ""]  # effective sample size with the importance ratios
    surrogate_gain: Float[Array, ""]  # of the surrogate of eq (7), without heavy tails, raw reward units
    gain_se: Float[Array, ""]  # its standard error, from the spread between episodes; NaN with less than two
    c_estimate: Float[Array, ""]  # the C of eq (3), estimated: 99th percentile of |A|, raw reward units
    worst_case_decline: Float[Array, ""]  # eps gamma C / (1 - gamma)², eq (3), with that estimate
    normaliser_tv: Float[Array, ""]  # TV that the normaliser's update moved the policy by, on the newest batch
    normaliser_lag: Float[Array, ""]  # how far the statistics in force lag behind those seen (`normaliser.lag`)
    budget_exhausted: Bool[Array, ""]  # eq (8) left no budget: the policy was kept


def tv_by_age(logp: Float[Array, " S"], s: Sample, M: int) -> Float[Array, " M"]:
    """Return the expected TV distance of pi to each pi_{k-i}, inside eq (11): mean of (1 - ratio)+ over slot i.

    For a ~ pi_{k-i}, E[(1 - pi/pi_{k-i})+] is the TV distance itself, so the estimate is unbiased, and within [0, 1].
    """
    rows = (s.weight > 0.0).astype(logp.dtype).reshape(M, -1)
    lost = objectives.probability_lost(logp, s).reshape(M, -1)
    count = jnp.sum(rows, axis=1)
    return jnp.where(count > 0.0, jnp.sum(rows * lost, axis=1) / jnp.maximum(count, 1.0), jnp.nan)


def realised_ess(s: Sample) -> Float[Array, ""]:
    """Return the effective sample size with the importance ratios to pi_k: (sum w rho)² / sum (w rho)²."""
    x = s.weight * s.rho
    return jnp.sum(x) ** 2 / jnp.sum(x**2)


def gain_error(gain: Float[Array, " S"], weight: Float[Array, " S"], done: Bool[Array, "M T E"]) -> Float[Array, ""]:
    """Return the standard error of the mean of `gain` when not samples but episodes are independent; NaN with one.

    Episodes are the clusters of a weighted mean G: the variance is sum (Y_c - W_c G)² / (1 - sum W_c²), with Y_c what
    episode c adds to G and W_c its share of the weight. An episode that two batches share counts as two.
    """
    past = jnp.cumsum(done.astype(jnp.int32), axis=1) - done.astype(jnp.int32)  # a row that ends an episode is its own
    slots = jnp.arange(done.shape[0] * done.shape[2], dtype=jnp.int32).reshape(done.shape[0], 1, done.shape[2])
    episode = (slots * done.shape[1] + past).reshape(-1)
    share = weight / weight.size
    W, Y = (jax.ops.segment_sum(x, episode, num_segments=weight.size) for x in (share, share * gain))
    G, left = jnp.sum(Y), 1.0 - jnp.sum(W**2)
    enough = left > 1e-4  # beyond the rounding of a single episode's weight
    return jnp.where(enough, jnp.sqrt(jnp.sum((Y - W * G) ** 2) / jnp.where(enough, left, 1.0)), jnp.nan)


def high_advantage(s: Sample) -> Float[Array, ""]:
    """Return an estimate of the C of eq (3), a maximum that samples cannot give: the 99th percentile of |A|."""
    counts = s.weight > 0.0
    ordered = jnp.sort(jnp.where(counts, jnp.abs(s.adv), jnp.inf))
    last = jnp.maximum(jnp.sum(counts.astype(jnp.int32)) - 1, 0)
    return ordered[jnp.floor(C_QUANTILE * last.astype(s.adv.dtype)).astype(jnp.int32)]


def closed_tv(theta_k: Theta, theta: Theta, s: Sample) -> Float[Array, ""]:
    """Return the expected one-step TV of eqs (6) and (7), or a bound on it, from the distributions in closed form."""
    # Behind a barrier, or XLA would fuse it with the update's own measurements and round their last bits otherwise.
    theta_k, theta, obs = jax.lax.optimization_barrier((theta_k, theta, s.obs))
    return mean(theta_k.distribution(obs).tv(theta.distribution(obs)), s.weight)


def acted_penalty(theta: Theta, normaliser: Normaliser, buffer: Buffer, s: Sample) -> Float[Array, ""]:
    """Return the left side of eq (11) of the policies that act: pi_{k+1} reads what came with its own statistics.

    A policy is its weights and the statistics it reads with; `logp_i` is of pi_{k-i} as it acted.
    """
    theta, normaliser, s = jax.lax.optimization_barrier((theta, normaliser, s))  # as in `closed_tv`
    obs = normalise_obs(normaliser.in_force, buffer.raw_obs.reshape(-1, buffer.raw_obs.shape[-1]))
    return objectives.bounded_penalty(log_pi(theta, obs, s.action), s)


def normaliser_tv(before: tuple[Theta, Normaliser], after: tuple[Theta, Normaliser], raw: Rollout) -> Float[Array, ""]:
    """Return the TV between pi_{k+1} with the old and the new statistics, on the newest batch: no ratio sees it.

    From the distributions, whose deviations agree: at the states of the batch the distance is exact.
    """
    flat = raw.obs.reshape(-1, raw.obs.shape[-1])
    old, new = (theta.distribution(normalise_obs(x.in_force, flat)) for theta, x in (before, after))
    rows = raw.valid.reshape(-1).astype(flat.dtype)
    return jnp.sum(rows * old.tv(new)) / jnp.maximum(jnp.sum(rows), 1.0)


def audit(
    theta_k: Theta, theta: Theta, s: Sample, done: Bool[Array, "M T E"], m: Metrics, hyper: Hyper,
    scale: Float[Array, ""],
) -> Audit:  # fmt: skip
    """Measure every bound of one update; `done` ends episodes, `scale` turns normalised rewards into raw ones."""
    logp = log_pi(theta, s.obs, s.action)
    moved = m.fraction > 0.0  # a policy that was kept is at distance zero, despite rounding
    penalty, gain = objectives.bounded_penalty(logp, s), objectives.gains(logp, s)
    closed = jnp.where(moved, closed_tv(theta_k, theta, s), 0.0)
    # (rho - ratio)+ has the tail of rho, a few times in a thousand updates; the distance is never above `closed`.
    tv = jnp.minimum(jnp.where(moved, objectives.bounded_one_step_tv(logp, s), 0.0), closed)
    C = scale * high_advantage(s)
    penalty_bound, tv_bound, kl_bound = 0.5 * hyper.eps, 0.5 * m.eps_gpi, delta(m.eps_gpi)
    return Audit(
        tv_age=tv_by_age(logp, s, hyper.nu.shape[0]),
        penalty_lost=penalty,
        penalty_bound=penalty_bound,
        penalty_held=penalty <= penalty_bound,
        penalty_acted=jnp.zeros(()),  # `acted_penalty` knows it
        tv_lost=tv,
        tv_bound=tv_bound,
        tv_held=tv <= tv_bound,
        tv_closed=closed,
        kl_bound=kl_bound,
        kl_held=m.kl <= kl_bound,
        ess_realised=realised_ess(s),
        surrogate_gain=scale * mean(gain, s.weight),
        gain_se=scale * gain_error(gain, s.weight, done),
        c_estimate=C,
        worst_case_decline=hyper.eps * hyper.gamma * C / (1.0 - hyper.gamma) ** 2,
        normaliser_tv=jnp.zeros(()),  # `normaliser_tv` knows it
        normaliser_lag=jnp.zeros(()),  # and `normaliser.lag` this
        budget_exhausted=~(m.eps_gpi > 0.0),
    )
