"""The contract of environments: a pool of N of them, stepped together, on the host or inside a compiled program.

An environment whose episode has ended begins the next one on the following step, which ignores its action and only
returns the first observation. The pool keeps track of that and marks such a step as not `valid`; no caller needs to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:  # describing a pool must not start JAX
    import jax

    from gpi.envs.replay import Position

Around = Callable[[], AbstractContextManager[object]]
"""Makes a context for environments to run in."""
Notes = dict[str, str]
"""What a user should know of environments, and training can live with: a line for each kind, of its first case."""
Repeats = Literal["exact", "inexact", "unseeded"]
"""Whether environments of the same seeds repeat each other: everything, their first observations only, or nothing."""
Handle = Any  # opaque: it orders the steps of a compiled program
ArrayT = TypeVar("ArrayT")
"""`jax.Array` inside a compiled program, `np.ndarray` on the host."""


class Spec(NamedTuple):
    """The facts about a task that an agent needs before it acts."""

    id: str
    """Canonical id, `dmc/cheetah-run` or `Pendulum-v1`."""
    observation_size: int
    action_size: int
    """Number of entries of an action or, where actions are discrete, of actions to choose from."""
    horizon: int | None
    """Length of every episode in steps; None where episodes differ in length."""
    discrete: bool = False
    low: tuple[float, ...] = ()
    """Bounds of the environment's actions, to which the agent's [-1, 1] is scaled; empty where discrete."""
    high: tuple[float, ...] = ()
    start: int = 0
    """The first discrete action."""
    observation_names: tuple[str, ...] = ()
    """Name of each entry of a flattened observation, where the environment names its parts."""

    @property
    def kind(self) -> str:
        """The kind of its actions, which decides the policy."""
        return "discrete" if self.discrete else "continuous"


class Step(NamedTuple, Generic[ArrayT]):
    """The result of one step of N environments."""

    obs: ArrayT
    """[N, O] float32: the true next observation, also where the episode ends."""
    reward: ArrayT
    """[N] float32; 0 where not valid."""
    terminated: ArrayT
    """[N] bool: the episode ended and nothing of value follows; False where not valid."""
    truncated: ArrayT
    """[N] bool: the episode was cut off and the value of `obs` follows; False where not valid."""
    valid: ArrayT
    """[N] bool: False where the step only began a new episode, which is not a transition."""


class CompiledPool(Protocol):
    """N environments of one task, stepped inside jit and scan, on JAX arrays."""

    spec: Spec
    num_envs: int
    notes: Notes
    handle: Handle
    """The first handle. `reset` and `step` take the latest one and return the next, so that the compiled program keeps
    their order."""

    def reset(self, handle: Handle) -> tuple[Handle, np.ndarray]:
        """Start a new episode in every environment and return observations [N, O]; on the host, never inside jit."""
        ...

    def step(self, handle: Handle, action: jax.Array) -> tuple[Handle, Step[jax.Array]]:
        """Step every environment with actions [N, A] float32, clipped to [-1, 1], or [N] int32 where discrete.

        It has a side effect: never call it inside vmap, cond or checkpoint.
        """
        ...

    def seek(self, position: Position) -> tuple[Handle, np.ndarray, np.ndarray]:
        """Bring a newly made pool to a position; return the handle, the observations [N, O] and the digests [N]."""
        ...

    def on_host(self) -> HostPool:
        """Return the same environments, stepped on the host, but never while a compiled program steps them."""
        ...

    def close(self) -> None:
        """Free the environments. No program compiled with this pool may run afterwards."""
        ...


class HostPool(Protocol):
    """N environments of one task, stepped on the host, on NumPy arrays."""

    spec: Spec
    num_envs: int
    notes: Notes

    def reset(self) -> np.ndarray:
        """Start a new episode in every environment and return observations [N, O]."""
        ...

    def step(self, action: np.ndarray) -> Step[np.ndarray]:
        """Step every environment with actions [N, A] float32, clipped to [-1, 1], or [N] int32 where discrete."""
        ...

    def seek(self, position: Position) -> tuple[np.ndarray, np.ndarray]:
        """Bring a newly made pool to a position; return the observations [N, O] and the digests [N]."""
        ...

    def close(self) -> None:
        """Free the environments."""
        ...
