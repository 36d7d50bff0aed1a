"""One iteration's mathematics: estimate the advantage, improve the policy by one of three rules, fit the value.

On-policy and generalized run the same code and differ in their plan (`plan.py`): on-policy is `nu = [1]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from gpi.core import objectives
from gpi.core.advantage import degenerate, standardise, vtrace
from gpi.core.plan import Rule, Trust
from gpi.core.policy import Distribution, Net, Theta, distribution, entropy, kl, log_prob, project, value
from gpi.core.sample import Buffer, Sample, mean, weights
from gpi.core.solvers import Climber, backtrack, climb, gradient, minibatch_ascent, natural_step

LR_DECAY = 1.03
MARGIN = 1e-5  # relative, of strict bounds: measuring them again, rounded otherwise, must agree


@dataclass(frozen=True)
class Static:
    """Settings that shape the compiled program."""

    rule: Rule
    epochs: int = 10
    minibatches: int = 32
    max_grad_norm: float = 0.5
    kl_slack: float = 1.5
    trust: Trust = "paper"


class Hyper(NamedTuple):
    """Settings that are traced: they may differ inside a population without another compile."""

    nu: Array  # [M], zero-padded where a member reuses fewer policies
    eps: Array  # the trust region of Algorithm 1
    eps_gpi: Array  # the one-step trust region in force, eq (10)
    gamma: Array
    gae_lambda: Array
    value_lr: Array
    freeze: Array  # int32: from this batch on the normaliser's statistics stay as they are


class Agent(NamedTuple):
    """What an update changes: policy, value function, their optimisers, and PPO's learning rate."""

    policy: Climber  # of theta
    value: Climber  # of phi
    lr: Array


class Metrics(NamedTuple):
    """What one update did, measured on its own samples."""

    tv: Array  # one-step TV, ½ E|ratio - rho|; its budget is eps_gpi/2
    penalty: Array  # TV to the prior policies, ½ E|ratio - 1|; its budget is eps/2
    kl: Array  # E KL(pi_k‖pi_{k+1})
    eps_gpi: Array  # the one-step trust region that was in force
    improvement: Array  # of the standardised surrogate
    fraction: Array  # of the step that was taken; 0 when it was refused
    entropy: Array
    value_loss: Array  # after the fit
    adv_std: Array  # of the advantages before standardisation, normalised reward units
    lr: Array
    ess: Array  # effective sample size of the weights, in samples
    degenerate_batch: Array  # the advantages did not differ, so the policy was kept


def kl_radius(eps: Array) -> Array:
    """delta = eps²/2: by Pinsker's inequality, KL within delta keeps TV within eps/2."""
    return 0.5 * eps**2


def read_values(phi: Net, buffer: Buffer) -> tuple[Array, Array]:
    """V(s) and V(s') on the data of all prior policies, `[M, T, E]`."""
    shape = buffer.logp_i.shape
    v, v_next = (value(phi, x.reshape(-1, x.shape[-1])) for x in (buffer.rollout.obs, buffer.rollout.next_obs))
    return v.reshape(shape), v_next.reshape(shape)


def prior_ratio(theta_k: Theta, obs: Array, action: Array, logp_i: Array) -> Array:
    """rho = pi_k / pi_{k-i} on the samples of the prior policies."""
    return objectives.ratio_to(log_prob(distribution(theta_k, obs), action), logp_i)


def estimate_from(theta_k: Theta, values: tuple[Array, Array], buffer: Buffer, hyper: Hyper) -> Sample:
    """Algorithm 2, line 4: A^{pi_k} on the data of all prior policies, with the weights of nu, from their values."""
    rollout = buffer.rollout
    shape = rollout.reward.shape  # [M, T, E]

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[3:])

    obs, action = flat(rollout.obs), flat(rollout.action)
    logp_i = flat(buffer.logp_i)
    rho = prior_ratio(theta_k, obs, action, logp_i)
    trace = jax.vmap(vtrace, in_axes=(0, 0, 0, 0, None, None))
    adv, target = trace(rollout, *values, rho.reshape(shape), hyper.gamma, hyper.gae_lambda)
    weight = flat(weights(hyper.nu, buffer.policies, rollout.valid))
    return Sample(obs, action, logp_i, rho, flat(adv), flat(target), weight)


def estimate(theta_k: Theta, phi: Net, buffer: Buffer, hyper: Hyper) -> Sample:
    """Algorithm 2, line 4: A^{pi_k} on the data of all prior policies, with the weights of nu."""
    return estimate_from(theta_k, read_values(phi, buffer), buffer, hyper)


def value_loss(phi: Net, s: Sample) -> Array:
    """½ E[(target - V)²], what the value function minimises."""
    return 0.5 * mean((s.target - value(phi, s.obs)) ** 2, s.weight)


def standardised(s: Sample) -> Sample:
    """The samples with standardised advantages."""
    return s._replace(adv=standardise(s.adv, s.rho, s.weight))


def log_pi(theta: Theta, s: Sample) -> Array:
    """log pi(a|s) on the samples."""
    return log_prob(distribution(theta, s.obs), s.action)


def fit_value(climber: Climber, s: Sample, hyper: Hyper) -> Climber:
    """One step of the value fit on one minibatch."""
    uphill = jax.grad(lambda phi: -value_loss(phi, s))(climber.params)
    return climb(climber, uphill, hyper.value_lr)


def one_step_eps(s: Sample, hyper: Hyper, static: Static) -> Array:
    """The one-step trust region of this update: eps_gpi of eq (10), or adaptively what eq (8) leaves of eps.

    eps/2 less the measured expected TV between pi_k and the prior policies; zero when nothing is left.
    """
    if static.trust != "adaptive":
        return hyper.eps_gpi
    return jnp.maximum(hyper.eps - mean(jnp.abs(s.rho - 1.0), s.weight), 0.0)


def keeps_guarantee(theta_k: Theta, s: Sample, hyper: Hyper) -> Callable[[Theta], Array]:
    """What `trust = strict` demands of a policy: eq (11) as measured, and a surrogate of eq (7) no worse than pi_k's.

    Together they are what the worst-case decline of eq (3) rests on.
    """
    start = objectives.surrogate(log_pi(theta_k, s), s)

    def holds(theta: Theta) -> Array:
        logp = log_pi(theta, s)
        inside = objectives.penalty(logp, s) <= 0.5 * hyper.eps * (1.0 - MARGIN)
        return inside & (objectives.surrogate(logp, s) >= start)

    return holds


def improve_ppo(agent: Agent, s: Sample, key: Array, hyper: Hyper, static: Static) -> tuple[Agent, Array]:
    """PPO (13) and GePPO (14): minibatch ascent of the clipped surrogate; the same minibatches fit the value."""

    def objective(theta: Theta, mb: Sample) -> Array:
        return objectives.clipped_surrogate(log_pi(theta, mb), standardised(mb), hyper.eps_gpi)

    def step(agent: Agent, mb: Sample) -> Agent:
        g = gradient(objective, agent.policy.params, mb)
        policy = climb(agent.policy, g, agent.lr, static.max_grad_norm)
        return agent._replace(policy=policy, value=fit_value(agent.value, mb, hyper))

    new = minibatch_ascent(step, agent, s, key, static.epochs, static.minibatches)
    if static.trust != "strict":
        return new, jnp.ones((), jnp.float32)
    old, unravel = ravel_pytree(agent.policy.params)
    holds = keeps_guarantee(agent.policy.params, s, hyper)
    shortened, fraction = backtrack(old, ravel_pytree(new.policy.params)[0] - old, lambda x: holds(unravel(x)))
    return new._replace(policy=new.policy._replace(params=unravel(shortened))), fraction


def improve_natural(agent: Agent, s: Sample, key: Array, hyper: Hyper, static: Static) -> tuple[Agent, Array]:
    """TRPO (15), GeTRPO (16), VMPO (18) and GeVMPO (19): value fit, then one natural-gradient trust-region step."""
    fitted = minibatch_ascent(
        lambda c, mb: fit_value(c, mb, hyper), agent.value, s, key, static.epochs, static.minibatches
    )
    theta_k = agent.policy.params
    pi_k = distribution(theta_k, s.obs)
    batch = standardised(s)
    delta = kl_radius(hyper.eps_gpi)
    if static.rule == "vmpo":
        base = s.weight * s.rho
        w, _ = objectives.target_weights(batch.adv, base / jnp.sum(base), delta)

    def objective(theta: Theta) -> Array:
        logp = log_pi(theta, batch)
        return objectives.likelihood(logp, batch, w) if static.rule == "vmpo" else objectives.surrogate(logp, batch)

    def policy(theta: Theta) -> Distribution:
        return distribution(theta, s.obs)

    def divergence(pi: Distribution) -> Array:
        return mean(kl(pi_k, pi), s.weight)

    start = objective(theta_k)
    strict = static.trust == "strict"
    radius = delta * (1.0 - MARGIN if strict else static.kl_slack)
    holds = keeps_guarantee(theta_k, s, hyper)

    def accept(theta: Theta) -> Array:
        # A comparison with NaN is False, so a step with NaN objective or divergence is refused; infinity needs saying.
        reached = objective(theta)
        inside = (divergence(policy(theta)) <= radius) & (reached >= start) & jnp.isfinite(reached)
        return inside & holds(theta) if strict else inside

    theta, fraction = natural_step(objective, policy, divergence, theta_k, delta, accept)
    return agent._replace(policy=agent.policy._replace(params=theta), value=fitted), fraction


def improve(agent: Agent, s: Sample, key: Array, hyper: Hyper, static: Static) -> tuple[Agent, Metrics]:
    """Algorithm 2, line 5: one policy update by the rule, its value fit, and what it measured."""
    rule = improve_ppo if static.rule == "ppo" else improve_natural
    eps = one_step_eps(s, hyper, static)
    new, fraction = rule(agent, s, key, hyper._replace(eps_gpi=eps), static)
    # A refused step, or one without budget or without any advantage to gain, leaves policy and optimiser as they were,
    # bit for bit.
    pointless = degenerate(s.adv, s.weight)
    taken = (fraction > 0.0) & (eps > 0.0) & ~pointless
    policy = new.policy._replace(params=project(new.policy.params))
    policy = jax.tree.map(lambda new, old: jnp.where(taken, new, old), policy, agent.policy)
    new = new._replace(policy=policy)
    # A fraction that is not a number says that the gradient was not one either.
    fraction = jnp.where(taken | jnp.isnan(fraction), fraction, 0.0)
    metrics = measure(agent.policy.params, new, s, eps, fraction)._replace(degenerate_batch=pointless)
    if static.rule == "ppo":
        shrink = metrics.tv > 0.5 * eps
        new = new._replace(lr=jnp.where(shrink, agent.lr / LR_DECAY, agent.lr))
    return new, metrics


def measure(theta_k: Theta, agent: Agent, s: Sample, eps: Array, fraction: Array) -> Metrics:
    """Distances, gain and health of one update, on the whole batch."""
    pi_k, pi = distribution(theta_k, s.obs), distribution(agent.policy.params, s.obs)
    logp = log_prob(pi, s.action)
    batch = standardised(s)
    centre = mean(s.adv, s.weight)
    moved = fraction > 0.0  # a policy that was kept is at distance zero, whatever rounding says
    return Metrics(
        tv=jnp.where(moved, objectives.one_step_tv(logp, s), 0.0),
        penalty=objectives.penalty(logp, s),
        kl=jnp.where(moved, mean(kl(pi_k, pi), s.weight), 0.0),
        eps_gpi=eps,
        improvement=objectives.surrogate(logp, batch) - objectives.surrogate(log_prob(pi_k, s.action), batch),
        fraction=fraction,
        entropy=mean(entropy(pi), s.weight),
        value_loss=value_loss(agent.value.params, s),
        adv_std=jnp.sqrt(mean((s.adv - centre) ** 2, s.weight)),
        lr=agent.lr,
        ess=jnp.sum(s.weight) ** 2 / jnp.sum(s.weight**2),
        degenerate_batch=jnp.bool_(False),
    )
