"""The position of a pool: tracking it while collecting, and bringing another pool to it."""

import dataclasses
from itertools import islice
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

import gpi
from gpi import files
from gpi.callbacks import Evaluate
from gpi.config import Config
from gpi.core.sample import Rollout
from gpi.envs import envpool, replay, tasks
from gpi.envs.episodes import EpisodeCounter
from gpi.envs.pool import CompiledPool, Spec
from gpi.envs.replay import Position, digest_of
from gpi.errors import FileError
from gpi.training.job import resolve
from gpi.training.session import make_environments
from gpi.training.trainer import Trainer
from own_runs import Watch
from trainers import collecting, trainer_of


def test_the_position_of_a_pool_agrees_with_a_plain_count():
    """Random batches are compared with a count kept step by step."""
    rng = np.random.default_rng(0)
    P, T, E, A, O = 2, 13, 3, 2, 4
    position = Position(*np.zeros((3, P * E), np.int64), actions=np.zeros((0, P * E, A), np.float32))
    first = rng.standard_normal((P * E, O)).astype(np.float32)
    position = replay.position_after_reset(position, first)
    zero = np.zeros(1, np.float32)
    life = [{"resets": 1, "actions": [], "digest": digest_of(0, first[i : i + 1], zero)} for i in range(P * E)]
    for _ in range(12):
        valid = rng.random((P, T, E)) > 0.08
        obs = rng.standard_normal((P, T, E, O)).astype(np.float32)
        action = rng.standard_normal((P, T, E, A)).astype(np.float32)
        reward = np.where(valid, rng.standard_normal((P, T, E)), 0.0).astype(np.float32)
        raw: Any = Rollout(obs, action, reward, obs, valid, valid, valid)  # type: ignore[arg-type]
        position = replay.position_after_batch(position, raw, keep=True)
        for p, t, e in np.ndindex(P, T, E):
            mine, shown = life[p * E + e], (obs[p, t, e][None], reward[p, t, e][None])
            if valid[p, t, e]:
                mine["actions"].append(action[p, t, e])
                mine["digest"] = digest_of(mine["digest"], *shown)
            else:
                mine |= {"resets": mine["resets"] + 1, "actions": [], "digest": digest_of(0, *shown)}
        for i, mine in enumerate(life):
            assert position.resets[i] == mine["resets"] and position.digest[i] == mine["digest"]
            assert position.calls[i] == len(mine["actions"])
            np.testing.assert_array_equal(
                position.actions[: position.calls[i], i].reshape(-1, A), np.reshape(mine["actions"], (-1, A))
            )
    assert len(position.actions) == position.calls.max()


def test_actions_of_episodes_that_are_too_long_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replay, "ACTIONS_LIMIT", 20)
    position = Position(*np.zeros((3, 2), np.int64), actions=np.zeros((0, 2), np.int32))
    rows = np.ones((1, 30, 2), np.float32)
    raw: Any = Rollout(rows[..., None], rows.astype(np.int32), rows, rows[..., None], rows > 0, rows > 0, rows > 0)  # type: ignore[arg-type]
    position = replay.position_after_batch(position, raw, keep=True)
    assert len(position.actions) == 10 and (position.calls == 30).all()


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_the_host_collects_what_the_compiled_program_does(env: str, x64: None):
    """The same environments, once stepped inside the program and once by the loop in NumPy."""
    job = resolve(Config(env, "ppo", seeds=2, n=128, num_envs=2, hidden=(8,)))
    on_host = dataclasses.replace(job, task=job.task._replace(backend="gymnasium"))
    raws = []
    for one in (job, on_host):
        pool = cast(CompiledPool, make_environments(job))
        trainer = Trainer(one, pool if one is job else pool.on_host(), jax.local_devices()[:2])
        learner = collecting(trainer).learner
        policy = learner.state.learned.agent.policy
        moved = jax.tree.map(lambda x: x + 0.1, policy.params)  # biases start at zero, which would hide a fault
        agent = learner.state.learned.agent._replace(policy=policy._replace(params=moved))
        learner.state = learner.state._replace(learned=learner.state.learned._replace(agent=agent))
        raws.append(jax.tree.map(np.asarray, trainer.collect()))
    one, two = raws
    assert one.valid.shape == (2, 128, 2) and (one.valid == two.valid).all() and (one.done == two.done).all()
    for name in ("obs", "action", "reward", "next_obs"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=2e-3, atol=2e-3, err_msg=name)
    assert one.action.dtype == two.action.dtype


def returns_of(name: str, backend: str, episodes: int) -> tuple[Spec, np.ndarray]:
    """Return the task as its simulator describes it, and the returns of random actions."""
    rng, pool = np.random.default_rng(0), tasks.make_host_pool(tasks.find(name, backend), list(range(100, 110)))
    spec, counter, earned = pool.spec, EpisodeCounter(10), []
    pool.reset()
    while len(earned) < episodes:
        random = (
            rng.integers(spec.action_size, size=10) if spec.discrete else rng.uniform(-1, 1, (10, spec.action_size))
        )
        step = pool.step(random.astype(np.int32 if spec.discrete else np.float32))
        earned += [episode.total for episode in counter.add_step(step)]
    pool.close()
    return spec, np.array(earned)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Hopper-v5", "InvertedPendulum-v5"])
def test_envpool_has_gymnasium_s_environments(name: str, x64: None):
    """The same spaces, and random actions earn the same up to sampling error, whichever simulates."""
    (one, first), (two, second) = (returns_of(name, backend, 30) for backend in ("envpool", "gymnasium"))
    assert one[1:3] == two[1:3] and one.discrete == two.discrete and one.start == two.start
    np.testing.assert_allclose([one.low, one.high], [two.low, two.high])
    error = np.sqrt(first.var() / len(first) + second.var() / len(second))
    assert abs(first.mean() - second.mean()) <= 4.0 * error, (first.mean(), second.mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", envpool.GYMNASIUM)
def test_envpool_has_all_of_gymnasium_s_environments(name: str, x64: None):
    test_envpool_has_gymnasium_s_environments(name, x64)


def test_damaged_positions_are_refused(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    """The actions of a checkpoint may have any number of rows, but no other shape."""
    spec = {"a": files.ArraySpec((3, 2), np.dtype(np.float32), at_most=True)}
    for rows in range(4):
        data = files.encode({"a": np.zeros((rows, 2), np.float32)})
        assert len(data) in files.sizes(spec) and files.decode(data, spec)[0]["a"].shape == (rows, 2)
    for bad in (np.zeros((4, 2), np.float32), np.zeros((2, 3), np.float32), np.zeros((2, 2)), np.zeros(2, np.float32)):
        with pytest.raises(FileError, match="does not fit"):
            files.decode(files.encode({"a": bad}), spec)


def test_iterations_end_when_every_agent_has_its_steps(x64: None):
    """Rows that are resets do not count as steps."""
    trainer = trainer_of(Config("CartPole-v1", "ppo", seeds=2, n=64, hidden=(8,), epochs=1, minibatches=2))
    trainer.warm_up()
    assert sum(1 for _ in trainer.iterations(256)) == 3, "two batches of 128 rows hold a few resets"
    assert 256 <= trainer.taken.min() < 384
    assert sum(1 for _ in islice(trainer.iterations(256), 5)) == 0
    trainer.taken = np.array([300, 299])
    assert sum(1 for _ in islice(trainer.iterations(300), 5)) == 1, "every agent, not the first"
