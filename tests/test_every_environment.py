"""Environments that gpi's authors did not write: all of EnvPool that fits, and ones that do not repeat themselves."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_own
import gpi
from gpi.cli import main
from gpi.envs import envpool, tasks
from gpi.envs.checks import Effort, check
from gpi.errors import FileError, UsageError
from own_runs import TABLES, TINY, done, stop_after

FAMILIES = (
    "BipedalWalker-v3", "phys2d/CartPole-v1", "highway-fast-v0", "TSP-v1", "MiniGrid-Empty-5x5-v0", "PointMassEasy-v1",
    "InvertedPendulum-v4", "MetaWorld/DrawerClose-v3", "CartpoleBalance-v1", "FetchReach-v4", "Play2048-v1",
    "FrozenLake-v1",
)  # fmt: skip
"""One id of each family that can be trained in, but those whose environments take seconds to make."""


def random_actions(spec: Any, rows: int, steps: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if spec.discrete:
        return rng.integers(spec.action_size, size=(steps, rows)).astype(np.int32)
    return rng.uniform(-1, 1, (steps, rows, spec.action_size)).astype(np.float32)


# --- EnvPool ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_ends_agree_with_the_environments_own_counters(name: str, monkeypatch: pytest.MonkeyPatch):
    """A step that only begins an episode is no transition, an end shows its own last observation, limits truncate."""
    pool = envpool.make_on_host(None, name, [3, 4], 1)
    counters, step = [], pool.env.step

    def watched(*arguments: Any) -> Any:
        out = step(*arguments)
        counters.append(out[4]["elapsed_step"].copy())
        return out

    monkeypatch.setattr(pool.env, "step", watched)
    limit, first = pool.env.spec.config.max_episode_steps, pool.reset()
    assert first.shape == (2, pool.spec.observation_size) and first.dtype == np.float32
    length, before = np.zeros(2, np.int64), np.zeros(2, np.bool_)
    for action in random_actions(pool.spec, 2, min(limit, 1000) + 60):
        out, elapsed = pool.step(action), counters[-1]
        np.testing.assert_array_equal(out.valid, ~before)
        length = np.where(out.valid, length + 1, 0)
        np.testing.assert_array_equal(elapsed, length)
        assert np.isfinite(out.obs).all() and np.isfinite(out.reward).all() and (out.reward[~out.valid] == 0).all()
        before = out.terminated | out.truncated
        assert (length[out.truncated] >= limit).all() and (before == (before & out.valid)).all()
        assert not (length >= limit)[~before].any()
    pool.close()


@pytest.mark.parametrize("name", ["FrozenLake-v1", "MiniGrid-Empty-5x5-v0", "SearchAndRescue-v0", "Knapsack-v1"])
def test_compiled_programs_show_what_the_host_does(name: str, x64: None):
    """One-hot numbers, parts in order, flags as numbers, actions of two dimensions."""
    compiled, host = envpool.make(None, name, [1, 2, 3], 1), envpool.make_on_host(None, name, [1, 2, 3], 1)
    chosen = random_actions(host.spec, 3, 40)
    handle, first = compiled.reset(compiled.handle)
    np.testing.assert_array_equal(first, host.reset())
    _, seen = jax.jit(lambda handle, actions: jax.lax.scan(compiled.step, handle, actions))(handle, jnp.asarray(chosen))
    for t, action in enumerate(chosen):
        for x, y in zip(seen, host.step(action), strict=True):
            assert np.asarray(x[t]).tobytes() == y.tobytes()
    compiled.close()


def test_an_agent_sees_the_parts_of_a_dict_in_the_order_of_their_keys():
    spec = envpool.find_spec("FrankaKitchen-v1")
    assert spec.observation_names[0] == "achieved_goal.bottom burner[0]" and spec.observation_size == 59 + 2 * 17
    assert spec.observation_names[-1] == "observation[58]" and sorted({x[:7] for x in spec.observation_names}) == [
        "achieve", "desired", "observa",
    ]  # fmt: skip
    pool = envpool.make_on_host(None, "MiniGrid-Empty-5x5-v0", [7], 1)
    row, [obs, _] = pool.reset()[0], envpool.make_on_host(None, "MiniGrid-Empty-5x5-v0", [7], 1).env.reset()
    np.testing.assert_array_equal(row[:4], np.arange(4) == obs["direction"])
    np.testing.assert_array_equal(row[4:], np.concatenate([obs["image"].ravel(), obs["mission"].ravel()]))


def test_a_policy_never_sees_what_a_robot_cannot_measure():
    spec = envpool.find_spec("Go1JoystickFlatTerrain-v1")
    assert spec.observation_size == 48 and spec.observation_names[0] == "state[0]"


@pytest.mark.parametrize(("name", "words"), [
    ("Go9x9-v1", "has 2 players"), ("Tetris-v0", "has whole numbers"), ("D1Basic-v1", "has bounds"),
    ("VizdoomCustom-v1", "EnvPool cannot make it: RuntimeError"), ("Nothing-v7", "EnvPool does not have Nothing-v7"),
])  # fmt: skip
def test_what_cannot_work_is_one_line(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # VizDoom leaves its settings where it is asked
    with pytest.raises(UsageError) as error:
        envpool.make_on_host(None, name, [1], 1)
    assert words.replace(" it:", f" {name}:") in str(error.value) and "\n" not in str(error.value)


def test_ids_that_gymnasium_knows_keep_their_simulator():
    """Old runs and policies mean what they meant; config.json records what a new one became."""
    for name, backend, simulator, recorded in (
        ("Ant-v4", "auto", "gymnasium", "gymnasium"), ("CartPole-v1", "auto", "envpool", "auto"),
        ("LunarLander-v3", "envpool", "envpool", "envpool"), ("cheetah-run", "auto", "dmc", "auto"),
        ("MetaWorld/DrawerClose-v3", "auto", "envpool", "envpool"), ("Taxi-v4", "processes", "processes", "processes"),
    ):  # fmt: skip
        task = tasks.find(name, backend)
        assert task.backend == simulator and tasks.simulator(task, backend) == recorded, name


def test_the_list_of_envpools_ids_has_sizes_and_reasons(capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "--all", "DRAWER*CLOSE"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["MetaWorld/DrawerClose-v3", "39", "numbers"]
    assert (
        main(["tasks", "--json", "--all", "Poker"]) == 0 and '"refused": "KuhnPoker-v1 has 2' in capsys.readouterr().out
    )
    assert main(["tasks", "--all", "no such id"]) == 2


@pytest.mark.parametrize(("name", "backend", "repeats"), [
    pytest.param("Catch-v0", "auto", "exact", marks=pytest.mark.slow), ("Blackjack-v1", "envpool", "inexact"),
])  # fmt: skip
def test_resume_is_exact_on_envpool_only_where_a_new_pool_continues_alike(
    name: str, backend: str, repeats: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    settings: dict[str, Any] = TINY | {"quiet": False, "backend": backend}
    part = gpi.train("ppo", name, out=tmp_path / "part", steps=512, callbacks=[stop_after(1)], **settings)
    about = json.loads((part.dir / "config.json").read_text())
    assert about["repeats"] == part.repeats == repeats and about["exact"] == (repeats == "exact")
    assert about["config"]["backend"] == "envpool" and tasks.find(name, "envpool").compiled
    capfd.readouterr()
    run = gpi.resume(part)
    said = capfd.readouterr().out
    assert done(run)["exact"] == (repeats == "exact") == ("no longer exact" not in said)
    assert done(run).get("repeats", "exact") == repeats and done(run)["complete"]
    if repeats == "exact":
        whole = gpi.train("ppo", name, out=tmp_path / "whole", steps=512, **settings)
        assert all((run.dir / table).read_bytes() == (whole.dir / table).read_bytes() for table in TABLES)


# --- environments that ignore their seeds -------------------------------------------------------------------------


def test_the_verdict_on_seeds_decides_everything(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    settings: dict[str, Any] = TINY | {"quiet": False, "trust": "keep", "return_range": (-200.0, 40.0)}
    part = gpi.train("ppo", envs_own.Unseeded, out=tmp_path / "r", steps=768, callbacks=[stop_after(1)], **settings)
    said = capfd.readouterr().out
    assert said.count("reset ignores its seed") == 1 and "certifies and undoes nothing here: resets of" in said
    assert part.repeats == "unseeded" and done(part)["repeats"] == "unseeded" and not done(part)["exact"]
    replays = envs_own.Unseeded.stepped
    run = gpi.resume(part, env=envs_own.Unseeded)
    assert "begin new episodes, and this run is no longer exact" in capfd.readouterr().out
    assert done(run)["complete"] and not done(run)["exact"] and "may carry state" in done(run)["uncertified"]
    assert envs_own.Unseeded.stepped > replays
    words = gpi.audit(run).verdict()
    assert "do not repeat themselves (unseeded)" in words and "since resets may carry state" in words
    gpi.evaluate(run, envs_own.Unseeded, episodes=2)
    assert "Unseeded ignores its seeds: these episodes cannot be repeated" in capfd.readouterr().err


def test_notes_are_said_once_even_if_they_come_late(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    settings: dict[str, Any] = TINY | {"quiet": False}
    run = gpi.train("ppo", envs_own.Strays, out=tmp_path / "r", steps=1500, **settings)
    said = capfd.readouterr().out
    assert said.count("outside its space") == 1 and "note: envs_own:Strays: step" in said and done(run)["exact"]


def test_the_check_before_training_takes_200_steps(tmp_path: Path):
    envs_own.Unseeded.stepped = 0
    check(tasks.find("envs_own:Unseeded"), None, Effort(200, 0, alone=True))
    assert envs_own.Unseeded.stepped == 200


def test_a_damaged_verdict_is_refused(tmp_path: Path):
    run = gpi.train("ppo", envs_own.Walk, out=tmp_path / "r", steps=128, **TINY)
    about = json.loads((run.dir / "config.json").read_text())
    (run.dir / "config.json").write_text(json.dumps(about | {"repeats": ["perhaps"]}))
    with pytest.raises(FileError, match=r"repeats = .*'perhaps'.* must be one of exact, inexact, unseeded"):
        gpi.resume(run, env=envs_own.Walk, steps=999, quiet=True)
