"""Where a pool of environments is, kept as it goes, so that another process can bring a new one there."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpi.core.sample import Rollout
from gpi.envs.pool import Place, Pool, digest_of

ACTIONS_LIMIT = 2**24
"""Numbers that the running episodes' actions may have in all, 64 MB; longer episodes cannot be replayed."""


def after_reset(place: Place, obs: np.ndarray) -> Place:
    """Where a pool is after one more reset of all environments, which showed `obs`."""
    zero = np.zeros(1, np.float32)
    digest = np.array([digest_of(0, row[None], zero) for row in obs], np.int64)
    return Place(place.resets + 1, 0 * place.calls, digest, place.actions[:0])


def after_batch(place: Place, raw: Rollout, *, keep: bool) -> Place:
    """Where a pool is after a batch `[P, T, E]`; unless its actions are to be kept, only the resets count."""
    P, T, E = raw.valid.shape
    rows: Any = Rollout._make(np.moveaxis(np.asarray(x), 1, 0).reshape(T, P * E, *x.shape[3:]) for x in raw)
    resets = place.resets + (~rows.valid).sum(axis=0)
    if not keep:
        return place._replace(resets=resets)
    calls, digest, running = place.calls.copy(), place.digest.copy(), []
    for i in range(P * E):
        again = np.flatnonzero(~rows.valid[:, i])
        begin = int(again[-1]) if len(again) else 0
        fresh = digest_of(0 if len(again) else int(digest[i]), rows.next_obs[begin:, i], rows.reward[begin:, i])
        before = [] if len(again) else [place.actions[: calls[i], i]]
        running.append(np.concatenate([*before, rows.action[begin + len(again[-1:]) :, i]]))
        calls[i], digest[i] = (T - begin - 1 if len(again) else calls[i] + T), fresh
    longest = min(int(calls.max()), actions_limit(place.actions.shape))
    actions = np.zeros((longest, *place.actions.shape[1:]), place.actions.dtype)
    for i, taken in enumerate(running):
        actions[: len(taken[:longest]), i] = taken[:longest]
    return Place(resets, calls, digest, actions)


def actions_limit(shape: tuple[int, ...]) -> int:
    """Steps of the running episodes whose actions are kept."""
    return ACTIONS_LIMIT // max(int(np.prod(shape[1:])), 1)


def first_place(pool: Pool) -> Place:
    """A pool that was only made."""
    zero, spec = np.zeros(pool.num_envs, np.int64), pool.spec
    none = (0, pool.num_envs) if spec.discrete else (0, pool.num_envs, spec.action_size)
    return Place(zero, zero, zero, np.zeros(none, np.int32 if spec.discrete else np.float32))
