"""What an update of the normaliser's statistics does: it moves the policy, or the networks take the change back.

With the paper's normaliser, policy and value are other functions of the raw observations after every update of the
statistics, which no ratio sees. With a still one the first layer takes the change back, the samples of prior policies
are kept raw and normalised anew with the statistics in force, and the value keeps its meaning when the scale of rewards
changes. Rescaling that preserves outputs is Pop-Art's (van Hasselt et al. 2016), here for inputs as well as values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpi.core.agent import Agent, Hyper, Static
from gpi.core.network import Change, Convertible
from gpi.core.normaliser import CLIP, Normaliser, normalise, normalise_obs, scaling_of
from gpi.core.policy import log_pi
from gpi.core.sample import Buffer, Sample
from gpi.core.solvers import AnyAdam, Tree
from gpi.core.trust import TRUST, inside
from gpi.errors import UsageError

SHORTEST = 1.0 / 64.0  # part of the way to the statistics of all that was seen, below which those in force stay


def change_of(old: Normaliser, new: Normaliser) -> Change:
    """Return how what the networks read and predict changes with the statistics in force.

    Bounded by the clip range: larger jumps occur only where data were clipped, or where a constant observation first
    varies, and following those could leave weights too large to be unlearned.
    """
    before, after = old.in_force, new.in_force
    shift = jnp.clip((after.centre - before.centre) / before.scale, -CLIP, CLIP)
    stretch, factor = after.scale / before.scale, scaling_of(old.returns).scale / scaling_of(new.returns).scale
    return Change(jnp.clip(stretch, 1.0 / CLIP, CLIP), shift, jnp.clip(factor, 1.0 / CLIP, CLIP))


def inverse(change: Change) -> Change:
    """Return the change back."""
    return Change(1.0 / change.stretch, -change.shift / change.stretch, 1.0 / change.factor)


def convertible(x: object) -> Convertible:
    """Return parameters or a critic that can be carried over; raise UsageError for others."""
    if not isinstance(x, Convertible):
        raise UsageError(f"{type(x).__name__} has no `under`, which a still normaliser needs; use --normaliser paper")
    return x


def carried(adam: AnyAdam, change: Change, gain: Float[Array, ""]) -> AnyAdam:
    """Return parameters and moments of Adam in the units of the new statistics, where the objective is `gain` times it.

    First moments transform by the vjp of the inverse change, second moments by applying it twice. A shift also mixes in
    the covariance of the gradients of kernel and bias, which Adam does not track.
    """
    params = convertible(adam.params).under(change)

    def back(change: Change, gradient: Tree) -> Tree:
        _, pull = jax.vjp(lambda params: params.under(inverse(change)), params)
        return jax.tree.map(lambda g: gain * g, pull(gradient)[0])

    scale_only = change._replace(shift=jnp.zeros_like(change.shift))
    second = back(scale_only, back(scale_only, adam.second))
    return adam._replace(params=params, first=back(change, adam.first), second=second)


def carry_over(agent: Agent, old: Normaliser, new: Normaliser) -> Agent:
    """Return the agent whose policy and value are, under the new statistics, the functions they were under the old.

    Exactly so where neither statistics clip an observation, but for rounding. The policy's objective has no units.
    """
    change = change_of(old, new)
    policy = carried(agent.policy, change, jnp.ones_like(change.factor))
    return agent._replace(policy=policy, value=convertible(agent.value).under(change))


def follow(
    agent: Agent, old: Normaliser, new: Normaliser, buffer: Buffer, s: Sample, hyper: Hyper, static: Static
) -> tuple[Agent, Normaliser]:
    """Return the agent carried over, and statistics in force as near to all that was seen as eq (11) allows.

    They take the largest part of the way (1, 1/2, ... 1/64 or 0) with which pi_{k+1}, as it will act, is inside eq (11)
    for the prior policies as they acted. With 0 it always is. An accepted update was tested with the old statistics. A
    refused one leaves pi_k, which was inside when it was made; since then every prior policy has aged by one, nu never
    rises with age, and pi_k is at distance 0 from itself. Modes without that test promise nothing and go the whole way.
    """
    flat = buffer.raw_obs.reshape(-1, buffer.raw_obs.shape[-1])

    def at(part: Float[Array, ""]) -> Normaliser:
        def between(before: Array, after: Array) -> Array:
            return jnp.where(part < 1.0, before + part * (after - before), after)

        return new._replace(in_force=jax.tree.map(between, old.in_force, scaling_of(new.obs)))

    def outside(part: Float[Array, ""]) -> Bool[Array, ""]:
        normaliser = at(part)
        theta = carry_over(agent, old, normaliser).policy.params
        return ~inside(log_pi(theta, normalise_obs(normaliser.in_force, flat), s.action), s, hyper)

    def shorter(part: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.where(part > SHORTEST, 0.5 * part, 0.0)

    part = jnp.ones((), jnp.float32)
    if TRUST[static.trust].test:
        part = jax.lax.while_loop(lambda part: (part > 0.0) & outside(part), shorter, part)
    normaliser = at(part)
    return carry_over(agent, old, normaliser), normaliser


def seen_now(normaliser: Normaliser, buffer: Buffer) -> Buffer:
    """Return raw samples of prior policies as the networks read them now."""
    return buffer._replace(rollout=normalise(normaliser, buffer.rollout))


def as_stored(normaliser: Normaliser, buffer: Buffer) -> Buffer:
    """Return samples of prior policies as these saw them."""
    return buffer


def move(
    agent: Agent, old: Normaliser, new: Normaliser, buffer: Buffer, s: Sample, hyper: Hyper, static: Static
) -> tuple[Agent, Normaliser]:
    """Return the agent as it is, and the new statistics, under which it is another one."""
    return agent, new


class Normalising(NamedTuple):
    """What an update of the normaliser's statistics does to the samples and to the agent."""

    read: Callable[[Normaliser, Buffer], Buffer]  # the samples of prior policies, as this update reads them
    follow: Callable[
        [Agent, Normaliser, Normaliser, Buffer, Sample, Hyper, Static], tuple[Agent, Normaliser]
    ]  # agent and statistics that act next
    raw: bool  # whether the buffer keeps rollouts as prior policies saw them and observations as they came


NORMALISING = {"paper": Normalising(as_stored, move, raw=True), "still": Normalising(seen_now, follow, raw=False)}
