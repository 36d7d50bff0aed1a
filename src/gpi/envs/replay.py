"""The position of a pool, kept while it is stepped, so that another process can bring a new pool to it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # replaying must not start JAX
    from gpi.core.sample import Rollout
    from gpi.envs.pool import CompiledPool, HostPool

ACTIONS_LIMIT = 2**24
"""Most numbers in the kept actions of all running episodes, 64 MB; longer episodes cannot be replayed."""


class Position(NamedTuple):
    """How far N environments have come: their resets, and the actions since the last; these decide what they show."""

    resets: np.ndarray  # int64 [N], including those at the end of an episode
    calls: np.ndarray  # int64 [N], steps of the running episode
    digest: np.ndarray  # int64 [N], checksum of everything shown since the last reset
    actions: np.ndarray  # [L, N, A] float32 or [L, N] int32, of the running episodes; rows past `calls` are zero


def digest_of(before: int, obs: np.ndarray, reward: np.ndarray) -> int:
    """Extend the checksum of an environment by rows of observations `[R, O]` and rewards `[R]`."""
    rows = np.concatenate([obs, reward[:, None]], axis=1, dtype=np.float32)
    return zlib.crc32(rows.tobytes(), before)


def first_digests(obs: np.ndarray) -> np.ndarray:
    """Return the checksums of environments that have shown nothing but their first observations `[N, O]`."""
    zero = np.zeros(1, np.float32)
    return np.array([digest_of(0, row[None], zero) for row in obs], np.int64)


def first_position(pool: CompiledPool | HostPool) -> Position:
    """Return the position of a newly made pool."""
    N, spec = pool.num_envs, pool.spec
    zero = np.zeros(N, np.int64)
    shape, dtype = ((0, N), np.int32) if spec.discrete else ((0, N, spec.action_size), np.float32)
    return Position(zero, zero, zero, np.zeros(shape, dtype))


def position_after_reset(position: Position, obs: np.ndarray) -> Position:
    """Return the position after one more reset of all environments, which showed `obs`."""
    return Position(position.resets + 1, 0 * position.calls, first_digests(obs), position.actions[:0])


class _RunningEpisode(NamedTuple):
    """The running episode of one environment."""

    calls: int
    digest: int
    actions: np.ndarray

    def after(self, obs: np.ndarray, reward: np.ndarray, valid: np.ndarray, action: np.ndarray) -> _RunningEpisode:
        """Return the running episode after further rows, in which new episodes may have begun."""
        begins = np.flatnonzero(~valid)
        if len(begins) == 0:
            actions = np.concatenate([self.actions, action])
            return _RunningEpisode(self.calls + len(action), digest_of(self.digest, obs, reward), actions)
        first = int(begins[-1])  # this row has the first observation, those after it are steps
        actions = action[first + 1 :]
        return _RunningEpisode(len(actions), digest_of(0, obs[first:], reward[first:]), actions)


def position_after_batch(position: Position, raw: Rollout, *, keep: bool) -> Position:
    """Return the position after a batch `[P, T, E]`; without `keep`, only the resets are counted.

    Nothing else matters where the next batch begins with a reset.
    """
    valid = _by_environment(raw.valid)
    resets = position.resets + (~valid).sum(axis=1)
    if not keep:
        return position._replace(resets=resets)
    obs, reward, action = (_by_environment(x) for x in (raw.next_obs, raw.reward, raw.action))
    episodes = []
    for i, calls in enumerate(position.calls):
        running = _RunningEpisode(int(calls), int(position.digest[i]), position.actions[:calls, i])
        episodes.append(running.after(obs[i], reward[i], valid[i], action[i]))
    calls = np.array([episode.calls for episode in episodes], np.int64)
    digest = np.array([episode.digest for episode in episodes], np.int64)
    longest = min(int(calls.max()), actions_limit(position.actions.shape))
    actions = np.zeros((longest, *position.actions.shape[1:]), position.actions.dtype)
    for i, episode in enumerate(episodes):
        kept = episode.actions[:longest]
        actions[: len(kept), i] = kept
    return Position(resets, calls, digest, actions)


def _by_environment(x: object) -> np.ndarray:
    """Arrange an array `[P, T, E, ...]` of a batch as `[P E, T, ...]`, in the order of the pool."""
    rows = np.moveaxis(np.asarray(x), 1, 2)
    return rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])


def actions_limit(shape: tuple[int, ...]) -> int:
    """Return the most steps of the running episodes whose actions are kept, given the shape of `Position.actions`."""
    return ACTIONS_LIMIT // max(int(np.prod(shape[1:])), 1)
