"""The parts of the local engine: commands, environments, ends, layouts, locks, speeds, programs, the cache."""

import dataclasses
import errno
import fcntl
import io
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from gpi.cli import main, parser
from gpi.cli.study import duration
from gpi.cli.train import typed_settings
from gpi.config import Config
from gpi.errors import DiskError, UsageError
from gpi.rundir.lock import hold, take
from gpi.study.definition import Job, load_study
from gpi.study.directory import Failure, Layout, StudyDir, is_done, read_failure, write_failure, write_study
from gpi.study.engine import begin, loop, machine_layout, schedule, screen
from gpi.study.engine.begin import Options, Runner, matching, shard_of
from gpi.study.engine.jobs import (
    BUSY,
    BUSY_SECONDS,
    KILLS,
    RETRIES,
    Local,
    Process,
    arguments,
    cached_programs,
    command,
    environment,
    last_line,
    outcome,
    remove_programs_since,
)
from gpi.study.engine.locks import Shard, mount_of, read_runners, read_shard, require_locks, runner_file
from gpi.study.engine.loop import Running, Waiting
from gpi.study.engine.machine_layout import Gpu, gpus, has_plugin, sharing
from gpi.study.engine.schedule import SAVING, Speeds, Stop, per_step, program_of
from gpi.study.engine.screen import Ended, Screen, Standing, block, summary

LAYOUT = Layout("cpu", 1, {"PJRT_NPROC": "1", "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}, machine_layout.versions_here())


def job(task: str = "cheetah-run", arm: str = "geppo", **settings: object) -> Job:
    return Job(task, arm, Config(task=task, **{"algorithm": arm, **settings}))  # type: ignore[arg-type]


def study_of(path: Path, *jobs: Job) -> StudyDir:
    return StudyDir(path, "made-up", LAYOUT, jobs)


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["paper", "controls", "reuse", "quick"])
def test_a_fresh_job_is_gpi_train_with_exactly_its_settings(tmp_path: Path, name: str):
    jobs = load_study(name).jobs
    study = study_of(tmp_path, *jobs)
    for one in jobs:
        parsed = parser().parse_args(arguments(study, one, {}))
        assert Config(**typed_settings(parsed)) == dataclasses.replace(one.config, threads=1)  # type: ignore[arg-type]
        assert parsed.out == study.run(one)


def test_settings_of_every_kind_come_through(tmp_path: Path):
    one = job(hidden=(32, 16), reset_each_batch=False, lr=1e-5, allow_images=True, threads=3, trust="strict", seed=7)
    parsed = parser().parse_args(arguments(study_of(tmp_path, one), one, {}))
    assert Config(**typed_settings(parsed)) == one.config  # type: ignore[arg-type]


def test_a_job_that_has_begun_is_resumed_to_the_steps_of_the_study(tmp_path: Path):
    one = job("mine", steps=3000)
    study = study_of(tmp_path, one)
    study.run(one).mkdir(parents=True)
    (study.run(one) / "config.json").write_text('{"config": {"steps": 2000}}')
    run = str(study.run(one))
    assert arguments(study, one, {}) == ["resume", run, "--steps", "3000"]
    assert arguments(study, one, {"mine": "my:Env"}) == ["resume", run, "--env", "my:Env", "--steps", "3000"]
    (study.run(one) / "config.json").write_text('{"config": {"steps": 9000}}')  # adopted, with a goal of its own
    assert arguments(study, one, {})[-1] == "9000"


def test_code_is_named_by_the_user_and_files_of_the_directory_replace_no_module(tmp_path: Path):
    one = job("mine")
    words = command(study_of(tmp_path, one), one, {"mine": "my:Env"})
    assert words[1:5] == ["-P", "-m", "gpi.cli.child", str(os.getpid())]
    assert words[5:7] == ["train", "my:Env"]


def test_the_environment_of_a_job_is_the_layouts_whatever_the_user_has_set(monkeypatch: pytest.MonkeyPatch):
    for name in ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_PLATFORMS", "PJRT_NPROC", "JAX_COMPILATION_CACHE_DIR", "OTHER"):
        monkeypatch.setenv(name, "7")
    found = environment(LAYOUT)
    assert {name: found[name] for name in LAYOUT.environment} == LAYOUT.environment
    assert "JAX_ENABLE_X64" not in found
    assert found["JAX_COMPILATION_CACHE_DIR"] == found["OTHER"] == "7"
    assert found["OMP_NUM_THREADS"] == "1"
    assert environment(LAYOUT, "2")["CUDA_VISIBLE_DEVICES"] == "2"


def test_a_child_whose_parent_is_gone_does_not_begin():
    ended = subprocess.run([sys.executable, "-m", "gpi.cli.child", "1", "tasks"], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (143, b"")


# --- ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 4, -9, 143])
def test_a_complete_job_is_done_whatever_its_process_said(code: int):
    assert outcome(code, complete=True, failures=5).verdict == "done"


@pytest.mark.parametrize("code", [129, 130, 143, -15, -2, -1])
def test_a_job_that_was_interrupted_goes_on_as_often_as_it_takes(code: int):
    assert outcome(code, complete=False, failures=1000) == ("again", 0.0, False)


def test_a_job_that_is_in_use_waits_and_one_with_a_full_disk_longer():
    busy, full = (outcome(code, complete=False, failures=1000) for code in (4, 5))
    assert busy.verdict == full.verdict == "again"
    assert 0.0 < busy.wait < full.wait


@pytest.mark.parametrize("code", [2, 3, 6, 7])
def test_an_end_that_would_come_again_sets_a_job_aside(code: int):
    assert outcome(code, complete=False, failures=0).verdict == "aside"


@pytest.mark.parametrize("code", [1, 0, 77, -11, -6])
def test_an_end_that_nobody_understands_is_tried_again_twice(code: int):
    verdicts = [outcome(code, complete=False, failures=number).verdict for number in range(RETRIES + 1)]
    assert verdicts == ["again", "again", "aside"]


def test_a_job_that_is_always_killed_is_set_aside_in_the_end():
    assert outcome(-9, complete=False, failures=0) == ("again", 0.0, True)
    waits = [outcome(-9, complete=False, failures=number).wait for number in range(1, KILLS)]
    assert waits == sorted(waits)
    assert waits[-1] <= 30.0
    assert outcome(-9, complete=False, failures=KILLS).verdict == "aside"


def test_the_last_line_of_a_log_is_fit_to_be_shown(tmp_path: Path):
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"first\ngpi: \x1b[31mbad\x00 \xff thing" + b"\n\n")
    assert last_line(log) == "gpi:  [31mbad  \N{REPLACEMENT CHARACTER} thing"
    log.write_bytes(b"x" * 100_000)
    assert len(last_line(log)) == 500


def test_a_run_that_was_killed_while_it_was_extended_is_not_done(tmp_path: Path):
    one = job(steps=2000)
    study = study_of(tmp_path, one)
    run = study.run(one)
    run.mkdir(parents=True)
    (run / "config.json").write_text('{"config": {"steps": 2000}}')
    (run / "DONE").write_text('{"complete": true, "steps": [1024, 1024], "frozen": {}}')
    assert not is_done(study, one)
    (run / "DONE").write_text('{"complete": true, "steps": [2048, 700], "frozen": {"1": {}}}')
    assert is_done(study, one)


def test_a_failure_is_read_as_it_was_written(tmp_path: Path):
    one = job()
    study = study_of(tmp_path, one)
    assert read_failure(study, one) is None
    write_failure(study, one, Failure("gpi: no", 6, 3))
    assert read_failure(study, one) == Failure("gpi: no", 6, 3)


# --- the layout -----------------------------------------------------------------------------------------------------


def test_as_many_jobs_as_cores_get_one_each_and_fewer_get_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_layout, "cores_here", lambda: 8)
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    many = machine_layout.decide([job(seed=5 * k) for k in range(12)])
    assert (many.platform, many.cores, many.environment["PJRT_NPROC"]) == ("cpu", 1, "1")
    assert many.environment["XLA_FLAGS"] == "--mine"
    assert machine_layout.decide([job(), job(seed=5)]).cores == 4
    assert machine_layout.decide([job(seeds=2)]).cores == 2
    assert machine_layout.decide([job()], 3).cores == 3
    with pytest.raises(UsageError, match=r"--cores 9 must be from 1 to the 8 of this machine"):
        machine_layout.decide([job()], 9)


def test_a_machine_with_a_gpu_shares_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_layout, "gpus", lambda: [Gpu("0", 0)])
    layout = machine_layout.decide([job()], 1)
    assert (layout.platform, layout.cores) == ("gpu", 1)
    assert layout.environment["XLA_FLAGS"].endswith("--xla_gpu_autotune_level=0")
    assert layout.environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"cores": 4096}, r"this study has 4096 cores for each job, here are \d+"),
        ({"platform": "gpu"}, "a GPU that JAX can use, here is none"),
        ({"versions": {**LAYOUT.versions, "jax": "0.1.0"}}, "jax 0.1.0, here is "),
    ],
)
def test_a_machine_that_cannot_give_the_layout_leaves_the_jobs(
    tmp_path: Path, change: dict, line: str, capsys: pytest.CaptureFixture[str]
):
    jobs = load_study("quick").jobs
    write_study(StudyDir(tmp_path, "quick", dataclasses.replace(LAYOUT, **change), jobs))
    assert main(["study", "run", "quick", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(line, error), error
    assert not (tmp_path / "runs").exists()


def test_cores_are_decided_once(tmp_path: Path):
    write_study(StudyDir(tmp_path, "quick", LAYOUT, load_study("quick").jobs))
    with pytest.raises(UsageError, match=r"--cores 2, but this study began with 1"):
        begin.begin(load_study("quick"), tmp_path, Options(cores=2))


def test_memory_decides_how_many_run_side_by_side(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_layout, "cores_here", lambda: 16)
    monkeypatch.setattr(machine_layout, "available_memory", lambda: 5 << 30)
    found = machine_layout.places(LAYOUT, [job()])
    assert 3 <= found.number <= 5
    assert "side by side instead of 16: 5.0 GiB of memory are free" in found.note
    assert machine_layout.places(LAYOUT, [job()], 7) == (7, (), "")
    monkeypatch.setattr(machine_layout, "available_memory", lambda: 1 << 28)
    with pytest.raises(UsageError, match=r"a job needs about 1.\d GiB, but 0.2 GiB of memory are free"):
        machine_layout.places(LAYOUT, [job()])


def test_a_disk_that_cannot_hold_the_study_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jobs = load_study("paper").jobs
    monkeypatch.setattr(begin, "free_bytes", lambda _: 10**8)
    with pytest.raises(DiskError, match=r"will need about .* GB more, that disk has 0.1 GB free"):
        begin.require_disk(study_of(tmp_path, *jobs), jobs)
    begin.require_disk(study_of(tmp_path, *jobs), jobs[:1])


def test_no_gpu_is_seen_without_the_plugin_of_jax_or_against_the_users_will(monkeypatch: pytest.MonkeyPatch):
    if not has_plugin():
        assert gpus() == []
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert gpus() == []


SMI = """#!/bin/sh
echo '0, 143771'
echo '1, 9'
"""
MPS = """#!/bin/sh
cd "$(dirname "$0")"
if [ "$1" = -d ]; then touch daemon; echo start >> said; exit 0; fi
read words
if [ ! -e daemon ]; then echo 'Cannot find MPS control daemon process'; exit 1; fi
case "$words" in quit*) rm daemon; echo quit >> said;; esac
"""


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that answer as NVIDIA's do, a plugin of JAX, and an empty cache; returns where the daemon lives."""
    for name, text in (("nvidia-smi", SMI), ("nvidia-cuda-mps-control", MPS)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "jax_cuda13_plugin-1.0.dist-info").mkdir()
    (tmp_path / "jax_cuda13_plugin-1.0.dist-info" / "METADATA").write_text("Name: jax-cuda13-plugin\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache" / "xla"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    return tmp_path / "daemon"


def said(daemon: Path) -> list[str]:
    path = daemon.with_name("said")
    return path.read_text().split() if path.exists() else []


def test_gpus_are_seen_without_jax_and_chosen_by_the_user(nvidia: Path, monkeypatch: pytest.MonkeyPatch):
    assert gpus() == [("0", 143771 << 20), ("1", 9 << 20)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus() == [("1", 9 << 20)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == []


def test_a_gpu_with_little_room_takes_fewer_jobs(nvidia: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_layout, "cores_here", lambda: 4)
    layout = machine_layout.decide([job()], 1)
    assert machine_layout.places(layout, [job()]) == (4, ("0", "1"), "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UsageError, match="of a GPU, none has enough"):
        machine_layout.places(layout, [job()])


def test_mps_is_started_if_none_runs_and_stopped_by_the_last_that_needs_it(nvidia: Path):
    with sharing() as note:
        assert (note, nvidia.exists()) == ("", True)
        with sharing() as note:
            assert note == ""
        assert nvidia.exists(), "the first still needs it"
    assert not nvidia.exists()
    assert said(nvidia) == ["start", "quit"]


def test_a_daemon_of_somebody_else_is_left_alone(nvidia: Path):
    nvidia.touch()
    with sharing():
        pass
    assert nvidia.exists()
    assert said(nvidia) == []


def test_a_daemon_whose_starter_was_killed_is_stopped_by_the_next_runner(nvidia: Path):
    script = "import os; from gpi.study.engine.machine_layout import sharing\nwith sharing():\n os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script], check=False)
    assert nvidia.exists()
    with pytest.raises(KeyboardInterrupt), sharing():
        raise KeyboardInterrupt
    assert not nvidia.exists()


def test_without_mps_there_is_one_note(nvidia: Path):
    nvidia.with_name("nvidia-cuda-mps-control").write_text("#!/bin/sh\nexit 1\n")
    with sharing() as note:
        assert "shared without MPS" in note


def test_jobs_are_dealt_out_over_several_gpus(tmp_path: Path):
    executor = Executor(**{"0": 2, "1": 2, "2": 1})
    found = engine_of(tmp_path, *(job(seed=seed) for seed in range(6)), executor=executor)
    found.options = Options(jobs=5)
    while found._start_next(Stop()):
        pass
    assert sorted(place for _, place in executor.started) == ["0", "0", "1", "1", "2"]
    assert [place for _, place in executor.started][:2] == ["0", "1"], "the one with most room is next"


# --- locks ----------------------------------------------------------------------------------------------------------

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /proc rw - proc proc rw
24 22 0:6 / /a\040b rw - {kind} server:/x rw{options}
"""


@pytest.mark.parametrize("kind", ["gpfs", "beegfs", "cifs", "fuse.sshfs", "9p", "lustre"])
def test_file_systems_whose_locks_stay_on_one_host_ask_for_a_shard(tmp_path: Path, kind: str):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS.format(kind=kind, options=",localflock"))
    assert mount_of(Path("/a b/study"), mounts)[0] == kind
    assert mount_of(Path("/home"), mounts)[0] == "ext4"
    with pytest.raises(UsageError, match=rf"is on {kind} .*--shard 1/1 if it is the only one"):
        require_locks(Path("/a b/study"), tmp_path / "held", mounts)


@pytest.mark.parametrize(("kind", "options"), [("nfs4", ""), ("ext4", ""), ("lustre", ",flock"), ("fuseblk", "")])
def test_other_file_systems_are_tried_out(tmp_path: Path, kind: str, options: str):
    mounts, held = tmp_path / "mounts", tmp_path / "held"
    mounts.write_text(MOUNTS.format(kind=kind, options=options))
    lock = take(held)
    require_locks(Path("/a b/study"), held, mounts)
    assert lock is not None
    os.close(lock)
    with pytest.raises(UsageError, match="--shard"):  # nobody holds it: this file system seems to forget locks
        require_locks(Path("/a b/study"), held, mounts)


def test_without_any_locks_a_job_counts_as_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    lock = take(tmp_path / "held")
    assert lock is not None
    os.close(lock)
    with hold(tmp_path):
        pass
    with pytest.raises(UsageError, match="--shard"):
        require_locks(tmp_path, tmp_path / "held")


def test_shards_are_disjoint_and_make_up_the_study():
    jobs = load_study("paper").jobs
    shards = [shard_of(jobs, Shard(number, 16)) for number in range(1, 17)]
    assert sorted(one.name for shard in shards for one in shard) == sorted(one.name for one in jobs)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["0/4", "5/4", "3", "a/b", "1/0", "-1/2"])
def test_shards_are_counted_from_one(text: str):
    with pytest.raises(UsageError, match="counted from 1"):
        read_shard(text)
    assert read_shard("4/4") == (4, 4)


def test_only_takes_patterns_and_beginnings_and_names_what_is_near():
    jobs = load_study("paper").jobs
    assert {one.task for one in matching(jobs, "cheetah-run")} == {"cheetah-run"}
    assert len(matching(jobs, "*/ppo")) == 28
    assert len(matching(jobs, "cheetah-run/geppo-kappa1/seeds-0-4")) == 1
    with pytest.raises(UsageError, match=r"--only cheeta-run matches no job.* cheetah-run"):
        matching(jobs, "cheeta-run")


def test_a_directory_with_other_files_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match=r"holds other files, such as 'thesis.tex'"):
        begin.begin(load_study("quick"), tmp_path, Options())


def test_runners_that_live_say_what_they_do_and_dead_ones_are_forgotten(tmp_path: Path):
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "host-1.json").write_text('{"pid": 1}')  # killed: nobody holds it
    assert read_runners(tmp_path) == []
    with runner_file(tmp_path) as file:
        assert [path.name for path in (tmp_path / "runners").iterdir()] == [file.path.name]
        file.write({"running": [{"job": "a/b/c"}] * 10})
        file.write({"running": []})
        [found] = read_runners(tmp_path)
        assert (found["pid"], found["running"], found["beat"]) == (os.getpid(), [], 2)
    assert list((tmp_path / "runners").iterdir()) == []


# --- speeds and programs --------------------------------------------------------------------------------------------


def test_speeds_are_those_that_the_study_has_measured():
    speeds, cheetah, walker = Speeds(), job("cheetah-run"), job("walker-run")
    unknown = speeds.remaining(cheetah, 0)
    assert speeds.remaining(walker, 0) > unknown
    assert speeds.ratio(cheetah) is None
    speeds.note(cheetah, 10_000, 3.0 * 10_000 * per_step(cheetah))
    assert speeds.ratio(walker) == pytest.approx(3.0)
    speeds.note(walker, 10_000, 10_000 * per_step(walker))
    assert speeds.ratio(walker) == pytest.approx(1.0)
    assert speeds.ratio(job("walker-run", "ppo")) == pytest.approx(1.0)
    assert speeds.ratio(job("fish-swim")) == pytest.approx(3.0**0.5)
    assert speeds.remaining(cheetah, cheetah.config.steps, begun=True) == 0.0


def test_jobs_share_a_program_only_if_nothing_that_is_compiled_differs():
    def program(**settings: object) -> str:
        return program_of(job(**settings))  # type: ignore[arg-type]

    same = program()
    assert program(seed=5) == program(eps=0.1) == program(lr=1e-4) == program(steps=5) == same
    assert program_of(job("cartpole-swingup")) == program_of(job("cartpole-balance"))
    others = [
        program(seeds=3), program(hidden=(8,)), program(epochs=2), program(kappa=0.0), program(n=1000),
        program(trust="strict"), program(normaliser="still"), program(arm="getrpo"), program(arm="ppo"),
        program(task="walker-run"), program(task="Pendulum-v1"), program(task="CartPole-v1"),
    ]  # fmt: skip
    assert len({same, *others}) == len(others) + 1


class Executor:
    """Notes what is started, and runs nothing."""

    lost = ""
    decide, require, get_ready = Local.decide, Local.require, Local.get_ready

    def __init__(self, **places: int):
        self.room, self.started = Counter(places or {"": 3}), list[tuple[Job, str]]()

    def places(self) -> Counter[str]:
        return self.room

    def start(self, job: Job, place: str) -> "Task":
        self.started.append((job, place))
        return Task()


class Task:
    facts: ClassVar[dict[str, int]] = {}
    why = ""

    def poll(self) -> None:
        return None

    def stop(self, *, now: bool = False) -> None:
        pass


def engine_of(tmp_path: Path, *jobs: Job, executor: Executor | None = None) -> loop.Engine:
    runner = Runner(study_of(tmp_path, *jobs), list(jobs), Options(), None)  # type: ignore[arg-type]
    return loop.Engine(runner, 0, executor or Executor(), Screen(io.StringIO()))  # type: ignore[arg-type]


def started(found: loop.Engine, stop: Stop | None = None) -> Job | None:
    """Return the job that an engine starts next."""
    return found.running[-1].waiting.job if found._start_next(stop or Stop()) else None


def test_the_longest_job_is_first_and_nobody_compiles_what_another_compiles(tmp_path: Path):
    jobs = job("cheetah-run"), job("walker-run", seed=5), job("walker-run", seeds=3), job("pendulum-swingup")
    found = engine_of(tmp_path, *jobs)
    assert started(found) is jobs[1]
    first = found.running[0].waiting
    again = Waiting(first.job._replace(config=dataclasses.replace(first.job.config, seed=10)), first.program)
    found.waiting.append(again)
    assert started(found) is jobs[2], "not the longest, whose program is being compiled"
    found.waiting = [again]
    assert started(found) is again.job, "there is nothing else to do"
    os.close(found.running.pop().lock)
    found.waiting = [Waiting(jobs[0], "another"), again]
    found.compiled.add(first.program)
    assert started(found) is again.job


@pytest.mark.parametrize(("steps", "attempts"), [([1024, 1024, 1024], 3), ([1024, 2048, 3072, 3072, 1024], 5)])
def test_only_crashes_without_progress_count_against_a_job(tmp_path: Path, steps: list[int], attempts: int):
    one = job()
    found = engine_of(tmp_path, one)
    for number, taken in enumerate(steps, 1):
        [waiting] = found.waiting
        found.waiting.clear()
        waiting.attempts += 1
        found._end(Running(waiting, Task(), 0, "", 0.0, 0, taken), 1)  # type: ignore[arg-type]
        assert (one.name in found.aside) == (number == attempts)
    assert read_failure(found.study, one) == Failure("exit code 1", 1, attempts)


def test_whole_jobs_are_begun_only_if_they_end_in_time(tmp_path: Path):
    short, long = job("pendulum-swingup", steps=1000), job("walker-run")
    found = engine_of(tmp_path, short, long)
    found.options = Options(whole_jobs=True, seconds=100.0)
    stop = Stop(100.0)
    found.speeds.note(short, 1000, 1000 * per_step(short))
    assert started(found, stop) is short
    assert started(found, stop) is None
    assert not any(found._fits(one, stop) for one in found.waiting)
    found.speeds.ratios.clear()
    assert started(found, stop) is long, "nobody knows how long it takes"


def test_time_is_up_early_enough_to_save():
    stop = Stop(600.0)
    assert stop.seconds_left() == pytest.approx(600.0 - SAVING, abs=1.0)
    assert Stop(8.0).seconds_left() == pytest.approx(6.0, abs=1.0)
    assert not stop.asked
    stop(2, None)
    assert (stop.asked, stop.now, stop.why) == (True, False, "SIGINT")
    stop(2, None)
    assert stop.now


def test_a_signal_that_nobody_repeats_ends_jobs_that_do_not_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule, "SAVING", -1.0)
    stop = Stop()
    stop(signal.SIGINT, None)
    assert not stop.now, "who pressed Ctrl-C may press it again"
    stop = Stop()
    stop(signal.SIGTERM, None)
    assert stop.now


def test_a_run_that_another_process_saves_is_waited_for_in_silence(tmp_path: Path):
    one = job()
    found = engine_of(tmp_path, one)
    found.study.log(one).parent.mkdir(parents=True)
    found.study.log(one).write_text("gpi: runs/x is in use by process 7; wait until it ends, or stop it\n")
    for number in range(1, 8):
        [waiting] = found.waiting
        found.waiting.clear()
        found._end(Running(waiting, Task(), 0, "", 0.0, 0, 0), BUSY)  # type: ignore[arg-type]
        said = found.screen.stream.getvalue()  # type: ignore[attr-defined]
        assert said.count("is in use by process 7") == (number * BUSY_SECONDS >= SAVING)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("25m", 1500), ("1h30m", 5400), ("0.5h", 1800)])
def test_times_are_read_with_their_units(text: str, seconds: float):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "1h-3m", "0s"])
def test_a_time_without_a_unit_is_refused(text: str):
    with pytest.raises(Exception, match="must be a time"):
        duration(text)


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_a_standing_is_one_line_and_a_terminal_shows_the_jobs_too():
    unknown = Standing(0, [], 4, 0, 0, math.nan, math.nan)
    assert unknown.sentence() == "0 done, 0 running, 4 waiting | steps/s not known yet | time left not known yet"
    standing = Standing(3, [("a/b/seeds-0-4", 0.257)] * 20, 7, 1, 2, 41_234.0, 754.0)
    line = "3 done, 20 running, 7 waiting, 1 set aside, 2 elsewhere | 41.23k steps/s | about 12:34 left"
    assert standing.sentence() == line
    shown = str(block(standing)).splitlines()
    assert shown[:2] == [line, "   26 %  a/b/seeds-0-4"]
    assert shown[-1] == "  and 4 more"


def test_a_log_has_a_line_at_most_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch):
    stream, now = io.StringIO(), [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    with Screen(stream) as one:
        for _ in range(1000):
            now[0] += 0.1
            one.show(Standing(0, [], 4, 0, 0, math.nan, math.nan))
        one.say("[bold]done[/bold]")
    assert stream.getvalue().count(" waiting ") == 3
    assert stream.getvalue().endswith("[bold]done[/bold]\n")


def test_the_end_says_what_is_done_what_is_not_and_what_is_next():
    ended = Ended(Path("d"), 5, 3, {"a/b/c": Failure("gpi: no", 6, 1)}, 0, 9_000, 90.0, None, True)
    assert (ended.left, ended.exit_code, ended._replace(signal=15).exit_code) == (1, 8, 143)
    assert ended._replace(failed={}, jobs=4).exit_code == 9
    assert ended._replace(failed={}, jobs=3).exit_code == 0
    assert summary(ended, "gpi study run quick --out d") == [
        "3 of 5 jobs done; 1:30, 9,000 steps, 100 steps/s", "set aside: a/b/c: gpi: no",
        "time is up, all saved; `gpi study run quick --out d` continues", "next: gpi study report d",
    ]  # fmt: skip
    killed = summary(ended._replace(signal=2, killed=1), "gpi study run quick --out d")
    assert killed[2] == "interrupted, 1 job killed before saving; `gpi study run quick --out d` continues"


# --- the compilation cache ------------------------------------------------------------------------------------------


def test_after_a_kill_entries_that_are_new_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    for name in ("old-cache", "rewritten-cache", "notes"):
        (tmp_path / name).write_bytes(b"whole")
    before = cached_programs()
    for name in ("rewritten-cache", "cut-cache", "cut-atime", "later"):
        (tmp_path / name).write_bytes(b"who")
    remove_programs_since(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["later", "notes", "old-cache"]


def test_a_job_that_is_killed_leaves_no_entry_that_was_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    one = job()
    task = Process(study_of(tmp_path / "out", one), one, {})
    (tmp_path / "cut-cache").write_bytes(b"")
    assert task.poll() is None
    task.stop(now=True)
    assert task.child.wait(20.0) == task.poll() == -signal.SIGKILL
    assert not (tmp_path / "cut-cache").exists()


JAX = """
import sys, warnings
from pathlib import Path
import jax, jax.numpy as jnp
from gpi.study.engine.jobs import cached_programs, remove_programs_since
cache = Path(sys.argv[1])
def warned():
    jax.clear_caches()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((5, 5)))
    return any("Error reading persistent compilation cache entry" in str(one.message) for one in seen)
before = cached_programs()
assert not warned()
[entry] = [path for path in cache.glob("jit__lambda*-cache")]
content = entry.read_bytes()
assert not warned()
entry.write_bytes(content[: len(content) // 2])
print(warned(), warned(), len(entry.read_bytes()) < len(content))
remove_programs_since(before)
print(warned(), entry.read_bytes()[:1] == content[:1], warned())
"""


def test_jax_warns_for_ever_of_an_entry_that_was_cut_short_until_we_remove_it(tmp_path: Path):
    setting = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu",
               "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # fmt: skip
    script = [sys.executable, "-c", JAX, str(tmp_path)]
    ended = subprocess.run(script, env=setting, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["True", "True", "True", "False", "True", "False"], ended.stderr
