"""The population axis: P members in lockstep, padded where they do not fill the devices that they are sharded over."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")


class Population(NamedTuple):
    """How many members there are, and how many copies of the last one fill the devices."""

    members: int
    padding: int

    def real(self, tree: Tree) -> Tree:
        """Return the arrays of the members alone."""
        return jax.tree.map(lambda x: x[: self.members], tree)

    def padded(self, tree: Tree) -> Tree:
        """Return the arrays on the host, with the last member repeated until the devices are filled."""

        def pad(x: jax.Array | np.ndarray) -> np.ndarray:
            x = np.asarray(x)
            return np.concatenate([x, *[x[-1:]] * self.padding]) if self.padding else x

        return jax.tree.map(pad, tree)


def population_on(members: int, devices: int) -> Population:
    """Return a population of members that are sharded over devices."""
    return Population(members, -members % devices)
