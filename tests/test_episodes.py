"""The counter of episodes, compared with a plain sum."""

from typing import Any

import numpy as np

from gpi.core.sample import Rollout
from gpi.envs.episodes import EndedInBatch, Episode, EpisodeCounter
from gpi.envs.pool import Step


def life(T: int, N: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rewards, ends and valid rows `[T, N]` of environments whose episodes end at random."""
    rng = np.random.default_rng(seed)
    done, valid = rng.random((T, N)) < 0.15, np.ones((T, N), np.bool_)
    for t in range(1, T):
        valid[t] = ~done[t - 1]
        done[t] &= valid[t]
    reward = np.where(valid, rng.standard_normal((T, N)), 0.0).astype(np.float32)
    return reward, done, valid


def test_steps_add_up_to_episodes():
    reward, done, valid = life(200, 3)
    counter, found = EpisodeCounter(3), []
    for t in range(200):
        zero = np.zeros(3, np.bool_)
        terminated, truncated = (done[t], zero) if t % 2 else (zero, done[t])
        found += counter.add_step(Step(np.zeros((3, 1), np.float32), reward[t], terminated, truncated, valid[t]))
    expected = []
    total, length = [0.0] * 3, [0] * 3
    for t, i in np.ndindex(200, 3):
        total[i], length[i] = total[i] + float(reward[t, i]), length[i] + int(valid[t, i])
        if done[t, i]:
            expected.append(Episode(i, total[i], length[i]))
            total[i], length[i] = 0.0, 0
    assert found == expected and len(found) > 50
    assert counter.total.tolist() == total and counter.length.tolist() == length
    counter.forget()
    assert not counter.total.any() and not counter.length.any()


def test_batches_add_up_to_episodes_that_span_them():
    """There are two members with three environments each; the first is frozen in the last batch."""
    P, T, E, batches = 2, 20, 3, 4
    reward, done, valid = (x.reshape(-1, P, E) for x in life(T * batches, P * E))
    counter = EpisodeCounter(P, E)
    total, length = np.zeros((P, E)), np.zeros((P, E), np.int64)
    for b in range(batches):
        rows = slice(b * T, (b + 1) * T)
        r, d, v = (np.moveaxis(x[rows], 0, 1) for x in (reward, done, valid))
        raw: Any = Rollout(r, r, r, r, d, d, v)  # type: ignore[arg-type]
        frozen = np.array([b == batches - 1, False])
        expected: list[list[EndedInBatch]] = [[], []]
        for p, e in np.ndindex(P, E):
            begin = 0
            for t in [] if frozen[p] else [*np.flatnonzero(d[p, :, e]), T - 1]:
                total[p, e] += np.sum(r[p, begin : t + 1, e], dtype=np.float64)  # a part of an episode is one sum
                length[p, e] += v[p, begin : t + 1, e].sum()
                if d[p, t, e] and begin <= t:
                    ended = float(total[p, e]), int(length[p, e])
                    expected[p].append(EndedInBatch(int(v[p, : t + 1].sum()), *ended, e))
                    total[p, e], length[p, e] = 0.0, 0
                begin = t + 1
        assert counter.add_batch(raw, frozen) == [sorted(member) for member in expected]
        assert (counter.total == total).all() and (counter.length == length).all()
        assert expected[1] and (not expected[0]) == frozen[0]
