"""What training needs of environments: a pool of N of them, stepped together inside a compiled program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:  # listing tasks must not start JAX
    import jax
    import numpy as np


class Spec(NamedTuple):
    """A task, as far as an agent must know it before acting in it."""

    id: str
    """Canonical id, `dmc/cheetah-run`."""
    observation_size: int
    action_size: int
    horizon: int
    """Steps after which an episode is truncated."""


class Step(NamedTuple):
    """What one step of N environments returns."""

    obs: jax.Array
    """[N, O] float32: the true next observation, also where the episode ends."""
    reward: jax.Array
    """[N] float32; meaningless, possibly NaN, in the step after an end."""
    terminated: jax.Array
    """[N] bool: the episode ended, the value of what follows is zero."""
    truncated: jax.Array
    """[N] bool: the episode was cut, the value of what follows is that of `obs`."""


class Pool(Protocol):
    """N environments of one task.

    Environments reset themselves on the step *after* an end: that step discards its action and returns the first
    observation of the next episode with a meaningless reward. It is not a transition: mask it.
    """

    spec: Spec
    num_envs: int
    handle: Any
    """Where threading starts: `reset` and `step` take the latest handle and return the next one, so that the
    compiled program keeps their order."""

    def reset(self, handle: Any) -> tuple[Any, np.ndarray | jax.Array]:
        """Start a new episode in every environment; on the host, never inside jit. Returns observations [N, O]."""
        ...

    def step(self, handle: Any, action: jax.Array) -> tuple[Any, Step]:
        """Step every environment with action [N, A] float32.

        Works inside jit and scan. It has a side effect: never inside vmap, cond or checkpoint.
        """
        ...

    def close(self) -> None:
        """Free the environments. No program compiled with this pool may run afterwards."""
        ...
