"""Training in one's own environments: callbacks, faults, exact and inexact resumption."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

import envs_own
import gpi
from gpi import files
from gpi.callbacks import Evaluate, Report, StopAt
from gpi.envs.gym import GymPool
from gpi.errors import DiskError, EnvironmentFault, FileError
from gpi.rundir import checkpoint
from gpi.training import train
from gpi.training.progress import Progress, sentence
from gpi.training.session import Session, make_environments
from gpi.training.trainer import Trainer
from own_runs import ONE, TABLES, TINY, Watch, done, stop_after


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
    assert watch.closed == 1


def test_callbacks_see_what_the_tables_say(walk: tuple[gpi.Run, Watch, Evaluate]):
    run, watch, evaluation = walk
    report = watch.reports[-1]
    with (run.dir / "metrics.csv").open() as file:
        last = [row for row in csv.DictReader(file) if int(row["iteration"]) == report.iteration]
    np.testing.assert_allclose(report.metrics["tv_abs"], [float(row["tv_abs"]) for row in last], rtol=1e-6)
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


def test_a_run_that_cannot_be_replayed_goes_on_and_is_not_exact(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    settings = {**TINY, "quiet": False}
    part = gpi.train("ppo", envs_own.Drifting, out=tmp_path / "r", steps=768, callbacks=[stop_after(1)], **settings)
    assert "steps do not reproduce" in capfd.readouterr().out
    run = gpi.resume(part, env=envs_own.Drifting)
    assert "begin new episodes, and this run is no longer exact" in capfd.readouterr().out
    assert done(run)["exact"] is False and done(run)["complete"]
    with (run.dir / "episodes.csv").open() as file:
        assert max(int(row["length"]) for row in csv.DictReader(file)) <= 40, "no episode is joined to another"


def test_environments_that_cannot_be_replayed_begin_new_episodes(tmp_path: Path, x64: None):
    """The episodes are new and carry nothing over; they are not old ones with other observations."""
    make = envs_own.Drifting
    part = gpi.train("ppo", make, out=tmp_path / "r", steps=512, **TINY)
    job, _ = train.read_job(part.dir, make)
    pool = make_environments(job)
    trainer = Trainer(job, pool, jax.local_devices()[:2])
    found, _ = checkpoint.newest_valid(part.dir, trainer.layout())
    session = Session(job, part.dir, Progress(2, quiet=True))
    same = session._restore(trainer, found, allow_drift=False)
    tables = session._reopen_tables(found, same=same)
    assert found is not None and not same
    assert (trainer.collector.position.calls == 0).all() and [env.calls for env in cast(GymPool, pool).envs] == [0, 0]
    assert (tables.episodes.length == 0).all() and (tables.episodes.total == 0).all()
    tables.close()


def test_a_late_crash_loses_nothing_that_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(EnvironmentFault) as error:
        gpi.train("ppo", envs_own.Late, out=tmp_path / "r", steps=4000, **TINY)
    line = str(error.value)
    assert "\n" not in line and "envs_own:Late: step" in line and "the motor is too hot" in line
    run = gpi.Run(tmp_path / "r")
    kept = (run.dir / "environment-error.txt").read_text()
    assert str(run.dir / "environment-error.txt") in line
    assert 'raise RuntimeError("the motor is too hot")' in kept and "gpi/training" not in kept
    assert not done(run)["complete"] and done(run)["iterations"] >= 1 and run.policy(0) is not None
    monkeypatch.setattr(envs_own.Late, "fixed", True)
    more = gpi.resume(run, env=envs_own.Late, quiet=True, steps=3000)
    assert done(more)["complete"] and done(more)["exact"]


@pytest.mark.parametrize("only", [2, None], ids=["one", "all"])
def test_values_that_are_not_finite_freeze_their_seed(
    only: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(envs_own.Poisoned, "only", only)
    monkeypatch.setattr(envs_own.Poisoned, "made", 0)  # the check makes two of them: number 2 is the first seed's

    def train() -> gpi.Run:
        return gpi.train("ppo", envs_own.Poisoned, out=tmp_path / "r", steps=3000, **TINY)

    if only is None:
        with pytest.raises(
            EnvironmentFault, match=r"every seed is frozen: seeds 0, 1 at iteration \d+ \(observation not finite\)"
        ):
            train()
    else:
        run = train()
        assert list(done(run)["frozen"]) == ["0"] and done(run)["complete"]


def test_a_callback_that_fails_loses_nothing(tmp_path: Path):
    def fail(report: Report) -> None:
        if report.iteration == 2:
            raise KeyError("mine")

    watch = Watch()
    with pytest.raises(KeyError, match="mine"):
        gpi.train("ppo", envs_own.Walk, out=tmp_path / "r", steps=2000, callbacks=[watch, fail], **TINY)
    assert watch.closed == 1 and len(watch.reports) == 2
    run = gpi.Run(tmp_path / "r")
    assert not done(run)["complete"] and done(run)["iterations"] == 2 and run.policy(1) is not None
    assert done(gpi.resume(run, env=envs_own.Walk, steps=600, quiet=True))["exact"]


def test_an_evaluation_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """NaN in an evaluation and a full disk are only warnings."""
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
    """The update of the previous batch is saved, so that the checkpoint and the tables agree."""
    settings = {**TINY, "reset_each_batch": True}
    with pytest.raises(EnvironmentFault, match="the gate is stuck"):
        gpi.train("ppo", envs_own.Stuck, out=tmp_path / "r", steps=9000, **settings)
    rows = (tmp_path / "r" / "metrics.csv").read_text().splitlines()
    iterations = json.loads((tmp_path / "r" / "DONE").read_text())["iterations"]
    assert int(rows[-1].split(",")[1]) == iterations >= 1
    arrays = files.decode((tmp_path / "r" / f"ckpt-{iterations:09d}" / "arrays.safetensors").read_bytes())[0]
    assert arrays["counters/batches"] == iterations + 1, "one of warm-up"


def test_environments_written_in_jax_keep_the_user_s_precision(tmp_path: Path):
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


def test_environments_that_refuse_to_be_replayed_begin_new_episodes(tmp_path: Path):
    part = gpi.train("ppo", envs_own.Strict, out=tmp_path / "r", steps=300, **TINY)
    more = gpi.resume(part, env=envs_own.Strict, steps=600, quiet=True)
    assert done(more)["complete"] and not done(more)["exact"]


def test_a_run_whose_seeds_are_all_frozen_says_so_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envs_own.Poisoned, "only", None)
    with pytest.raises(EnvironmentFault):
        gpi.train("ppo", envs_own.Poisoned, out=tmp_path / "r", steps=9000, **TINY)
    before = done(gpi.Run(tmp_path / "r"))
    with pytest.raises(EnvironmentFault, match="every seed is frozen"):
        gpi.resume(tmp_path / "r", env=envs_own.Poisoned, quiet=True)
    after = done(gpi.Run(tmp_path / "r"))
    assert not after["complete"] and after["iterations"] == before["iterations"]


def test_an_environment_that_can_exist_only_once_trains_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envs_own.Single, "open", 0)
    with pytest.raises(EnvironmentFault, match="the robot is taken"):
        gpi.train("ppo", envs_own.Single, out=tmp_path / "two", steps=256, **TINY)
    run = gpi.train("ppo", envs_own.Single, out=tmp_path / "one", steps=256, **ONE)
    assert done(run)["complete"]


def test_progress_without_steps_is_not_an_error():
    line = sentence(SimpleNamespace(steps=10, of=100, returns=np.array([1.0]), tv=0.1, tv_bound=0.2), 0.0, 1)  # type: ignore[arg-type]
    assert "? left" in line
