"""What a critic keeps beyond the M slots: a ring of the newest batches, written in place, never copied by the guard."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from gpi.core import faults
from gpi.core.sample import Rollout


class Ring(NamedTuple):
    """The newest batches, raw and with those of the warm-up: batch b lies in slot b mod R, and the oldest leaves."""

    rows: Rollout  # R slots, `[R, T, E, ...]`
    count: Int[Array, ""]  # batches counted in


Replay = tuple[Ring, ...]
"""What an agent keeps beyond the M slots: one ring, or nothing, which is the empty tuple."""


def init_replay(rollout: Rollout, transitions: int) -> Replay:
    """Return an empty ring for that number of transitions or more, in whole batches like `rollout`; nothing for 0."""
    slots = -(-transitions // rollout.reward.size)
    rows = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape), x.dtype), rollout)
    return (Ring(rows, jnp.zeros((), jnp.int32)),) if transitions else ()


def put(replay: Replay, raw: Rollout, fault: Int[Array, ""]) -> Replay:
    """Return the replay after one more batch; a batch that is not finite, or of a frozen agent, is not written."""

    def written(ring: Ring) -> Ring:
        sound = (fault == faults.NONE) & faults.finite(raw)
        slots = ring.rows.reward.shape[0]
        slot = jnp.where(sound, ring.count % slots, slots)  # writing there, outside, does nothing
        rows = jax.tree.map(lambda x, new: x.at[slot].set(new, mode="drop"), ring.rows, raw)
        return Ring(rows, ring.count + sound.astype(jnp.int32))

    return tuple(written(ring) for ring in replay)


def counted(old: Replay, new: Replay, fault: Int[Array, ""]) -> Replay:
    """Return the new replay; after a fault its last batch is not counted in, so that the next would overwrite it."""
    counts = [
        jnp.where(fault == faults.NONE, after.count, before.count) for before, after in zip(old, new, strict=True)
    ]
    return tuple(ring._replace(count=count) for ring, count in zip(new, counts, strict=True))
