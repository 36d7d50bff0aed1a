"""Faults: NaN and infinity are named where they first appear, and reach no weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

STAGES = ("observation", "reward", "value", "ratio", "advantage", "gradient", "normaliser")
"""The stages of one iteration, in the order in which they are computed."""
NONE = 0  # no fault; otherwise 1 + the stage


def finite(x: PyTree[Array]) -> Bool[Array, ""]:
    """Return whether every number of a pytree is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(x) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def first_fault(sound: dict[str, Bool[Array, ""]]) -> Int[Array, ""]:
    """Return the earliest stage that is not sound, as 1 + its number, or 0."""
    bad = [jnp.where(good, len(STAGES), STAGES.index(stage)) for stage, good in sound.items()]
    first = jnp.min(jnp.stack(bad))
    return jnp.where(first < len(STAGES), first + 1, NONE).astype(jnp.int32)
