"""The audit of one update: did the trust region hold, and what does eq (3) then promise?

Expectations are over the stored samples, which are undiscounted, while the d of the theorems is discounted; ratios see
neither that nor the movement of the observation normaliser, which is measured apart.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from gpi.core import objectives
from gpi.core.algorithms import Hyper, Metrics, kl_radius
from gpi.core.normaliser import Normaliser, lens, normalise_obs
from gpi.core.policy import Theta, distribution, log_prob
from gpi.core.sample import Buffer, Rollout, Sample

C_QUANTILE = 0.99


class Audit(NamedTuple):
    """What one update did to each quantity the theorems bound, and whether each bound held."""

    tv_age: Array  # [M], expected TV of pi_{k+1} to pi_{k-i}; NaN for policies that do not exist
    penalty_bound: Array  # eps/2, of the nu-mean of tv_age, eq (11)
    penalty_held: Array
    tv_bound: Array  # eps_gpi/2, of the one-step TV, eq (7)
    tv_held: Array
    kl_bound: Array  # delta, of KL(pi_k‖pi_{k+1}), eq (16)
    kl_held: Array
    ess_realised: Array  # effective sample size with the importance ratios
    surrogate_gain: Array  # of the surrogate of eq (7), raw reward units
    c_estimate: Array  # the C of eq (3), estimated: 99th percentile of |A|, raw reward units
    worst_case_decline: Array  # eps gamma C / (1 - gamma)², eq (3), with that estimate
    normaliser_tv: Array  # TV that the normaliser's update moved the policy by, on the newest batch
    budget_exhausted: Array  # eq (8) left no budget: the policy was kept


def tv_by_age(logp: Array, s: Sample, M: int) -> Array:
    """The expected TV distance of pi to each pi_{k-i}, inside eq (11): mean of ½|ratio - 1| over slot i.

    For a ~ pi_{k-i}, ½ E|pi/pi_{k-i} - 1| is the TV distance itself, so the estimate is unbiased.
    """
    rows = (s.weight > 0.0).astype(logp.dtype).reshape(M, -1)
    gap = 0.5 * jnp.abs(objectives.ratio_to(logp, s.logp_i) - 1.0).reshape(M, -1)
    count = jnp.sum(rows, axis=1)
    return jnp.where(count > 0.0, jnp.sum(rows * gap, axis=1) / jnp.maximum(count, 1.0), jnp.nan)


def realised_ess(s: Sample) -> Array:
    """Effective sample size with the importance ratios to pi_k: (sum w rho)² / sum (w rho)²."""
    x = s.weight * s.rho
    return jnp.sum(x) ** 2 / jnp.sum(x**2)


def high_advantage(s: Sample) -> Array:
    """An estimate of the C of eq (3), a maximum that samples cannot give: the 99th percentile of |A|."""
    counts = s.weight > 0.0
    ordered = jnp.sort(jnp.where(counts, jnp.abs(s.adv), jnp.inf))
    last = jnp.maximum(jnp.sum(counts.astype(jnp.int32)) - 1, 0)
    return ordered[jnp.floor(C_QUANTILE * last.astype(s.adv.dtype)).astype(jnp.int32)]


def normaliser_tv(theta: Theta, raw: Rollout, buffer: Buffer, old: Normaliser, new: Normaliser) -> Array:
    """TV between pi_{k+1} reading the newest batch with the old and with the new statistics: what no ratio sees."""
    flat = raw.obs.reshape(-1, raw.obs.shape[-1])
    action = raw.action.reshape(-1, *raw.action.shape[2:])
    logp_k = buffer.logp_i[0].reshape(-1)

    def ratio(normaliser: Normaliser) -> Array:
        seen = normalise_obs(lens(normaliser.obs), flat)
        return objectives.ratio_to(log_prob(distribution(theta, seen), action), logp_k)

    rows = raw.valid.reshape(-1).astype(logp_k.dtype)
    return 0.5 * jnp.sum(rows * jnp.abs(ratio(new) - ratio(old))) / jnp.maximum(jnp.sum(rows), 1.0)


def audit(theta_k: Theta, theta: Theta, s: Sample, m: Metrics, hyper: Hyper, moved: Array, scale: Array) -> Audit:
    """Every bound of one update, measured; `scale` turns normalised rewards into raw ones."""
    logp = log_prob(distribution(theta, s.obs), s.action)
    logp_k = log_prob(distribution(theta_k, s.obs), s.action)
    C = scale * high_advantage(s)
    penalty_bound, tv_bound, kl_bound = 0.5 * hyper.eps, 0.5 * m.eps_gpi, kl_radius(m.eps_gpi)
    return Audit(
        tv_age=tv_by_age(logp, s, hyper.nu.shape[0]),
        penalty_bound=penalty_bound,
        penalty_held=m.penalty <= penalty_bound,
        tv_bound=tv_bound,
        tv_held=m.tv <= tv_bound,
        kl_bound=kl_bound,
        kl_held=m.kl <= kl_bound,
        ess_realised=realised_ess(s),
        surrogate_gain=scale * (objectives.surrogate(logp, s) - objectives.surrogate(logp_k, s)),
        c_estimate=C,
        worst_case_decline=hyper.eps * hyper.gamma * C / (1.0 - hyper.gamma) ** 2,
        normaliser_tv=moved,
        budget_exhausted=~(m.eps_gpi > 0.0),
    )
