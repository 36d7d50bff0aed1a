"""What training needs of environments: a pool of N of them, stepped together."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any  # JAX's inside a compiled program, NumPy's on the host


class Spec(NamedTuple):
    """A task, as far as an agent must know it before acting in it."""

    id: str
    """Canonical id, `dmc/cheetah-run` or `Pendulum-v1`."""
    observation_size: int
    action_size: int
    """Numbers in an action or, where actions are discrete, how many there are to choose from."""
    horizon: int | None
    """Steps that every episode has; None where episodes end anywhere."""
    discrete: bool = False
    low: tuple[float, ...] = ()
    """Bounds of the environment's actions, which the agent's [-1, 1] are scaled to; none where discrete."""
    high: tuple[float, ...] = ()
    start: int = 0
    """The first of discrete actions."""
    observation_names: tuple[str, ...] = ()
    """What each entry of a flattened observation is, where the environment names its parts."""


class Step(NamedTuple):
    """What one step of N environments returns."""

    obs: Array
    """[N, O] float32: the true next observation, also where the episode ends."""
    reward: Array
    """[N] float32; meaningless, possibly NaN, in the step after an end."""
    terminated: Array
    """[N] bool: the episode ended, the value of what follows is zero."""
    truncated: Array
    """[N] bool: the episode was cut, the value of what follows is that of `obs`."""


class Place(NamedTuple):
    """Where each of N environments is: the resets it has drawn, and the actions since. These decide what it shows."""

    resets: np.ndarray  # int64 [N], those at the end of an episode included
    calls: np.ndarray  # int64 [N], steps of the running episode
    digest: np.ndarray  # int64 [N], checksum of all it showed since its last reset
    actions: np.ndarray  # [L, N, A] float32 or [L, N] int32, of the running episodes; rows past `calls` are zero


class Pool(Protocol):
    """N environments of one task.

    Environments reset themselves on the step *after* an end: that step discards its action and returns the first
    observation of the next episode with a meaningless reward. It is not a transition: mask it.
    """

    spec: Spec
    num_envs: int
    compiled: bool
    """Whether `step` works inside jit and scan, on JAX arrays; otherwise it works on the host, on NumPy arrays."""
    handle: Any
    """Where threading starts: `reset` and `step` take the latest handle and return the next one, so that the
    compiled program keeps their order."""

    def reset(self, handle: Any) -> tuple[Any, Array]:
        """Start a new episode in every environment; on the host, never inside jit. Returns observations [N, O]."""
        ...

    def step(self, handle: Any, action: Array) -> tuple[Any, Step]:
        """Step every environment with action [N, A] float32, clipped to [-1, 1], or [N] int32 where discrete.

        It has a side effect: never inside vmap, cond or checkpoint.
        """
        ...

    def close(self) -> None:
        """Free the environments. No program compiled with this pool may run afterwards."""
        ...


class Seekable(Pool, Protocol):
    """A pool that a new process can bring to where another one was, and that can be stepped on the host."""

    def play(self, action: np.ndarray) -> Step:
        """Step on the host, on NumPy arrays."""
        ...

    def seek(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """Bring a pool that was only made to a place; returns the observations [N, O] there and their digests [N]."""
        ...


def digest_of(before: int, obs: np.ndarray, reward: np.ndarray) -> int:
    """The checksum of what an environment showed, continued by rows of observations `[R, O]` and rewards `[R]`."""
    rows = np.concatenate([obs, reward[:, None]], axis=1, dtype=np.float32)
    return zlib.crc32(rows.tobytes(), before)
