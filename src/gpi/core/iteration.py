"""Algorithm 2 for one agent: `iteration`, and its two wrappers, an audit of the update and a guard against NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpi.core import faults, objectives, ring
from gpi.core.advantage import vtrace
from gpi.core.agent import Agent, Hyper, Metrics, Static, ValueFunction
from gpi.core.audit import Audit, acted_penalty, audit, normaliser_tv
from gpi.core.normaliser import Normaliser, lag, normalise, scaling_of, update
from gpi.core.policy import Theta, log_pi
from gpi.core.ring import Replay
from gpi.core.rules import improve
from gpi.core.sample import Buffer, Rollout, Sample, push, weights
from gpi.core.still import NORMALISING

Values = tuple[Float[Array, "M T E"], Float[Array, "M T E"]]  # V(s) and V(s')
COLLECTING, LEARNING, REPLAYING = 0, 1, 2  # the uses of an iteration's randomness


class Learned(NamedTuple):
    """What an update replaces as a whole: guarded against NaN, and restored when an agent goes back."""

    agent: Agent
    buffer: Buffer
    normaliser: Normaliser


class State(NamedTuple):
    """Everything an agent carries from one iteration to the next."""

    learned: Learned
    replay: Replay  # written in place; going back keeps it
    key: PRNGKeyArray  # the member's own; an iteration's randomness is folded in from its number
    fault: Int[Array, ""]  # 0 or 1 + the stage of `faults.STAGES` at which the agent was frozen


class Trace(NamedTuple):
    """Intermediate results of one iteration, for its audit and its guard."""

    values: Values
    sample: Sample
    agent: Agent  # pi_{k+1} and its critic, as they read these samples
    metrics: Metrics
    gradient_finite: Bool[Array, ""]


Iterate = Callable[[State, Rollout, Hyper, Int[Array, ""], Static], tuple[State, Trace]]
Audited = Callable[[State, Rollout, Hyper, Int[Array, ""], Static], tuple[State, Trace, Audit]]
Learn = Callable[[State, Rollout, Hyper, Int[Array, ""], Static], tuple[State, Metrics, Audit]]


def iteration(state: State, raw: Rollout, hyper: Hyper, batch: Int[Array, ""], static: Static) -> tuple[State, Trace]:
    """Algorithm 2, lines 4 and 5: reuse the samples of the last M policies for one policy improvement.

    `raw` is line 3, the n samples that pi_k has just collected; `batch` is their number, warm-up included.
    """
    (agent, _, normaliser), normalising = state.learned, NORMALISING[static.normaliser]
    buffer, replay = store(state, raw)  # pi_{k-i}: slot i
    theta_k, seen = agent.policy.params, normalising.read(normaliser, buffer)
    hyper = static.solve(theta_k, seen, hyper)  # nu in force
    values = read_values(agent.value, seen)
    sample = estimate(theta_k, values, seen, hyper)  # A^{pi_k} by V-trace, weights from nu
    key, critic_key = (key_for(state.key, batch, use) for use in (LEARNING, REPLAYING))
    agent = agent._replace(value=agent.value.fit_replay(replay, theta_k, normaliser, critic_key, hyper))
    agent, metrics, finite = improve(agent, sample, key, hyper, static)  # by PPO, TRPO or VMPO
    updated = update(normaliser, raw, hyper.gamma, batch >= hyper.freeze)  # last, or ratio would not be rho
    acting, follower = normalising.follow(agent, normaliser, updated, buffer, sample, hyper, static)
    return (
        State(Learned(acting, buffer, follower), replay, state.key, state.fault),
        Trace(values, sample, agent, metrics, finite),
    )


def store(state: State, raw: Rollout) -> tuple[Buffer, Replay]:
    """Return the last M policies' samples, and the replay, with those of pi_k."""
    agent, buffer, normaliser = state.learned
    rollout = normalise(normaliser, raw)
    buffer = push(buffer, raw, rollout, log_probs(agent.policy.params, rollout))
    return buffer, ring.put(state.replay, raw, state.fault)


def read_values(phi: ValueFunction, buffer: Buffer) -> Values:
    """Return V(s) and V(s') on the data of all prior policies."""
    shape = buffer.logp_i.shape
    v, v_next = (phi.value(x.reshape(-1, x.shape[-1])) for x in (buffer.rollout.obs, buffer.rollout.next_obs))
    return v.reshape(shape), v_next.reshape(shape)


def prior_ratio(theta_k: Theta, obs: Array, action: Array, logp_i: Float[Array, " S"]) -> Float[Array, " S"]:
    """Return rho = pi_k / pi_{k-i} on the samples of the prior policies."""
    return objectives.ratio_to(log_pi(theta_k, obs, action), logp_i)


def estimate(theta_k: Theta, values: Values, buffer: Buffer, hyper: Hyper) -> Sample:
    """Algorithm 2, line 4: A^{pi_k} on the data of all prior policies, with the weights of nu."""
    rollout = buffer.rollout
    shape = rollout.reward.shape  # [M, T, E]

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[3:])

    obs, action, logp_i = flat(rollout.obs), flat(rollout.action), flat(buffer.logp_i)
    rho = prior_ratio(theta_k, obs, action, logp_i)
    trace = jax.vmap(vtrace, in_axes=(0, 0, 0, 0, None, None))
    adv, target = trace(rollout, *values, rho.reshape(shape), hyper.gamma, hyper.gae_lambda)
    weight = flat(weights(hyper.nu, buffer.policies, rollout.valid))
    return Sample(obs, action, logp_i, rho, flat(adv), flat(target), weight)


def log_probs(theta: Theta, rollout: Rollout) -> Float[Array, "T E"]:
    """Return log pi(a|s) of a rollout's actions."""
    obs = rollout.obs.reshape(-1, rollout.obs.shape[-1])
    action = rollout.action.reshape(-1, *rollout.action.shape[2:])
    return log_pi(theta, obs, action).reshape(rollout.reward.shape)


def key_for(key: PRNGKeyArray, batch: Int[Array, ""], use: int) -> PRNGKeyArray:
    """Return the key of one use in one iteration."""
    return jax.random.fold_in(jax.random.fold_in(key, batch), use)


def audited(iterate: Iterate) -> Audited:
    """Wrap an iteration so that it also measures every bound of the theory on its update."""

    def step(state: State, raw: Rollout, hyper: Hyper, batch: Array, static: Static) -> tuple[State, Trace, Audit]:
        new, trace = iterate(state, raw, hyper, batch, static)
        (agent, _, normaliser), (acting, buffer, follower) = state.learned, new.learned
        theta_k, theta = agent.policy.params, trace.agent.policy.params
        before, after = (theta, normaliser), (acting.policy.params, follower)
        moved, scale = normaliser_tv(before, after, raw), scaling_of(normaliser.returns).scale
        report = audit(theta_k, theta, trace.sample, buffer.rollout.done, trace.metrics, hyper, scale)
        acted = acted_penalty(*after, buffer, trace.sample)
        return new, trace, report._replace(penalty_acted=acted, normaliser_tv=moved, normaliser_lag=lag(follower))

    return step


def guarded(iterate: Audited) -> Learn:
    """Wrap an iteration so that an agent that met NaN or infinity stays at its last good state from then on."""

    def step(state: State, raw: Rollout, hyper: Hyper, batch: Array, static: Static) -> tuple[State, Metrics, Audit]:
        new, (values, sample, agent, metrics, gradient_finite), report = iterate(state, raw, hyper, batch, static)
        fault = faults.first_fault({
            "observation": faults.finite((raw.obs, raw.next_obs)),
            "reward": faults.finite(raw.reward),
            "value": faults.finite(values),
            "ratio": faults.finite(sample.rho),
            "advantage": faults.finite((sample.adv, sample.target)),
            "gradient": faults.finite(agent) & gradient_finite,
            # Networks carried over are part of the normaliser's update.
            "normaliser": faults.finite((new.learned.normaliser, new.learned.agent)),
        })  # fmt: skip
        return keep_good(state, new, fault), metrics, report

    return step


def keep_good(old: State, new: State, fault: Int[Array, ""]) -> State:
    """Return the new state; after the first fault, the last good state from then on."""
    fault = jnp.where(old.fault == faults.NONE, fault, old.fault)

    learned = jax.tree.map(lambda new, old: jnp.where(fault == faults.NONE, new, old), new.learned, old.learned)
    return State(learned, ring.counted(old.replay, new.replay, fault), old.key, fault)


def observe(state: State, raw: Rollout, hyper: Hyper) -> State:
    """Start the normaliser with a batch of the initial policy: the warm-up.

    Nothing is carried over here: the initial networks are made for inputs of unit scale, regardless of the statistics.
    """
    normaliser = update(state.learned.normaliser, raw, hyper.gamma, jnp.bool_(False))
    replay = ring.put(state.replay, raw, state.fault)
    new = state._replace(learned=state.learned._replace(normaliser=normaliser), replay=replay)
    sound = {"observation": faults.finite((raw.obs, raw.next_obs)), "reward": faults.finite(raw.reward)}
    return keep_good(state, new, faults.first_fault(sound))


learn = guarded(audited(iteration))
