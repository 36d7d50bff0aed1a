"""Counting episodes: rewards added up into returns, steps into lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # counting must not start JAX
    from gpi.core.sample import Rollout
    from gpi.envs.pool import Step


class Episode(NamedTuple):
    """An episode that has ended."""

    env: int  # number of its environment
    total: float  # its return
    length: int


class EndedInBatch(NamedTuple):
    """An episode that ended in a batch."""

    steps: int  # of the member within the batch, when it ended
    total: float  # its return
    length: int
    env: int  # number of its environment, of the member's


class EpisodeCounter:
    """Adds up the rewards of environments; `total` and `length` are those of the running episodes."""

    def __init__(self, *shape: int):
        """Start before the first episode: of N environments, or of P members with E environments each."""
        self.total = np.zeros(shape)
        self.length = np.zeros(shape, np.int64)

    def forget(self) -> None:
        """Drop the running episodes, which will never end."""
        self.total[:], self.length[:] = 0.0, 0

    def add_step(self, step: Step[np.ndarray]) -> list[Episode]:
        """Add one step of N environments; return the episodes that ended with it."""
        return self.add(step.reward, step.terminated | step.truncated, step.valid)

    def add(self, reward: np.ndarray, done: np.ndarray, valid: np.ndarray) -> list[Episode]:
        """Add one step given as arrays `[N]`; return the episodes that ended with it."""
        self.total += reward
        self.length += valid
        return [Episode(int(i), *self._end((int(i),))) for i in np.flatnonzero(done)]

    def add_batch(self, raw: Rollout, frozen: np.ndarray) -> list[list[EndedInBatch]]:
        """Add a batch `[P, T, E]`; return the episodes of each member that ended in it, and none of frozen members."""
        P, T, E = raw.reward.shape
        ended: list[list[EndedInBatch]] = [[] for _ in range(P)]
        steps = np.cumsum(raw.valid.sum(axis=2), axis=1)
        for p, e in np.ndindex(P, E):
            if frozen[p]:
                continue
            begin = 0
            for t in np.flatnonzero(raw.done[p, :, e]):
                self._extend(raw, p, e, slice(begin, int(t) + 1))
                ended[p].append(EndedInBatch(int(steps[p, t]), *self._end((p, e)), e))
                begin = int(t) + 1
            self._extend(raw, p, e, slice(begin, T))
        return [sorted(member) for member in ended]

    def _extend(self, raw: Rollout, p: int, e: int, rows: slice) -> None:
        """Add a part of an episode as one sum: the rounding of the parts is part of a run's results."""
        self.total[p, e] += raw.reward[p, rows, e].sum(dtype=np.float64)
        self.length[p, e] += int(raw.valid[p, rows, e].sum())

    def _end(self, env: tuple[int, ...]) -> tuple[float, int]:
        """Return the return and length of an episode that ends here, and begin the next."""
        ended = float(self.total[env]), int(self.length[env])
        self.total[env], self.length[env] = 0.0, 0
        return ended
