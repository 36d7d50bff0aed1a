"""Policies to go back to: draws from the windows whose performance is certified (`gpi.theory.certificate`)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from gpi.core.agent import Agent
from gpi.core.iteration import Learned, State
from gpi.core.normaliser import Normaliser
from gpi.core.solvers import Tree

NOTHING = 0  # where the kept policy comes from: 0, it stays; 1 + level, that level's draw; above all levels, pi_k


class Snapshot(NamedTuple):
    """A policy as it was when it played an episode, with all that learning changes besides the samples."""

    agent: Agent
    normaliser: Normaliser


class Memory(NamedTuple):
    """The policies that an agent may go back to."""

    draws: PyTree[Array]  # a `Snapshot` of each level `[L]`: one of its window's policies, all with the same chance
    kept: Snapshot  # of the window with the best certificate


def first_memory(now: Snapshot, levels: int) -> Memory:
    """Return the memory of an agent before its first episode."""
    return Memory(jax.tree.map(lambda x: jnp.broadcast_to(x, (levels, *x.shape)), now), now)


def remember(memory: Memory, now: Snapshot, take: Bool[Array, " L"], source: Int[Array, ""]) -> Memory:
    """Return the memory after pi_k has played: it is the new draw of the levels that `take` it.

    The kept policy comes from `source`: the old one stays, a level's previous draw replaces it, or pi_k does.
    """
    levels = take.shape[0]

    def draw(old: Array, now: Array) -> Array:
        return jnp.where(take.reshape(levels, *[1] * now.ndim), now[None], old)

    def keep(kept: Array, draws: Array, now: Array) -> Array:
        drawn = draws[jnp.clip(source - 1, 0, levels - 1)]
        return jnp.where(source == NOTHING, kept, jnp.where(source <= levels, drawn, now))

    return Memory(jax.tree.map(draw, memory.draws, now), jax.tree.map(keep, memory.kept, memory.draws, now))


def go_back(state: State, memory: Memory, undo: Bool[Array, ""]) -> State:
    """Return the agent at its kept policy if `undo`; random numbers continue, so that it learns differently.

    The samples of the policies that are lost are dropped, as they are outside eq (11) for the one restored; the replay
    stays, as what a critic learns from it is of any policy.
    """

    def back(kept: Tree, now: Tree) -> Tree:
        return jax.tree.map(lambda kept, now: jnp.where(undo, kept, now), kept, now)

    agent, buffer, normaliser = state.learned
    buffer = buffer._replace(policies=jnp.where(undo, 0, buffer.policies).astype(jnp.int32))
    agent, normaliser = back(memory.kept, Snapshot(agent, normaliser))
    return state._replace(learned=Learned(agent, buffer, normaliser))
