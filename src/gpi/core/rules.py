"""The improvement rules: PPO, TRPO and VMPO, each as a proposed step and a test that the step must pass.

On-policy and generalized run the same code and differ in their plan (`plan.py`): on-policy is `nu = [1]`. To add a
rule: a function like `clipped_ascent`, a line in `RULES`, one in `plan.RULE_FACTS` of what it uses and bounds, and an
algorithm in `plan.ALGORITHMS` that names it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpi.core import objectives
from gpi.core.advantage import degenerate, standardise
from gpi.core.agent import Agent, Hyper, Metrics, Static
from gpi.core.critic import value_loss
from gpi.core.policy import Distribution, Theta, log_pi
from gpi.core.sample import Sample, mean
from gpi.core.solvers import (
    Direction,
    StepResult,
    adam_step,
    gradient,
    minibatch_ascent,
    natural_direction,
    take_step,
)
from gpi.core.trust import TRUST, Test
from gpi.theory.mixture import delta

LR_DECAY = 1.03


class Proposal(NamedTuple):
    """A step that a rule proposes."""

    agent: Agent  # after the value fit and, in PPO, with the whole step taken
    direction: Direction  # of the policy
    test: Test | None  # the rule's own test of the policy; None in PPO


Propose = Callable[[Agent, Sample, PRNGKeyArray, Hyper, Static], Proposal]
Objective = Callable[[Theta], Float[Array, ""]]


class Rule(NamedTuple):
    """An improvement rule."""

    propose: Propose
    decay_lr: bool = False  # whether the learning rate falls when a step was too long


def standardised(s: Sample) -> Sample:
    """Return the samples with standardised advantages."""
    return s._replace(adv=standardise(s.adv, s.rho, s.weight))


def clipped_ascent(agent: Agent, s: Sample, key: PRNGKeyArray, hyper: Hyper, static: Static) -> Proposal:
    """PPO (13) and GePPO (14): minibatch ascent of the clipped surrogate; the same minibatches fit the value."""

    def step(agent: Agent, mb: Sample) -> Agent:
        def objective(theta: Theta) -> Float[Array, ""]:
            return objectives.clipped_surrogate(log_pi(theta, mb.obs, mb.action), standardised(mb), hyper.eps_gpi)

        g = gradient(objective, agent.policy.params)
        policy = adam_step(agent.policy, g, agent.lr, static.max_grad_norm)
        return agent._replace(policy=policy, value=agent.value.fit(mb, hyper))

    new = minibatch_ascent(step, agent, s, key, static.epochs, static.minibatches)
    old, after = (ravel_pytree(x.policy.params)[0] for x in (agent, new))
    return Proposal(new, Direction(after - old, jnp.bool_(True), jnp.bool_(True)), None)


def natural_ascent(objective_of: Callable[[Sample, Hyper], Objective]) -> Propose:
    """TRPO (15), GeTRPO (16), VMPO (18) and GeVMPO (19): value fit, then one natural-gradient trust-region step."""

    def propose(agent: Agent, s: Sample, key: PRNGKeyArray, hyper: Hyper, static: Static) -> Proposal:
        fitted = minibatch_ascent(
            lambda critic, mb: critic.fit(mb, hyper), agent.value, s, key, static.epochs, static.minibatches
        )
        theta_k = agent.policy.params
        pi_k = theta_k.distribution(s.obs)
        objective = objective_of(standardised(s), hyper)

        def policy(theta: Theta) -> Distribution:
            return theta.distribution(s.obs)

        def divergence(pi: Distribution) -> Float[Array, ""]:
            return mean(pi_k.kl(pi), s.weight)

        start, radius = objective(theta_k), delta(hyper.eps_gpi) * static.kl_slack

        def inside(theta: Theta) -> Bool[Array, ""]:
            # A comparison with NaN is False, so a step with NaN objective or divergence is refused; infinity needs
            # a separate test.
            reached = objective(theta)
            return (divergence(policy(theta)) <= radius) & (reached >= start) & jnp.isfinite(reached)

        direction = natural_direction(objective, policy, divergence, theta_k, delta(hyper.eps_gpi))
        return Proposal(agent._replace(value=fitted), direction, inside)

    return propose


def surrogate_of(batch: Sample, hyper: Hyper) -> Objective:
    """Return the objective of TRPO (15) and GeTRPO (16): the surrogate."""
    return lambda theta: objectives.surrogate(log_pi(theta, batch.obs, batch.action), batch)


def likelihood_of(batch: Sample, hyper: Hyper) -> Objective:
    """Return the objective of VMPO (18) and GeVMPO (19): the likelihood of the target of eq (17)."""
    base = batch.weight * batch.rho
    w, _ = objectives.target_weights(batch.adv, base / jnp.sum(base), delta(hyper.eps_gpi))
    return lambda theta: objectives.likelihood(log_pi(theta, batch.obs, batch.action), batch, w)


RULES: dict[str, Rule] = {
    "ppo": Rule(clipped_ascent, decay_lr=True),
    "trpo": Rule(natural_ascent(surrogate_of)),
    "vmpo": Rule(natural_ascent(likelihood_of)),
}


def improve(
    agent: Agent, s: Sample, key: PRNGKeyArray, hyper: Hyper, static: Static
) -> tuple[Agent, Metrics, Bool[Array, ""]]:
    """Algorithm 2, line 5: update policy and value by the rule; return agent, metrics, and whether g was finite.

    A refused step, or one without budget or without any advantage to gain, leaves policy and optimiser bit for bit as
    they were.
    """
    rule, trust, theta_k = RULES[static.rule], TRUST[static.trust], agent.policy.params
    hyper = hyper._replace(eps_gpi=trust.budget(s, hyper))
    if trust.kl_slack is not None:
        static = dataclasses.replace(static, kl_slack=trust.kl_slack)
    proposal = rule.propose(agent, s, key, hyper, static)
    demanded = trust.test(theta_k, s, hyper) if trust.test else None
    step = take(theta_k, proposal, [test for test in (proposal.test, demanded) if test])
    pointless = degenerate(s.adv, s.weight)
    taken = step.accepted & (hyper.eps_gpi > 0.0) & ~pointless
    policy = proposal.agent.policy._replace(params=step.theta.project())
    policy = jax.tree.map(lambda new, old: jnp.where(taken, new, old), policy, agent.policy)
    new = proposal.agent._replace(policy=policy)
    metrics = measure(theta_k, new, s, hyper.eps_gpi, jnp.where(taken, step.fraction, 0.0))
    if rule.decay_lr:
        new = new._replace(lr=jnp.where(metrics.tv_abs > 0.5 * hyper.eps_gpi, agent.lr / LR_DECAY, agent.lr))
    return new, metrics._replace(degenerate_batch=pointless), step.finite


def take(theta_k: Theta, proposal: Proposal, tests: list[Test]) -> StepResult[Theta]:
    """Take the part of a proposed step that passes every test; without tests, take the whole step."""
    if not tests:
        whole = jnp.ones((), jnp.float32)
        return StepResult(proposal.agent.policy.params, jnp.bool_(True), whole, proposal.direction.finite)

    def accept(theta: Theta) -> Bool[Array, ""]:
        passed = tests[0](theta)
        for test in tests[1:]:
            passed = passed & test(theta)
        return passed

    return take_step(theta_k, proposal.direction, accept)


def measure(theta_k: Theta, agent: Agent, s: Sample, eps: Float[Array, ""], fraction: Float[Array, ""]) -> Metrics:
    """Measure distances, gain and health of one update, on the whole batch."""
    pi_k, pi = theta_k.distribution(s.obs), agent.policy.params.distribution(s.obs)
    logp = pi.log_prob(s.action)
    batch = standardised(s)
    centre = mean(s.adv, s.weight)
    moved = fraction > 0.0  # a policy that was kept is at distance zero, despite rounding
    return Metrics(
        tv_abs=jnp.where(moved, objectives.one_step_tv(logp, s), 0.0),
        penalty_abs=objectives.penalty(logp, s),
        kl=jnp.where(moved, mean(pi_k.kl(pi), s.weight), 0.0),
        eps_gpi=eps,
        improvement=objectives.surrogate(logp, batch) - objectives.surrogate(pi_k.log_prob(s.action), batch),
        fraction=fraction,
        entropy=mean(pi.entropy(), s.weight),
        value_loss=value_loss(agent.value, s),
        adv_std=jnp.sqrt(mean((s.adv - centre) ** 2, s.weight)),
        lr=agent.lr,
        ess=jnp.sum(s.weight) ** 2 / jnp.sum(s.weight**2),
        degenerate_batch=jnp.bool_(False),
    )
