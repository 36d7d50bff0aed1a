"""Training in environments that are not the study's: from first try to resume, evaluation and callbacks."""

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import envs_own
import jax
import numpy as np
import pytest

import gpi
from gpi import cli, files, policy_file
from gpi.callbacks import Evaluate, Report, StopAt, TensorBoard
from gpi.core.sample import Rollout
from gpi.envs import envpool, replay, tasks
from gpi.envs.pool import Place, digest_of
from gpi.errors import DiskError, EnvironmentFault, FileError
from gpi.evaluation import Evaluation, bootstrap
from gpi.rundir.resume import Saver
from gpi.training import devices as runtime
from gpi.training import train
from gpi.training import trainer as loop
from gpi.training.config import Config, resolved
from gpi.training.progress import Progress, sentence
from gpi.training.session import identity_of, make_pool

TINY: dict[str, Any] = {
    "seeds": 2, "n": 128, "minibatches": 4, "epochs": 1, "hidden": (8,), "checkpoint_every": 2, "quiet": True,
}  # fmt: skip
TABLES = ("metrics.csv", "episodes.csv", "audit.csv")


def done(run: gpi.Run) -> dict[str, Any]:
    return json.loads((run.dir / "DONE").read_text())


def stop_after(iterations: int) -> Any:
    return lambda report: report.iteration == iterations


# --- where a pool is --------------------------------------------------------------------------------------------------


def test_the_place_of_a_pool_is_what_a_plain_account_says():
    """Batches of random lives, beside an account kept step by step."""
    rng = np.random.default_rng(0)
    P, T, E, A, O = 2, 13, 3, 2, 4
    place = Place(*np.zeros((3, P * E), np.int64), actions=np.zeros((0, P * E, A), np.float32))
    first = rng.standard_normal((P * E, O)).astype(np.float32)
    place = replay.after_reset(place, first)
    zero = np.zeros(1, np.float32)
    life = [{"resets": 1, "actions": [], "digest": digest_of(0, first[i : i + 1], zero)} for i in range(P * E)]
    for _ in range(12):
        valid = rng.random((P, T, E)) > 0.08
        obs = rng.standard_normal((P, T, E, O)).astype(np.float32)
        action = rng.standard_normal((P, T, E, A)).astype(np.float32)
        reward = np.where(valid, rng.standard_normal((P, T, E)), 0.0).astype(np.float32)
        raw: Any = Rollout(obs, action, reward, obs, valid, valid, valid)  # type: ignore[arg-type]
        place = replay.after_batch(place, raw, keep=True)
        for p, t, e in np.ndindex(P, T, E):
            mine, shown = life[p * E + e], (obs[p, t, e][None], reward[p, t, e][None])
            if valid[p, t, e]:
                mine["actions"].append(action[p, t, e])
                mine["digest"] = digest_of(mine["digest"], *shown)
            else:
                mine |= {"resets": mine["resets"] + 1, "actions": [], "digest": digest_of(0, *shown)}
        for i, mine in enumerate(life):
            assert place.resets[i] == mine["resets"] and place.digest[i] == mine["digest"]
            assert place.calls[i] == len(mine["actions"])
            np.testing.assert_array_equal(
                place.actions[: place.calls[i], i].reshape(-1, A), np.reshape(mine["actions"], (-1, A))
            )
    assert len(place.actions) == place.calls.max()


def test_episodes_too_long_to_keep_are_cut_not_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replay, "ACTIONS_LIMIT", 20)
    place = Place(*np.zeros((3, 2), np.int64), actions=np.zeros((0, 2), np.int32))
    rows = np.ones((1, 30, 2), np.float32)
    raw: Any = Rollout(rows[..., None], rows.astype(np.int32), rows, rows[..., None], rows > 0, rows > 0, rows > 0)  # type: ignore[arg-type]
    place = replay.after_batch(place, raw, keep=True)
    assert len(place.actions) == 10 and (place.calls == 30).all()


# --- collecting on the host -------------------------------------------------------------------------------------------


class Collector(loop.Trainer):
    """A trainer that never learns, and so need not compile how."""

    def _learning(self, raw: Any) -> list[Any]:
        return [SimpleNamespace(compile=lambda: None)] * 2


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_the_host_collects_what_the_compiled_program_does(env: str, x64: None):
    """The same environments, once stepped inside the program and once by the loop in NumPy."""
    config = resolved(Config(env, "ppo", seeds=2, n=128, num_envs=2, hidden=(8,)))
    raws = []
    for compiled in (True, False):
        pool = make_pool(config)
        pool.compiled = compiled
        if not compiled:
            pool.step = lambda handle, action, pool=pool: (handle, pool.play(action))  # type: ignore[method-assign]
        trainer = Collector(config, pool, jax.local_devices()[:2])
        policy = trainer.state.agent.policy
        moved = jax.tree.map(lambda x: x + 0.1, policy.params)  # biases begin at zero, and would not be missed
        agent = trainer.state.agent._replace(policy=policy._replace(params=moved))
        trainer.state = trainer.state._replace(agent=agent)
        raws.append(jax.tree.map(np.asarray, trainer.gather()))
    one, two = raws
    assert one.valid.shape == (2, 128, 2) and (one.valid == two.valid).all() and (one.done == two.done).all()
    for name in ("obs", "action", "reward", "next_obs"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=2e-3, atol=2e-3, err_msg=name)
    assert one.action.dtype == two.action.dtype


def returns_of(name: str, backend: str, episodes: int) -> tuple[Any, np.ndarray]:
    """What random actions earn, and the task as its simulator describes it."""
    rng, pool = np.random.default_rng(0), tasks.make_pool(tasks.find(name, backend), list(range(100, 110)), 1)
    spec, total, ended, earned = pool.spec, np.zeros(10), np.zeros(10, np.bool_), []
    pool.reset(pool.handle)
    while len(earned) < episodes:
        random = (
            rng.integers(spec.action_size, size=10) if spec.discrete else rng.uniform(-1, 1, (10, spec.action_size))
        )
        out = pool.play(random.astype(np.int32 if spec.discrete else np.float32))
        total += np.where(ended, 0.0, out.reward)
        over = ~ended & (np.asarray(out.terminated) | np.asarray(out.truncated))
        earned += list(total[over])
        total[over | ended], ended = 0.0, over
    pool.close()
    return spec, np.array(earned)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Hopper-v5", "InvertedPendulum-v5"])
def test_envpool_has_gymnasium_s_environments(name: str, x64: None):
    """The same spaces, and random actions earn the same up to sampling error, whichever simulates."""
    (one, first), (two, second) = (returns_of(name, backend, 30) for backend in ("envpool", "gymnasium"))
    assert one[1:3] == two[1:3] and one.discrete == two.discrete and one.start == two.start
    np.testing.assert_allclose([one.low, one.high], [two.low, two.high])
    error = np.sqrt(first.var() / len(first) + second.var() / len(second))
    assert abs(first.mean() - second.mean()) < 4.0 * error, (first.mean(), second.mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", envpool.GYMNASIUM)
def test_envpool_has_all_of_gymnasium_s_environments(name: str, x64: None):
    test_envpool_has_gymnasium_s_environments(name, x64)


# --- training ---------------------------------------------------------------------------------------------------------


class Watch:
    """A callback that keeps what it sees."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def __call__(self, report: Report) -> None:
        self.reports.append(report)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> tuple[gpi.Run, Watch, Evaluate]:
    """GePPO in an environment of our own, with every kind of callback."""
    watch, evaluation = Watch(), Evaluate(every=3, episodes=4)
    out = tmp_path_factory.mktemp("walk") / "run"
    callbacks = [watch, evaluation]
    run = gpi.train("geppo", envs_own.Walk, out=out, steps=900, callbacks=callbacks, tensorboard=True, **TINY)
    return run, watch, evaluation


def test_own_environments_train(walk: tuple[gpi.Run, Watch, Evaluate]):
    run, watch, _ = walk
    assert run.config["task"] == "envs_own:Walk" and run.config["reset_each_batch"] is False
    steps = done(run)["steps"]
    assert all(900 <= count < 900 + 128 for count in steps), "valid steps only, until every seed has them"
    assert done(run)["iterations"] * 128 > max(steps), "resets took rows of the batches"
    with (run.dir / "episodes.csv").open() as file:
        lengths = [int(row["length"]) for row in csv.DictReader(file)]
    assert lengths and min(lengths) >= 1 and max(lengths) <= 40
    assert [report.iteration for report in watch.reports] == list(range(1, done(run)["iterations"] + 1))


def test_callbacks_see_what_the_tables_say(walk: tuple[gpi.Run, Watch, Evaluate]):
    run, watch, evaluation = walk
    report = watch.reports[-1]
    with (run.dir / "metrics.csv").open() as file:
        last = [row for row in csv.DictReader(file) if int(row["iteration"]) == report.iteration]
    np.testing.assert_allclose(report.metrics["tv"], [float(row["tv"]) for row in last], rtol=1e-6)
    assert report.seeds == (0, 1) and report.steps == min(done(run)["steps"])
    assert list(report.seed_steps) == done(run)["steps"]
    obs = np.random.default_rng(0).uniform(-1, 1, (50, 2)).astype(np.float32)
    for seed in (0, 1):  # the last report is of the state the run ended with
        np.testing.assert_array_equal(report.policy(seed)(obs), run.policy(seed)(obs))
    assert [steps for steps, _ in evaluation.results] == [r.steps for r in watch.reports if r.iteration % 3 == 0]
    with (run.dir / "evaluations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(evaluation.results)
    assert float(rows[-1]["return"]) == pytest.approx(evaluation.results[-1][1].means[1])
    with (run.dir / "metrics.csv").open() as file:
        steps = {row["iteration"]: row["steps"] for row in csv.DictReader(file) if row["seed"] == "1"}
    assert int(rows[-1]["steps"]) == int(steps[rows[-1]["iteration"]]), "a seed's rows have its own steps"


def test_tensorboard_events_are_written(walk: tuple[gpi.Run, Watch, Evaluate]):
    run, _, _ = walk
    files = [list((run.dir / "tb" / f"seed-{seed}").iterdir()) for seed in (0, 1)]
    assert all(len(each) == 1 and b"entropy" in each[0].read_bytes() for each in files)


def test_a_callback_stops_the_run_and_resume_takes_it_to_its_end_exactly(
    walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path
):
    run, _, _ = walk
    part = gpi.train("geppo", envs_own.Walk, out=tmp_path / "r", steps=900, callbacks=[stop_after(3)], **TINY)
    assert done(part)["stopped"] and done(part)["iterations"] == 3
    whole = gpi.resume(part, env=envs_own.Walk, quiet=True)
    assert done(whole)["exact"] and not done(whole)["stopped"]
    for name in TABLES:
        assert (whole.dir / name).read_bytes() == (run.dir / name).read_bytes(), name
    for seed in (0, 1):
        assert (whole.dir / f"policy-{seed}.safetensors").read_bytes() == (
            run.dir / f"policy-{seed}.safetensors"
        ).read_bytes()
    before = (whole.dir / "metrics.csv").read_bytes()
    gpi.resume(whole, env=envs_own.Walk, quiet=True)
    assert (whole.dir / "metrics.csv").read_bytes() == before, "a complete run stays as it is"


def test_stop_at_waits_for_every_seed():
    def report(*returns: float) -> Any:
        return SimpleNamespace(returns=np.array(returns))

    assert StopAt(5.0)(report(5.0, 6.0)) and not StopAt(5.0)(report(4.9, 9.0))
    assert not StopAt(5.0)(report(np.nan, 9.0))


@pytest.mark.parametrize("backend", ["gymnasium", "processes"])
def test_discrete_actions_and_parts_of_observations_train_and_resume_exactly(backend: str, tmp_path: Path):
    """The same run in this process and in workers, with two environments per agent, and cut in the middle."""
    settings = {**TINY, "num_envs": 2, "backend": backend, "threads": 2}
    part = gpi.train("trpo", envs_own.Choice, out=tmp_path / "part", steps=512, callbacks=[stop_after(1)], **settings)
    run = gpi.resume(part, env=envs_own.Choice, quiet=True)
    assert done(run)["exact"]
    assert run.policy(0).about["observation_names"] == ["late[0]", "late[1]", "x[0]"]
    assert run.policy(0)(np.array([1.0, 0.0, 0.3])) in (5, 6, 7)
    tables = [(run.dir / name).read_bytes() for name in TABLES]
    KEPT.setdefault("tables", tables)
    assert tables == KEPT["tables"], "processes or not, the numbers are the same"


KEPT: dict[str, list[bytes]] = {}


def test_an_environment_nobody_can_replay_goes_on_and_is_not_exact(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    settings = {**TINY, "quiet": False}
    part = gpi.train("ppo", envs_own.Drifting, out=tmp_path / "r", steps=768, callbacks=[stop_after(1)], **settings)
    assert "steps do not reproduce" in capfd.readouterr().out
    run = gpi.resume(part, env=envs_own.Drifting)
    assert "begin new episodes, and this run is no longer exact" in capfd.readouterr().out
    assert done(run)["exact"] is False and done(run)["complete"]
    with (run.dir / "episodes.csv").open() as file:
        assert max(int(row["length"]) for row in csv.DictReader(file)) <= 40, "no episode is glued to another"


def test_what_cannot_be_replayed_begins_anew(tmp_path: Path, x64: None):
    """New episodes, of which nothing is remembered; not old ones under other observations."""
    make = envs_own.Drifting
    part = gpi.train("ppo", make, out=tmp_path / "r", steps=512, **TINY)
    config, _ = train.read_config(part.dir, make)
    pool, devices = make_pool(config, make), runtime.devices(config)
    trainer = Collector(config, pool, devices)
    saver = Saver(part.dir, config, identity_of(devices, pool), Progress(2, io.StringIO()))
    recorder, exact = saver.restore(trainer, exact=True, allow_drift=False)
    assert recorder is not None and not exact
    assert (trainer.place.calls == 0).all() and [slot.calls for slot in cast(Any, pool).slots] == [0, 0]
    assert (recorder.log.length == 0).all() and (recorder.log.total == 0).all()
    recorder.close()


def test_a_late_crash_keeps_what_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(EnvironmentFault) as error:
        gpi.train("ppo", envs_own.Late, out=tmp_path / "r", steps=4000, **TINY)
    line = str(error.value)
    assert "\n" not in line and "envs_own:Late: step" in line and "the motor is too hot" in line
    run = gpi.Run(tmp_path / "r")
    kept = (run.dir / "environment-error.txt").read_text()
    assert str(run.dir / "environment-error.txt") in line
    assert 'raise RuntimeError("the motor is too hot")' in kept and "gpi/training" not in kept
    assert not done(run)["complete"] and done(run)["iterations"] >= 1 and run.policy(0) is not None
    monkeypatch.setattr(envs_own.Late, "mended", True)
    more = gpi.resume(run, env=envs_own.Late, quiet=True, steps=3000)
    assert done(more)["complete"] and done(more)["exact"]


@pytest.mark.parametrize("only", [2, None], ids=["one", "all"])
def test_numbers_that_are_none_freeze_their_seed(only: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envs_own.Poisoned, "only", only)
    monkeypatch.setattr(envs_own.Poisoned, "made", 0)  # the check makes two of them: number 2 is the first seed's

    def train() -> gpi.Run:
        return gpi.train("ppo", envs_own.Poisoned, out=tmp_path / "r", steps=3000, **TINY)

    if only is None:
        with pytest.raises(
            EnvironmentFault, match=r"every seed met seed 0 at iteration \d+ \(observation not finite\)"
        ):
            train()
    else:
        run = train()
        assert list(done(run)["frozen"]) == ["0"] and done(run)["complete"]


def test_a_callback_that_fails_loses_nothing(tmp_path: Path):
    def fail(report: Report) -> None:
        if report.iteration == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gpi.train("ppo", envs_own.Walk, out=tmp_path / "r", steps=2000, callbacks=[fail], **TINY)
    run = gpi.Run(tmp_path / "r")
    assert not done(run)["complete"] and done(run)["iterations"] == 2 and run.policy(1) is not None
    assert done(gpi.resume(run, env=envs_own.Walk, steps=600, quiet=True))["exact"]


def test_an_evaluation_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """NaN in evaluation, and a disk that is full, are warnings."""
    monkeypatch.setattr(envs_own.Poisoned, "only", None)
    watch = Watch()
    run = gpi.train("ppo", envs_own.Walk, out=tmp_path / "r", steps=256, callbacks=[watch], **TINY)
    report = dataclasses.replace(watch.reports[0], say=print)
    broken = dataclasses.replace(
        report, evaluate=lambda episodes: gpi.evaluate(run, envs_own.Nothing, episodes=episodes)
    )
    assert Evaluate(every=1)(broken) is False
    assert "warning: evaluation after" in capfd.readouterr().out

    def full(path: Path, data: bytes) -> None:
        raise DiskError(f"{path}: no space")

    monkeypatch.setattr(files, "write", full)
    evaluation = Evaluate(every=1, episodes=2)
    assert evaluation(report) is False and len(evaluation.results) == 1
    assert "no space" in capfd.readouterr().out


def test_a_reset_that_fails_between_batches_leaves_a_whole_iteration(tmp_path: Path):
    """What learning has done with the batch before is recorded, so that the checkpoint and the tables agree."""
    settings = {**TINY, "reset_each_batch": True}
    with pytest.raises(EnvironmentFault, match="the gate is stuck"):
        gpi.train("ppo", envs_own.Stuck, out=tmp_path / "r", steps=9000, **settings)
    rows = (tmp_path / "r" / "metrics.csv").read_text().splitlines()
    iterations = json.loads((tmp_path / "r" / "DONE").read_text())["iterations"]
    assert int(rows[-1].split(",")[1]) == iterations >= 1
    arrays = files.decode((tmp_path / "r" / f"ckpt-{iterations:09d}" / "arrays.safetensors").read_bytes())[0]
    assert arrays["counters/batches"] == iterations + 1, "one of warm-up"


def test_environments_written_in_jax_find_the_precision_they_had(tmp_path: Path):
    run = gpi.train("ppo", envs_own.InJax, out=tmp_path / "r", steps=256, **TINY)
    assert gpi.evaluate(run, envs_own.InJax, episodes=2).mean


def test_another_environment_never_replaces_a_run(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    run, _, _ = walk
    copy = shutil.copytree(run.dir, tmp_path / "copy")
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    for drift in (False, True):
        with pytest.raises(FileError, match="was trained in another environment: observation_size was 2, is 3"):
            gpi.resume(copy, env=envs_own.Wide, steps=5000, allow_drift=drift, quiet=True)
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()} == before


def test_what_does_not_let_itself_be_replayed_begins_anew(tmp_path: Path):
    part = gpi.train("ppo", envs_own.Strict, out=tmp_path / "r", steps=300, **TINY)
    more = gpi.resume(part, env=envs_own.Strict, steps=600, quiet=True)
    assert done(more)["complete"] and not done(more)["exact"]


def test_a_run_whose_seeds_are_all_frozen_says_so_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envs_own.Poisoned, "only", None)
    with pytest.raises(EnvironmentFault):
        gpi.train("ppo", envs_own.Poisoned, out=tmp_path / "r", steps=9000, **TINY)
    before = done(gpi.Run(tmp_path / "r"))
    with pytest.raises(EnvironmentFault, match="every seed met"):
        gpi.resume(tmp_path / "r", env=envs_own.Poisoned, quiet=True)
    after = done(gpi.Run(tmp_path / "r"))
    assert not after["complete"] and after["iterations"] == before["iterations"]


def test_an_environment_that_can_exist_only_once_trains_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envs_own.Single, "open", 0)
    with pytest.raises(EnvironmentFault, match="the robot is taken"):
        gpi.train("ppo", envs_own.Single, out=tmp_path / "two", steps=256, **TINY)
    run = gpi.train("ppo", envs_own.Single, out=tmp_path / "one", steps=256, **{**TINY, "seeds": 1})
    assert done(run)["complete"]


def test_progress_that_stands_still_is_no_error():
    line = sentence(SimpleNamespace(steps=10, of=100, returns=np.array([1.0]), tv=0.1, tv_bound=0.2), 0.0, 1)  # type: ignore[arg-type]
    assert "? left" in line


@pytest.mark.parametrize(("settings", "words"), [
    ({"steps": "many"}, "steps = 'many' must be int"), ({"steps": 5.5}, "steps = '5.5' must be int"),
    ({"hidden": "64"}, "hidden = '64' must be"), ({"reset_each_batch": 1}, "reset_each_batch = '1' must be"),
    ({"kappa": None}, "kappa = 'None' must be float"), ({"seeds": True}, "seeds = 'True' must be int"),
])  # fmt: skip
def test_settings_of_another_type_are_one_line(settings: dict[str, Any], words: str):
    with pytest.raises(gpi.UsageError) as error:
        gpi.train("ppo", "CartPole-v1", **settings)
    assert words in str(error.value)


def test_numbers_of_any_kind_are_settings():
    config = resolved(Config("CartPole-v1", steps=1e6, seeds=np.int64(3), hidden=[8, 8], kappa=1))  # type: ignore[arg-type]
    assert config == resolved(Config("CartPole-v1", seeds=3, hidden=(8, 8), kappa=1.0))
    assert type(config.steps) is int and type(config.seeds) is int and type(config.kappa) is float


def test_an_environment_instead_of_what_makes_it_is_one_line():
    with pytest.raises(gpi.UsageError, match="env is a Walk; give a name, or the function or class"):
        gpi.train("ppo", envs_own.Walk())  # type: ignore[arg-type]


# --- names ------------------------------------------------------------------------------------------------------------


def test_no_file_names_code_to_import(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    """A run directory that names a module does not get it imported: by resume, eval, load or export."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    run, _, _ = walk
    copy = tmp_path / "run"
    subprocess.run(["cp", "-r", str(run.dir), str(copy)], check=True)
    about = json.loads((copy / "config.json").read_text())
    about["config"]["task"] = "trap:make"
    (copy / "config.json").write_text(json.dumps(about))
    assert b"envs_own:Walk" in (copy / "policy-0.safetensors").read_bytes()
    for words in (["resume", "run"], ["eval", "run"], ["record", "run"]):
        command = [sys.executable, "-m", "gpi.cli", *words]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result
        assert "never imported because a file says so; name it: --env" in result.stderr
    assert policy_file.load(copy, 0)(np.zeros(2)).shape == (1,)


def test_functions_without_a_name_to_import_are_passed_again(tmp_path: Path):
    """A function inside another trains; resume and evaluation ask for it, and no name of it is ever imported."""
    settings = {**TINY, "seeds": 1}
    run = gpi.train("ppo", lambda: envs_own.Walk(), out=tmp_path / "r", steps=256, **settings)
    for again in (lambda: gpi.resume(run, steps=600), lambda: gpi.evaluate(run)):
        with pytest.raises(gpi.UsageError, match="is your own code and is never imported because a file says so"):
            again()
    with pytest.raises(gpi.UsageError, match="cannot be imported by its name; pass the function in Python"):
        gpi.evaluate(run, run.config["task"])
    more = gpi.resume(run, steps=600, env=lambda: envs_own.Walk(), quiet=True)
    assert done(more)["exact"] and gpi.evaluate(more, envs_own.Walk).mean


def test_another_name_than_the_run_s_is_refused(walk: tuple[gpi.Run, Watch, Evaluate]):
    run, _, _ = walk
    with pytest.raises(gpi.UsageError, match="was trained in envs_own:Walk, not in envs_own:Choice"):
        gpi.resume(run, env="envs_own:Choice", quiet=True)


@pytest.mark.parametrize(("task", "backend", "words"), [
    ("cheetah-run", "gymnasium", "runs on EnvPool"),
    ("envs_own:Walk", "envpool", "your own"),
    ("FrozenLake-v1", "envpool", "leave --backend out"),
    ("Pendulum-v1", "numpy", "must be one of auto, envpool, gymnasium, processes"),
    ("Pendulm-v1", "auto", "nearest is 'Pendulum-v1'"),
    ("my module:x", "auto", "must be module:id or module:function"),
    ("os:system('true')", "auto", "must be module:id or module:function"),
    (":", "auto", "must be module:id or module:function"),
])  # fmt: skip
def test_tasks_and_backends_that_do_not_go_together(task: str, backend: str, words: str):
    with pytest.raises(gpi.UsageError) as error:
        resolved(Config(task, backend=backend))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_which_simulator_runs_what():
    found = {
        (name, backend): tasks.find(name, backend).backend
        for name, backend in [
            ("cheetah-run", "auto"), ("dmc/cheetah-run", "envpool"), ("Pendulum-v1", "auto"),
            ("HalfCheetah-v5", "auto"), ("Pendulum-v1", "gymnasium"), ("Pendulum-v1", "processes"),
            ("FrozenLake-v1", "auto"), ("a:b", "auto"),
        ]
    }  # fmt: skip
    assert list(found.values()) == [
        "dmc", "dmc", "envpool", "envpool", "gymnasium", "processes", "gymnasium", "gymnasium"
    ]  # fmt: skip
    assert resolved(Config("cheetah-run")).reset_each_batch is True
    assert resolved(Config("Pendulum-v1")).reset_each_batch is False
    assert resolved(Config("cheetah-run", reset_each_batch=False)).reset_each_batch is False


def test_the_working_directory_stands_in_for_no_module(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    """Nothing that lies in a run directory, or where a command is run, is imported in place of what it needs."""
    run, _, _ = walk
    copy = shutil.copytree(run.dir, tmp_path / "run")
    for name in ("jax", "gymnasium", "matplotlib", "onnx", "random", "json"):
        (copy / f"{name}.py").write_text("print('imported from here'); raise SystemExit(9)")
    program = Path(sys.executable).with_name("gpi")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    for words in (
        ["eval", ".", "--env", "envs_own:Walk", "--episodes", "1"],
        ["export", ".", "--out", "x"],
        ["plot", "."],
    ):
        result = subprocess.run([program, *words], cwd=copy, capture_output=True, text=True, env=environment)
        assert result.returncode == 0 and "imported" not in result.stdout + result.stderr, result


def test_modules_are_found_where_one_is(tmp_path: Path):
    (tmp_path / "mine.py").write_text((Path(__file__).parent / "envs_own.py").read_text())
    for name in ("mine:Walk", "mine:OwnWalk-v0"):
        command = [str(Path(sys.executable).with_name("gpi")), "check", name]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0 and f"{name}: no problem" in result.stdout, result


@pytest.mark.parametrize("words", [["check", "envs_own:Crash"], ["train", "envs_own:Crash", "--out", "run"]])
def test_a_broken_environment_is_one_line_and_its_traceback_is_kept(words: list[str], tmp_path: Path):
    command = [sys.executable, "-m", "gpi.cli", *words]
    begin = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    seconds = time.monotonic() - begin
    assert result.returncode == 6 and result.stdout == "" and result.stderr.count("\n") == 1, result
    line = re.fullmatch(
        r"gpi: envs_own:Crash: step 3 of episode 1: step raised ZeroDivisionError: no friction at all; mend the "
        r"environment \(traceback: (\S+)\)\n", result.stderr,
    )  # fmt: skip
    assert line, result.stderr
    text = Path(line[1]).read_text()
    assert 'raise ZeroDivisionError("no friction' in text and "envs_own.py" in text
    assert seconds < 4.0, "two seconds, and as many for a busy machine to start Python"
    assert [path.name for path in tmp_path.iterdir()] == [Path(line[1]).name], "no run directory is left"


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counter() -> Any:
    """A policy for Count, which acts as nobody cares."""
    layers = ((np.zeros((1, 1), np.float32), np.zeros(1, np.float32)),)
    one = np.ones(1, np.float32)
    return gpi.Policy(layers, 0 * one, 0 * one, one, -one, one, 0, {"task": "Count", "seed": "3"})


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
    """The action 0.5 is the force 0.5, also where the environment would take 3."""
    seen: list[float] = []

    class Wider(envs_own.Count):
        action_space = envs_own.spaces.Box(-1.0, 3.0, (1,), np.float32)

        def step(self, action: np.ndarray) -> Any:
            seen.append(float(action[0]))
            return super().step(action)

    half = gpi.Policy(
        ((counter.layers[0][0], np.full(1, 0.5, np.float32)),), *(
            getattr(counter, name) for name in ("log_std", "obs_mean", "obs_std", "low", "high", "start", "about")
        )
    )  # fmt: skip
    gpi.evaluate(half, Wider, episodes=1)
    np.testing.assert_allclose(seen, 0.5, atol=1e-6)


def test_a_policy_of_another_environment_is_refused(counter: Any):
    with pytest.raises(gpi.UsageError, match="sees 1 numbers and has 1 continuous actions, envs_own:Walk shows 2"):
        gpi.evaluate(counter, envs_own.Walk)


def test_intervals_cover_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = [low <= 0.0 <= high for low, high in (bootstrap(rng.standard_normal(40)) for _ in range(300))]
    assert 0.89 < np.mean(hits) < 0.98


def test_the_interval_over_seeds_draws_seeds():
    returns = {0: np.full(100, 1.0), 1: np.full(100, 3.0)}
    result = Evaluation("x", returns, returns)
    assert result.mean == 2.0 and result.interval() == (1.0, 3.0) and result.interval(0) == (1.0, 1.0)


def test_eval_prints_each_seed(walk: tuple[gpi.Run, Watch, Evaluate], capsys: pytest.CaptureFixture[str]):
    run, _, _ = walk
    assert cli.main(["eval", str(run.dir), "--env", "envs_own:Walk", "--episodes", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [len(seed["returns"]) for seed in told["seeds"].values()] == [5, 5]
    assert cli.main(["eval", str(run.dir), "--env", "envs_own:Walk", "--seed", "1", "--sampled"]) == 0
    assert "    1        10" in capsys.readouterr().out
    whole = gpi.evaluate(run, envs_own.Walk, episodes=5)
    assert told["mean"] == pytest.approx(whole.mean)


def test_what_was_exported_loads_like_a_run(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
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


def test_damaged_places_are_refused(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    """The actions of a checkpoint may have any number of rows, but no other shape."""
    spec = {"a": ((-3, 2), np.dtype(np.float32))}
    for rows in range(4):
        data = files.encode({"a": np.zeros((rows, 2), np.float32)})
        assert len(data) in files.sizes(spec) and files.decode(data, spec)[0]["a"].shape == (rows, 2)
    for bad in (np.zeros((4, 2), np.float32), np.zeros((2, 3), np.float32), np.zeros((2, 2)), np.zeros(2, np.float32)):
        with pytest.raises(FileError, match="does not fit"):
            files.decode(files.encode({"a": bad}), spec)


def test_iterations_end_when_every_agent_has_its_steps(x64: None):
    """Rows that are resets are no steps."""
    config = resolved(Config("CartPole-v1", "ppo", seeds=2, n=64, hidden=(8,), epochs=1, minibatches=2))
    trainer = loop.Trainer(config, make_pool(config), jax.local_devices()[:2])
    trainer.warm_up()
    assert sum(1 for _ in trainer.iterations(256)) == 3, "two batches of 128 rows hold a few resets"
    assert 256 <= trainer.taken.min() < 384
    assert sum(1 for _ in islice(trainer.iterations(256), 5)) == 0
    trainer.taken = np.array([300, 299])
    assert sum(1 for _ in islice(trainer.iterations(300), 5)) == 1, "every agent, not the first"
