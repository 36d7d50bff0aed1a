"""Faults: NaN and infinity are named where they first appear, and reach no weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

STAGES = ("observation", "reward", "value", "ratio", "advantage", "gradient", "normaliser")
"""What is computed in one iteration, in this order."""
OBSERVATION, REWARD, VALUE, RATIO, ADVANTAGE, GRADIENT, NORMALISER = range(len(STAGES))
NONE = 0  # no fault; otherwise 1 + the stage


def finite(x: Any) -> Array:
    """Whether every number of a pytree is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(x) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def first_fault(stages: dict[int, Any]) -> Array:
    """The earliest stage with a number that is not finite, as int32: 1 + the stage, or 0."""
    bad = [jnp.where(finite(x), len(STAGES), stage) for stage, x in stages.items()]
    first = jnp.min(jnp.stack(bad))
    return jnp.where(first < len(STAGES), first + 1, NONE).astype(jnp.int32)
