"""Evaluation: every environment plays its share, policies act in their own units, intervals cover."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envs_own
import gpi
from gpi import cli
from gpi.callbacks import Evaluate, TensorBoard
from gpi.errors import FileError
from gpi.evaluation import Evaluation
from gpi.standalone import GaussianPolicy, assemble
from gpi.student import student
from own_runs import Watch, done


@pytest.fixture(scope="module")
def counter() -> Any:
    """Return a policy for Count, where actions do not matter."""
    layers = ((np.zeros((1, 1), np.float32), np.zeros(1, np.float32)),)
    one = np.ones(1, np.float32)
    return GaussianPolicy(layers, 0 * one, one, 0 * one, -one, one, {"task": "Count", "seed": "3"})


def test_every_environment_plays_its_share(counter: Any):
    """Stopping at the first episodes to end would favour short ones: the mean length is 5, not less."""
    result = gpi.evaluate(counter, envs_own.Count, episodes=500)
    assert list(result.returns) == [3] and len(result.returns[3]) == 500
    np.testing.assert_array_equal(result.returns[3], result.lengths[3])
    assert abs(result.mean - 5.0) < 0.4 and set(result.returns[3]) == set(range(1, 10))
    low, high = result.interval()
    assert low < 5.0 < high and high - low < 0.6
    again = gpi.evaluate(counter, envs_own.Count, episodes=500)
    np.testing.assert_array_equal(result.returns[3], again.returns[3])


def test_episodes_that_do_not_end_are_stopped(counter: Any):
    result = gpi.evaluate(counter, envs_own.Endless, episodes=3, max_steps=50)
    assert result.unfinished == 3 and (result.lengths[3] == 50).all()


def test_a_policy_acts_in_its_own_units_whatever_the_bounds_of_the_environment(counter: Any):
    """The action 0.5 is the force 0.5, even where the environment would accept 3."""
    seen: list[float] = []

    class Wider(envs_own.Count):
        action_space = envs_own.spaces.Box(-1.0, 3.0, (1,), np.float32)

        def step(self, action: np.ndarray) -> Any:
            seen.append(float(action[0]))
            return super().step(action)

    half = assemble(counter.arrays() | {"policy/layer0/bias": np.full(1, 0.5, np.float32)}, counter.about)
    gpi.evaluate(half, Wider, episodes=1)
    np.testing.assert_allclose(seen, 0.5, atol=1e-6)


def test_a_policy_of_another_environment_is_refused(counter: Any):
    with pytest.raises(gpi.UsageError, match="sees 1 numbers and has 1 continuous actions, envs_own:Walk shows 2"):
        gpi.evaluate(counter, envs_own.Walk)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_intervals_over_few_seeds_hold_as_often_as_they_say(seeds: int):
    """The percentile bootstrap held in 51, 74, 84 and 91 % here; 1,000 draws tell 95 % from those."""
    rng, hits = np.random.default_rng(seeds), 0
    for means in rng.standard_normal((1000, seeds)):
        result = Evaluation("x", {seed: np.array([mean]) for seed, mean in enumerate(means)}, {})
        low, high = result.interval()
        hits += low <= 0.0 <= high
    assert 0.93 < hits / 1000 < 0.97


def test_the_interval_over_seeds_is_of_their_means_as_in_a_study():
    returns = {0: np.array([0.0, 2.0]), 1: np.full(100, 3.0)}
    result = Evaluation("x", returns, returns)
    assert result.mean == 2.0 and result.interval(1) == (3.0, 3.0)
    assert result.interval() == pytest.approx((2.0 - 12.7062, 2.0 + 12.7062), abs=1e-4), "two seeds say little"
    _, low, high = student(np.array([1.0, 3.0]))
    assert result.interval() == (low, high)
    alone = Evaluation("x", {0: np.array([1.0])}, {})
    assert np.isnan(alone.interval()).all() and not alone.has_interval()


def test_eval_prints_each_seed(walk: tuple[gpi.Run, Watch, Evaluate], capsys: pytest.CaptureFixture[str]):
    run, _, _ = walk
    assert cli.main(["eval", str(run.dir), "--env", "envs_own:Walk", "--episodes", "5", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [len(seed["returns"]) for seed in printed["seeds"].values()] == [5, 5]
    assert cli.main(["eval", str(run.dir), "--env", "envs_own:Walk", "--seed", "1", "--sampled"]) == 0
    assert "    1        10" in capsys.readouterr().out
    whole = gpi.evaluate(run, envs_own.Walk, episodes=5)
    assert printed["mean"] == pytest.approx(whole.mean)


def test_an_export_loads_like_a_run(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    run, _, _ = walk
    assert cli.main(["export", str(run.dir), "--seed", "1", "--out", str(tmp_path / "p")]) == 0
    obs = np.random.default_rng(0).standard_normal((20, 2))
    np.testing.assert_array_equal(gpi.load(tmp_path / "p")(obs), run.policy(1)(obs))
    (tmp_path / "p" / "policy.safetensors").write_bytes(b"")
    with pytest.raises(FileError, match="damaged"):
        gpi.load(tmp_path / "p")


def test_audit_from_python(walk: tuple[gpi.Run, Watch, Evaluate]):
    run, _, _ = walk
    assert gpi.audit(run).updates == gpi.audit(run.dir).updates == 2 * done(run)["iterations"]


def test_tensorboard_without_its_package_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(gpi.UsageError, match="pip install 'gpi-rl\\[tensorboard\\]'"):
        TensorBoard()
