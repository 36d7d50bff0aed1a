"""A normaliser whose update moves no policy: the networks change with the statistics, so that nothing else does.

With the paper's normaliser, policy and value are other functions of the raw observations after every update of the
statistics, which no ratio sees. Here the first layer takes the change back, the samples of prior policies are kept raw
and normalised anew with the statistics in force, and the value keeps its meaning when the scale of rewards changes.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from gpi.core.agent import Agent
from gpi.core.critic import Critic
from gpi.core.network import Change
from gpi.core.normaliser import Normaliser, normalise, scaling_of
from gpi.core.policy import Theta
from gpi.core.sample import Buffer
from gpi.core.solvers import Adam

Params = TypeVar("Params", Theta, Critic)


def change_of(old: Normaliser, new: Normaliser) -> Change:
    """Return how what the networks read and predict changes with the statistics."""
    before, after = scaling_of(old.obs), scaling_of(new.obs)
    factor = scaling_of(old.returns).scale / scaling_of(new.returns).scale
    return Change(after.scale / before.scale, (after.centre - before.centre) / before.scale, factor)


def inverse(change: Change) -> Change:
    """Return the change back."""
    return Change(1.0 / change.stretch, -change.shift / change.stretch, 1.0 / change.factor)


def carried(adam: Adam[Params], change: Change) -> Adam[Params]:
    """Return parameters and moments of Adam in the units of the new statistics.

    A gradient transforms by the derivative of the way back; of the squares only the scale is known, not the shift.
    """
    params = adam.params.under(change)

    def back(change: Change, gradient: Params) -> Params:
        _, pull = jax.vjp(lambda params: params.under(inverse(change)), params)
        return pull(gradient)[0]

    scale_only = change._replace(shift=jnp.zeros_like(change.shift))
    roots = jax.tree.map(jnp.sqrt, adam.second)
    second = jax.tree.map(jnp.square, back(scale_only, roots))
    return adam._replace(params=params, first=back(change, adam.first), second=second)


def carry_over(agent: Agent, old: Normaliser, new: Normaliser) -> Agent:
    """Return the agent whose policy and value are, under the new statistics, the functions they were under the old."""
    change = change_of(old, new)
    return agent._replace(policy=carried(agent.policy, change), value=carried(agent.value, change))


def seen_now(normaliser: Normaliser, buffer: Buffer) -> Buffer:
    """Return raw samples of prior policies as the networks read them now."""
    return buffer._replace(rollout=normalise(normaliser, buffer.rollout))
