"""Nothing is lost: runs that are killed, cut, extended or diverge continue bit for bit, or say in one line why not."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpi
from gpi import cli, failpoints, files, policy_file
from gpi.config import Config, config_of
from gpi.core import faults, iteration, rules, solvers
from gpi.core.plan import ALGORITHMS
from gpi.envs.dmc import TASKS
from gpi.envs.seeds import env_seeds
from gpi.errors import DiskError, DivergedError, FileError, LockedError, UsageError
from gpi.rundir import checkpoint
from gpi.rundir.lock import LOCK, claim, hold, same_file
from gpi.rundir.resume import identity_of
from gpi.rundir.run import read_rows
from gpi.rundir.tables import Table
from gpi.training import devices, learner, session
from gpi.training import job as job_module
from gpi.training.job import resolve
from gpi.training.signals import Interrupt
from gpi.training.trainer import Trainer
from trainers import collecting, trainer_of, uncompiled

TASK = "cartpole-balance"
TINY: dict[str, Any] = {"seeds": 2, "n": 1000, "hidden": (8,), "epochs": 1, "minibatches": 4, "checkpoint_every": 2}
TABLES = ("metrics.csv", "audit.csv", "episodes.csv")
SAME = (*TABLES, "policy-0.safetensors", "policy-1.safetensors")
KEPT = "ckpt-000000006/arrays.safetensors"


def options_of(settings: dict[str, Any]) -> list[str]:
    """Return settings as options of the command line."""
    words = {name: ",".join(map(str, x)) if isinstance(x, tuple) else str(x) for name, x in settings.items()}
    return [word for name, text in words.items() for word in (f"--{name.replace('_', '-')}", text)]


def gpi_process(*arguments: str, failpoint: str = "", **environment: str) -> subprocess.Popen[str]:
    """Start `gpi` in a process of its own, with the number of threads, which results depend on, pinned."""
    setting = {**os.environ, "PJRT_NPROC": "2", "GPI_FAILPOINT": failpoint, **environment}
    setting["XLA_FLAGS"] = ""
    command = [sys.executable, "-m", "gpi.cli", *arguments]
    return subprocess.Popen(command, env=setting, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], *codes: int) -> tuple[str, str]:
    """Return what a process printed; its exit code must be one of these."""
    printed, errors = process.communicate(timeout=120)
    assert process.returncode in codes, (process.returncode, printed, errors)
    return printed, errors


def assert_same(run: Path, other: Path, names: tuple[str, ...] = (*SAME, KEPT)) -> None:
    """Check that files of two runs have the same bytes."""
    for name in names:
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


# --- killed -------------------------------------------------------------------------------------------------------

KILLS = [
    "file.mid_write:3", "ckpt.before_rename:1", "ckpt.after_rename:1", "ckpt.mid_remove:1", "table.before_write:9",
    "time:0.4", "table.before_fsync:2", "ckpt.before_dirsync:1", "write.before_rename:2", "SIGTERM",
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ["geppo", pytest.param("vmpo", marks=pytest.mark.slow)])
def test_a_run_killed_ten_times_in_a_row_ends_as_if_never_killed(algorithm: str, tmp_path: Path):
    steps = 12000 if ALGORITHMS[algorithm].plan == "reuse" else 24000
    settings = options_of({**TINY, "algorithm": algorithm, "seeds": 1, "steps": steps, "checkpoint_every": 1})
    begin = time.monotonic()
    ended(gpi_process("train", TASK, *settings, "--out", str(tmp_path / "whole")), 0)
    whole, run = time.monotonic() - begin, tmp_path / "killed"
    for i, kill in enumerate(KILLS):
        arguments = (
            ["resume", str(run)] if (run / "config.json").exists() else ["train", TASK, *settings, "--out", str(run)]
        )
        if kill.startswith("time:"):
            process = gpi_process(*arguments)
            time.sleep(float(kill[5:]) * whole)
            process.kill()
            ended(process, -signal.SIGKILL, 0)
        elif kill == "SIGTERM":
            process = gpi_process(*arguments)
            time.sleep(0.7 * whole)
            process.terminate()
            ended(process, 143, 0, -signal.SIGTERM)  # the last: the run had ended and gave its signals back
        else:
            ended(gpi_process(*arguments, failpoint=kill), -signal.SIGKILL, 0)
        assert i < 2 or checkpoint.saved(run), "a run that was saved stays saved"
    ended(gpi_process("resume", str(run)), 0)
    last = max(path.name for path in (tmp_path / "whole").glob("ckpt-*"))
    assert_same(tmp_path / "whole", run, (*TABLES, "policy-0.safetensors", f"{last}/arrays.safetensors"))
    assert len(list(run.glob("ckpt-*"))) == 3 and not list(run.glob(".*.tmp")), "three are kept, nothing is left over"


@pytest.mark.slow  # the reliability benchmark has it too
def test_the_bits_do_not_depend_on_the_visible_cores(tmp_path: Path):
    """With PJRT_NPROC pinned, one core and two give the same bytes."""
    settings = options_of({**TINY, "algorithm": "geppo", "steps": 3000})
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core only")
    ended(gpi_process("train", TASK, *settings, "--out", str(tmp_path / "two")), 0)
    process = gpi_process("train", TASK, *settings, "--out", str(tmp_path / "one"))
    os.sched_setaffinity(process.pid, cores[:1])  # before it counts them: Python itself is still starting
    ended(process, 0)
    assert_same(tmp_path / "two", tmp_path / "one", SAME)


def test_the_first_signal_is_remembered_and_the_second_ends_at_once(monkeypatch: pytest.MonkeyPatch):
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    interrupt = Interrupt()
    interrupt(signal.SIGINT, None)
    assert interrupt.signal == signal.SIGINT
    with pytest.raises(SystemExit) as stop:
        interrupt(signal.SIGTERM, None)
    assert stop.value.code == 143


# --- resumed ------------------------------------------------------------------------------------------------------


# Tests of one algorithm share a worker, and with it a compiled program.
GROUPED = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ALGORITHMS]


ONE_OF_THEM = [param if name == "geppo" else pytest.param(name, marks=[*param.marks, pytest.mark.slow])
               for name, param in zip(ALGORITHMS, GROUPED, strict=True)]  # fmt: skip


@pytest.mark.parametrize("algorithm", ONE_OF_THEM)
def test_a_run_in_two_parts_is_the_run_in_one(algorithm: str, tmp_path: Path):
    settings: dict[str, Any] = {**TINY, "quiet": True, "reset_each_batch": algorithm not in ("geppo", "trpo")}
    steps = 6000 if ALGORITHMS[algorithm].plan == "reuse" else 12000
    whole = gpi.train(algorithm, TASK, steps=steps, out=tmp_path / "whole", **settings)
    part = gpi.train(algorithm, TASK, steps=steps // 2, out=tmp_path / "part", **settings)
    assert gpi.resume(part.dir, steps=steps, quiet=True).dir == part.dir
    assert_same(whole.dir, part.dir)
    assert json.loads((part.dir / "DONE").read_text())["exact"]


def test_members_that_only_fill_devices_are_not_saved(tmp_path: Path):
    """Three seeds on two devices are padded to four, and a run in two parts is still the run in one."""
    settings: dict[str, Any] = {**TINY, "quiet": True, "seeds": 3}
    whole = gpi.train("geppo", TASK, steps=4000, out=tmp_path / "whole", **settings)
    part = gpi.train("geppo", TASK, steps=2000, out=tmp_path / "part", **settings)
    gpi.resume(part.dir, steps=4000, quiet=True)
    assert_same(whole.dir, part.dir, (*SAME, "policy-2.safetensors", "ckpt-000000004/arrays.safetensors"))
    arrays, _ = files.decode((whole.dir / "ckpt-000000004" / "arrays.safetensors").read_bytes())
    assert {len(x) for name, x in arrays.items() if name.startswith("state/")} == {3}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train six iterations of two seeds, with checkpoints at 2, 4 and 6."""
    return gpi.train("geppo", TASK, steps=6000, out=tmp_path_factory.mktemp("s") / "run", quiet=True, **TINY).dir


@pytest.fixture
def run(short: Path, tmp_path: Path) -> Path:
    """Return a copy of that run, as a kill before the last file would have left it."""
    shutil.copytree(short, tmp_path / "run")
    (tmp_path / "run" / "DONE").unlink()
    return tmp_path / "run"


def test_damaged_checkpoints_are_skipped_and_named(run: Path, short: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("ckpt-000000006", "ckpt-000000004"):
        data = bytearray((run / name / "arrays.safetensors").read_bytes())
        data[len(data) // 2] ^= 1
        (run / name / "arrays.safetensors").write_bytes(data)
    assert cli.main(["resume", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "skipped checkpoint ckpt-000000006: arrays.safetensors is damaged" in printed
    assert "skipped checkpoint ckpt-000000004" in printed and "resuming after iteration 2" in printed
    assert_same(short, run)


def test_without_a_valid_checkpoint_it_starts_from_the_beginning(run: Path, short: Path):
    for path in run.glob("ckpt-*/manifest.json"):
        path.unlink()
    gpi.resume(run, quiet=True)
    assert_same(short, run)


def test_a_complete_run_is_left_alone_unless_more_steps_are_requested(short: Path, capsys: pytest.CaptureFixture[str]):
    before = {path.name: path.read_bytes() for path in short.iterdir() if path.is_file()}
    assert cli.main(["resume", str(short)]) == 0
    assert "is complete" in capsys.readouterr().out
    assert before == {path.name: path.read_bytes() for path in short.iterdir() if path.is_file()}


@pytest.mark.parametrize(("what", "now"), [("jax", "9.9"), ("PJRT_NPROC", "7"), ("devices", None)])
def test_drift_is_refused_by_name_unless_allowed(
    what: str, now: Any, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("ckpt-000000006", "ckpt-000000004"):  # so that there is something left to do
        (run / name / "manifest.json").unlink()
    if what == "jax":
        found = devices.versions() | {"jax": now}
        monkeypatch.setattr(devices, "versions", lambda: found)
    elif what == "PJRT_NPROC":
        monkeypatch.setenv("PJRT_NPROC", now)
    else:
        monkeypatch.setattr(session, "learning_devices", lambda config: jax.local_devices()[:1])
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert cli.main(["resume", str(run)]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"{what} was" in err
    assert err.endswith("undo that, or allow it: --allow-drift, or allow_drift=True in Python\n")
    assert {name: (run / name).read_bytes() for name in before} == before, "refused, so untouched"
    assert cli.main(["resume", str(run), "--allow-drift"]) == 0
    assert "resuming after iteration 2" in capsys.readouterr().out
    assert not json.loads((run / "DONE").read_text())["exact"]
    assert not json.loads((run / "config.json").read_text())["exact"]


@pytest.mark.parametrize("text", [
    "", "[]", "{", '{"config": {}}', '{"config": {"task": "cartpole-balance"}}', "\ufeff{}", "{" * 9000,
    '{"a": 1, "a": 1}',
    '{"config": {"task": "cartpole-balance", "seeds": "2"}, "runtime": {"PJRT_NPROC": ""}}',
    '{"config": {"task": "cartpole-balance", "seeds": -2}, "runtime": {"PJRT_NPROC": ""}}',
    '{"config": {"task": "os system:x", "seeds": 2}, "runtime": {"PJRT_NPROC": ""}}',
    '{"config": {"task": "cartpole-balance", "hidden": ["8"]}, "runtime": {"PJRT_NPROC": ""}}',
    '{"config": {"task": "cartpole-balance", "shell": 1}, "runtime": {"PJRT_NPROC": ""}}',
    '{"config": {"task": "cartpole-balance"}, "runtime": {"PJRT_NPROC": "-3"}}',
    '{"config": {"task": "cartpole-balance"}, "runtime": {"PJRT_NPROC": "99999999999"}}',
    '{"config": {"task": "cartpole-balance"}, "runtime": "PJRT_NPROC"}',
])  # fmt: skip
def test_a_malformed_configuration_is_one_line(text: str, run: Path, capsys: pytest.CaptureFixture[str]):
    (run / "config.json").write_text(text)
    assert cli.main(["resume", str(run)]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "config.json" in err


def test_a_refused_resume_clears_nothing_away(run: Path):
    leftover = run / ".ckpt-000000009-0123abcd.tmp"
    leftover.mkdir()
    about = json.loads((run / "config.json").read_text())
    about["config"]["gamma"] = 0.9
    (run / "config.json").write_text(json.dumps(about))
    with pytest.raises(FileError, match="gamma was"):
        gpi.resume(run, quiet=True, steps=9000)
    assert leftover.exists()


def test_a_done_of_other_seeds_is_one_line(run: Path, short: Path, capsys: pytest.CaptureFixture[str]):
    done = json.loads((short / "DONE").read_text())
    (run / "DONE").write_text(json.dumps(done | {"steps": done["steps"][:1]}))
    assert cli.main(["resume", str(run)]) == 3
    assert "1 counts of steps for 2 seeds" in capsys.readouterr().err


def test_changed_settings_are_refused_by_name(run: Path):
    about = json.loads((run / "config.json").read_text())
    about["config"]["gamma"] = 0.9
    (run / "config.json").write_text(json.dumps(about))
    with pytest.raises(FileError, match=r"gamma was 0\.995, is 0\.9"):
        gpi.resume(run, quiet=True)


def test_the_manifest_says_where_a_checkpoint_comes_from(short: Path, tmp_path: Path):
    identity = checkpoint.read_identity(short / "ckpt-000000006")
    assert {"jax", "jaxlib", "envpool", "python", "gpi-rl"} <= set(identity["versions"])
    assert set(identity["runtime"]) == {"XLA_FLAGS", "PJRT_NPROC"} and identity["devices"] == ["cpu:0", "cpu:1"]

    def hash_of(**settings: Any) -> str:
        return identity_of(resolve(Config(TASK, "geppo", **{**TINY, **settings})).config, {})["config_hash"]

    assert identity["config_hash"] == hash_of() == hash_of(steps=5) == hash_of(checkpoint_every=7)
    for other in ({"gamma": 0.9}, {"normaliser": "still"}):
        assert identity["config_hash"] != hash_of(**other), "neither --out nor --steps is part of it, all else is"


def test_settings_survive_the_file():
    config = resolve(Config(TASK, "getrpo", hidden=(32, 16), kappa=1.0)).config
    assert config_of(json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_tables_that_were_cut_are_refused(run: Path):
    with (run / "episodes.csv").open("r+b") as file:
        file.truncate(40)
    with pytest.raises(FileError, match=r"episodes\.csv was cut short \(expected at least \d+ bytes, found 40\)"):
        gpi.resume(run, quiet=True)


# --- environments -------------------------------------------------------------------------------------------------


def replay(task: str, batches: int, reset_each_batch: bool) -> tuple[float, bool]:
    """Return the seconds to bring a new pool to another's position, and whether its next batch is the same."""
    job = resolve(Config(task, "geppo", reset_each_batch=reset_each_batch, **{**TINY, "n": 1024}))
    with jax.enable_x64(True):
        first = collecting(uncompiled(job, devices=1))
        for _ in range(batches):
            first.collect()
            first._prepare()
        saved = first.snapshot()
        expected = first.collect()
        second = collecting(uncompiled(job, devices=1))
        begin = time.perf_counter()
        exact = second.restore(saved)
        seconds = time.perf_counter() - begin
        found = second.collect()
    same = jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), expected, found)
    return seconds, bool(exact.all()) and all(jax.tree.leaves(same))


@pytest.mark.parametrize(("task", "reset_each_batch"), [
    ("cartpole-swingup", True), ("humanoid-run", True), ("manipulator-bring_ball", True), ("fish-swim", False),
])  # fmt: skip
def test_environments_are_replayed_exactly(task: str, reset_each_batch: bool):
    _, same = replay(task, 2, reset_each_batch)
    assert same


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_environments_of_every_task_are_replayed_exactly(task: str):
    for batches in (0, 1, 4):
        assert replay(task, batches, True)[1]
    assert replay(task, 3, False)[1]


def test_a_replay_that_goes_wrong_is_noticed(run: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("ckpt-000000006", "ckpt-000000004"):
        (run / name / "manifest.json").unlink()
    seeds = job_module.env_seeds
    monkeypatch.setattr(job_module, "env_seeds", lambda *names: [seed + 1 for seed in seeds(*names)])
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(FileError, match="do not show again what they had shown"):
        gpi.resume(run, quiet=True, steps=9000)
    after = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert after == before, "refused, so untouched"
    gpi.resume(run, quiet=True, allow_drift=True)
    assert not json.loads((run / "DONE").read_text())["exact"]


def test_no_two_runs_of_the_study_share_randomness():
    """28 tasks, six algorithms, five seeds; runs that differ in kappa alone share it, as the docs declare."""
    environments, keys = set(), set()
    for task, algorithm, seed in itertools.product(TASKS, ALGORITHMS, range(5)):
        environments.update(env_seeds(TASKS[task].id, algorithm, seed, 1))
        keys.add(bytes(np.asarray(jax.random.key_data(learner.origin(Config(task, algorithm), seed).key))))
    assert len(environments) == len(keys) == 28 * 6 * 5


# --- one directory, one process -----------------------------------------------------------------------------------

RACER = """
import sys
from pathlib import Path
from gpi.errors import LockedError
from gpi.rundir.lock import claim
print("ready", flush=True)
sys.stdin.readline()
try:
    with claim(Path(sys.argv[1])):
        (Path(sys.argv[1]) / "config.json").write_text("{}")
        print("won", flush=True)
        sys.stdin.readline()
except LockedError as error:
    print(error, flush=True)
"""


@contextmanager
def racing(directory: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that claim a directory at the same time; the winner holds it until it reads another line."""
    command = [sys.executable, "-c", RACER, str(directory)]
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            )
            for _ in range(count)
        ]
        for racer in racers:
            assert racer.stdout and racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("go\n")
        yield racers
        for racer in racers:
            racer.kill()


def test_of_eight_processes_exactly_one_gets_the_directory(tmp_path: Path):
    with racing(tmp_path / "run", 8) as racers:
        printed = {racer.pid: racer.stdout.readline().strip() for racer in racers if racer.stdout}
    winners = [pid for pid, line in printed.items() if line == "won"]
    assert len(winners) == 1, printed
    losers = [line for pid, line in printed.items() if pid not in winners]
    assert all(f"in use by process {winners[0]} on " in line for line in losers), losers


def test_a_killed_holder_leaves_no_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with racing(tmp_path / "run", 1) as (racer,):
        assert racer.stdout and racer.stdout.readline() == "won\n"
        assert cli.main(["train", TASK, "--out", str(tmp_path / "run")]) == 4
        assert f"in use by process {racer.pid}" in capsys.readouterr().err
        with pytest.raises(LockedError), hold(tmp_path / "run"):
            pass
    with hold(tmp_path / "run"):
        pass


def test_a_lock_on_a_removed_file_does_not_count(tmp_path: Path):
    with (tmp_path / LOCK).open("w") as file:
        assert same_file(file.fileno(), tmp_path / LOCK)
        (tmp_path / LOCK).unlink()
        assert not same_file(file.fileno(), tmp_path / LOCK)
        (tmp_path / LOCK).touch()
        assert not same_file(file.fileno(), tmp_path / LOCK)


def test_a_start_that_fails_leaves_nothing(tmp_path: Path):
    with pytest.raises(UsageError), claim(tmp_path / "a" / "run"):
        raise UsageError("the environment is missing")
    assert not (tmp_path / "a" / "run").exists()


# --- disks --------------------------------------------------------------------------------------------------------


def test_a_table_is_cut_back_to_where_it_was(tmp_path: Path):
    table = Table(tmp_path / "t.csv", ("a", "b"))
    table.add([(1, 2)])
    size = table.sync()
    table.add([(3, 4), (5, 6)])
    table.close()
    table = Table(tmp_path / "t.csv", ("a", "b"), size)
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,2\n"
    table.add([(7, 8)])
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,2\n7,8\n"
    table.close()


def full_at(name: str, passage: int) -> Any:
    """Return a trap that finds the disk full at one passage of a failpoint."""
    return failpoints.Trap(name, passage, True, itertools.count(1))


def test_a_table_keeps_what_a_full_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trap = full_at("table.before_write", 2)
    monkeypatch.setattr(failpoints, "read_trap", lambda: trap)
    table = Table(tmp_path / "t.csv", ("a", "b"))
    table.add([(1, 2)])
    assert (tmp_path / "t.csv").read_text() == "a,b\n", "the disk is full"
    table.add([(3, 4)])
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,2\n3,4\n" and table.sync() == 12
    trap = full_at("table.before_fsync", 1)
    with pytest.raises(DiskError, match=r"t\.csv cannot be written: No space left"):
        table.sync()


@pytest.mark.parametrize("point", ["file.mid_write:4", "ckpt.before_mkdir:2", "table.before_write:7"])
def test_a_full_disk_costs_one_checkpoint_and_no_row(
    point: str, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    name, passage = point.split(":")
    trap = full_at(name, int(passage))
    monkeypatch.setattr(failpoints, "read_trap", lambda: trap)
    run = gpi.train("geppo", TASK, steps=6000, out=tmp_path / "run", **TINY)
    assert ("training continues" in capsys.readouterr().out) == (not name.startswith("table"))
    assert_same(short, run.dir)


def test_a_disk_that_stays_full_ends_with_5_and_the_last_checkpoint(
    run: Path, short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("ckpt-000000006", "ckpt-000000004"):
        (run / name / "manifest.json").unlink()

    def full(name: str) -> None:
        if name == "ckpt.before_mkdir":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "failpoint", full)
    assert cli.main(["resume", str(run)]) == 5
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "No space left" in err and "keeps ckpt-000000002" in err
    monkeypatch.undo()
    gpi.resume(run, quiet=True)
    assert_same(short, run)


# --- values that are not finite -----------------------------------------------------------------------------------


def member(tree: Any, p: int) -> list[bytes]:
    """Return the bytes of one member of a population."""
    return [np.asarray(x)[p].tobytes() for x in jax.tree.leaves(tree)]


# One of each rule, with reuse and without; all six in `make test-slow`.
RULES = ("geppo", "trpo", "vmpo")
ONE_OF_EACH = [param if name in RULES else pytest.param(name, marks=[*param.marks, pytest.mark.slow])
               for name, param in zip(ALGORITHMS, GROUPED, strict=True)]  # fmt: skip


@pytest.fixture(scope="module", params=ONE_OF_EACH)
def population(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield the settings of a population, its state after two iterations, and its next batch."""
    with jax.enable_x64(True):
        trainer = trainer_of(Config(TASK, request.param, **TINY))
        trainer.warm_up()
        for _ in trainer.iterations(2 * trainer.job.plan.steps):
            pass
        hyper = jax.device_get(trainer.learner.hyper)
        yield trainer.job.config, (jax.device_get(trainer.learner.state), jax.device_get(trainer.collect()), hyper)


Where = list[tuple[Any, str]]
REPLACED: dict[str, Where] = {
    "value": [(iteration, "read_values")],
    "ratio": [(iteration, "prior_ratio")],
    "advantage": [(iteration, "vtrace")],
    "gradient": [(rules, "gradient"), (solvers, "gradient")],
    "normaliser": [(iteration, "update")],
}
"""The functions that compute each stage, which the test replaces; the first two stages are in the batch itself."""


def learning(config: Config, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a learning program in which every stage adds a number, given for each member, to its results."""
    static = learner.static_of(config)

    def spoil(tree: Any, number: Any) -> Any:
        return jax.tree.map(lambda x: x + number.astype(x.dtype), tree)

    def spoiled(stage_function: Any, number: Any) -> Any:
        return lambda *values: spoil(stage_function(*values), number)

    def one(state: Any, raw: Any, hyper: Any, numbers: Any) -> Any:
        number: dict[str, Any] = dict(zip(faults.STAGES, numbers, strict=True))
        obs, next_obs = spoil((raw.obs, raw.next_obs), number["observation"])
        raw = raw._replace(obs=obs, next_obs=next_obs, reward=spoil(raw.reward, number["reward"]))
        with monkeypatch.context() as patch:
            for stage, functions in REPLACED.items():
                for module, name in functions:
                    patch.setattr(module, name, spoiled(getattr(module, name), number[stage]))
            return iteration.learn(state, raw, hyper, jnp.int32(9), static)[0]

    return jax.jit(jax.vmap(one))


def test_a_fault_freezes_its_seed_and_touches_no_other(population: Any, monkeypatch: pytest.MonkeyPatch, x64: None):
    """This holds for NaN and both infinities, at every stage."""
    config, (state, raw, hyper) = population
    learn = learning(config, monkeypatch)

    def learned(stage: int, value: float) -> Any:
        numbers = np.zeros((2, len(faults.STAGES)), np.float32)
        numbers[0, stage] = value
        return jax.device_get(learn(state, raw, hyper, numbers))

    sound = learned(0, 0.0)
    assert sound.fault.tolist() == [faults.NONE, faults.NONE]
    assert member(sound.learned, 0) != member(state.learned, 0)
    for (stage, name), value in itertools.product(enumerate(faults.STAGES), [np.nan, np.inf, -np.inf]):
        after = learned(stage, value)
        assert faults.STAGES[after.fault[0] - 1] == name and after.fault[1] == faults.NONE, (name, value)
        assert member(after.learned, 0) == member(state.learned, 0), f"frozen at its last good state: {name} {value}"
        assert member(after.learned, 1) == member(sound.learned, 1), (
            f"bit-identical to a run without the fault: {name} {value}"
        )


def poisoned(monkeypatch: pytest.MonkeyPatch, seeds: list[int], iteration: int, field: str) -> None:
    """Put NaN into some members' batches in one iteration; later batches are sound again."""
    collect = Trainer.collect

    def wrapped(self: Trainer) -> Any:
        raw = collect(self)
        if self.batches != self.job.warm_up_batches + iteration:
            return raw
        x = np.array(getattr(raw, field))
        x[seeds] = np.nan
        return raw._replace(**{field: x})

    monkeypatch.setattr(Trainer, "collect", wrapped)


def test_a_run_goes_on_without_the_seed_that_diverged(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    poisoned(monkeypatch, [0], 3, "action")
    run = gpi.train("geppo", TASK, steps=6000, out=tmp_path / "run", **TINY)
    line = "frozen at their last good state: seed 0 at iteration 3 (ratio not finite)"
    assert line in capsys.readouterr().out
    done = json.loads((run.dir / "DONE").read_text())
    assert done["complete"] and done["frozen"] == {"0": {"iteration": 3, "stage": "ratio"}}
    assert_same(short, run.dir, ("policy-1.safetensors",))
    assert all(np.isfinite(kernel).all() for kernel, _ in gpi.load(run.dir, 0).layers)
    for name in TABLES:
        sound, found = read_rows(short / name), read_rows(run.dir / name)
        assert [row for row in found if row["seed"] == "1"] == [row for row in sound if row["seed"] == "1"]
        assert [row for row in found if row["seed"] == "0"] == [
            row for row in sound if row["seed"] == "0" and int(row["steps"]) <= 2000
        ]


def test_a_frozen_seed_stays_frozen_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    poisoned(monkeypatch, [1], 3, "reward")
    whole = gpi.train("geppo", TASK, steps=6000, out=tmp_path / "whole", quiet=True, **TINY)
    part = gpi.train("geppo", TASK, steps=4000, out=tmp_path / "part", quiet=True, **TINY)
    monkeypatch.undo()
    gpi.resume(part.dir, steps=6000, quiet=True)
    assert_same(whole.dir, part.dir)
    assert json.loads((part.dir / "DONE").read_text())["frozen"] == {"1": {"iteration": 3, "stage": "reward"}}


def test_when_every_seed_diverged_the_run_ends_with_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    poisoned(monkeypatch, [0, 1], 2, "action")
    with pytest.raises(DivergedError, match=r"seeds 0, 1 at iteration 2 \(ratio not finite\)") as error:
        gpi.train("geppo", TASK, steps=60000, out=tmp_path / "run", quiet=True, **TINY)
    assert error.value.exit_code == 7
    assert json.loads((tmp_path / "run" / "DONE").read_text())["iterations"] == 2


def test_the_lock_file_is_empty_after_the_run(short: Path):
    assert (short / LOCK).read_bytes() == b""


# --- damaged policies ---------------------------------------------------------------------------------------------


def test_a_damaged_policy_is_refused_in_one_line(short: Path, tmp_path: Path):
    good = (short / "policy-0.safetensors").read_bytes()
    rng, path = np.random.default_rng(0), tmp_path / "policy.safetensors"
    whole = [good[:n] for n in (0, 7, 8, 100, len(good) - 1)] + [good + b"\0", b"PK\x03\x04" + good, good[::-1]]
    for _ in range(200):
        flipped = bytearray(good)
        flipped[rng.integers(len(good))] ^= 1 << rng.integers(8)
        whole.append(bytes(flipped))
    for data in whole:
        path.write_bytes(data)
        with pytest.raises(FileError, match=r"^policy .*policy\.safetensors: [^\n]+$"):
            gpi.load(path)
    path.write_bytes(good)
    assert gpi.load(path).about["seed"] == "0"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(FileError):
        gpi.load(tmp_path / "link")


def test_a_policy_whose_arrays_do_not_fit_is_refused(short: Path, tmp_path: Path):
    """An attacker can compute hashes too."""
    arrays, metadata = files.decode((short / "policy-0.safetensors").read_bytes())
    changes = [
        {"policy/layer0/kernel": arrays["policy/layer0/kernel"][:-1]}, {"policy/log_std": np.zeros(3, np.float32)},
        {"obs/std": -arrays["obs/std"]}, {"obs/mean": arrays["obs/mean"] * np.float32(np.nan)},
        {"extra": np.zeros(1, np.float32)}, {"policy/layer0/bias": arrays["policy/layer0/bias"].astype(np.float64)},
    ]  # fmt: skip
    for change in changes:
        (tmp_path / "p.safetensors").write_bytes(policy_file.encode(arrays | change, metadata["gpi"]))
        with pytest.raises(FileError, match="policy"):
            gpi.load(tmp_path / "p.safetensors")
