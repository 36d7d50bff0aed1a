"""Control: nothing but its end ends a run, and whatever does end it saves first."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envs_own
import gpi
from gpi import cli
from gpi.callbacks import PrintEvery
from gpi.config import Config
from gpi.errors import UsageError
from gpi.rundir import lock
from gpi.rundir.policies import find
from gpi.training import memory, progress, signals
from gpi.training.job import resolve
from gpi.training.train import default_directory
from own_runs import TINY, done, stop_after

LONG = (
    "train", "CartPole-v1", "--algorithm", "ppo", "--seeds", "1", "--n", "64", "--minibatches", "2", "--epochs", "1",
    "--hidden", "8",
)  # fmt: skip


def gpi_process(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start the command line in a process of its own."""
    command = [*before, sys.executable, "-m", "gpi", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rows(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until a table has some rows."""
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text().count("\n") > count):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)


# --- nobody reads the output --------------------------------------------------------------------------------------


def test_training_goes_on_when_nobody_reads_its_output(tmp_path: Path):
    process = gpi_process(*LONG, "--steps", "3000", "--out", str(tmp_path / "run"))
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 0 and errors == "", errors
    assert json.loads((tmp_path / "run" / "DONE").read_text())["complete"]


def test_a_closed_pipe_elsewhere_is_no_success():
    process = gpi_process("tasks", "--json")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141 and errors == "", errors


def test_lines_that_cannot_be_shown_are_dropped():
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        flush = write

        def isatty(self) -> bool:
            return False

    with progress.Progress(1, Gone()) as shown:  # type: ignore[arg-type]
        shown.say("a line")

    def show(line: str) -> None:
        raise BrokenPipeError

    report: Any = type("Report", (), {"iteration": 10, "seeds": [0], "returns": np.zeros(1), "steps": 1})
    PrintEvery(10, show)(report)


# --- signals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_saves_unless_it_is_ignored(tmp_path: Path, ignored: bool):
    steps, before = ("20000", ("nohup",)) if ignored else ("1e9", ())
    process = gpi_process(*LONG, "--steps", steps, "--out", str(tmp_path / "run"), before=before)
    try:
        wait_for_rows(tmp_path / "run" / "metrics.csv", 2, process)
        process.send_signal(signal.SIGHUP)
        printed, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == (0 if ignored else 129), errors
    assert done(gpi.Run(tmp_path / "run"))["complete"] is ignored
    assert ignored or "interrupted and saved" in printed


def test_ctrl_c_in_python_saves_and_then_raises(tmp_path: Path):
    def press(report: Any) -> None:
        if report.iteration == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"interrupted and saved: gpi\.resume\(.*run'\) continues"):
        gpi.train("ppo", envs_own.Walk, out=tmp_path / "run", steps=10**6, callbacks=[press], **TINY)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert done(gpi.Run(tmp_path / "run"))["iterations"] == 2 and not done(gpi.Run(tmp_path / "run"))["complete"]


def test_an_interrupt_that_is_ignored_ends_no_run(tmp_path: Path):
    """As in `python sweep.py &` in a script: one run of the loop ended without a word, and the next began."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.starting():
            signal.raise_signal(signal.SIGINT)
            press = [lambda report: signal.raise_signal(signal.SIGINT)]
            run = gpi.train("ppo", envs_own.Walk, out=tmp_path / "run", steps=600, callbacks=press, **TINY)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert done(run)["complete"]


def test_a_signal_that_ended_a_run_reaches_the_users_handler():
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        signals.pass_on(signal.SIGTERM, "")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_ctrl_c_that_an_import_swallowed_is_not_lost():
    with signals.starting():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # as if JAX had caught it
        with pytest.raises(KeyboardInterrupt), signals.interruptible():
            raise AssertionError("the run must not begin")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- steps, directories, frozen seeds -----------------------------------------------------------------------------


def test_a_run_cannot_be_shortened_below_the_steps_it_has_taken(tmp_path: Path):
    run = gpi.train("ppo", envs_own.Walk, out=tmp_path / "run", steps=2000, callbacks=[stop_after(3)], **TINY)
    before = {path.name: path.read_bytes() for path in run.dir.iterdir() if path.is_file()}
    taken = min(run.steps.values())
    for steps in (1, taken - 1):
        with pytest.raises(UsageError, match=rf"steps = {steps:,} is below the {taken:,} that .* has taken"):
            gpi.resume(run, env=envs_own.Walk, steps=steps, quiet=True)
    (run.dir / "DONE").unlink()  # as if killed
    with pytest.raises(UsageError, match="has taken; name more"):
        gpi.resume(run, env=envs_own.Walk, steps=1, quiet=True)
    del before["DONE"]
    assert {path.name: path.read_bytes() for path in run.dir.iterdir() if path.is_file()} == before
    finished = gpi.resume(run, env=envs_own.Walk, steps=taken, quiet=True)
    assert done(finished)["complete"]
    with pytest.raises(UsageError, match="has taken; name more"):
        gpi.resume(run, env=envs_own.Walk, steps=1, quiet=True)


def test_a_goal_may_be_lowered_but_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = gpi.train("ppo", envs_own.Walk, out=tmp_path / "run", steps=10**6, callbacks=[stop_after(3)], **TINY)
    assert f"{min(run.steps.values()):,} of 1,000,000 steps each, not finished" in repr(run)
    steps = min(run.steps.values()) + 1
    settings: dict[str, Any] = {"env": envs_own.Walk, "steps": steps}
    gpi.resume(run, **settings)
    assert f"note: it will end at {steps:,} steps, before at 1,000,000" in capsys.readouterr().out


def test_policies_of_a_run_that_ended_early_say_so(tmp_path: Path):
    def press(report: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        gpi.train("ppo", envs_own.Walk, out=tmp_path / "run", steps=10**6, callbacks=[press], **TINY)
    run = gpi.Run(tmp_path / "run")
    [note] = find(run.dir).notes
    assert "the run ended early, `gpi resume" in note and f"{min(run.steps.values()):,}" in note
    with pytest.raises(UsageError, match="none was evaluated in training"):
        find(run.dir, policy="best")
    about = json.loads((run.dir / "config.json").read_text())
    about["config"]["eval_every"] = 10
    (run.dir / "config.json").write_text(json.dumps(about))
    with pytest.raises(UsageError, match="none was evaluated yet, the first will be at iteration 10"):
        find(run.dir, policy="best")


def test_the_first_episode_is_whole_although_it_began_in_the_warm_up(tmp_path: Path):
    class Fixed(envs_own.Walk):
        """Every episode has 50 steps and a reward of 1 in each."""

        def reset(self, **options: Any) -> Any:
            self.count = 0
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            obs, _, _, _, info = super().step(action)
            self.count += 1
            return 0.0 * obs, 1.0, False, self.count == 50, info

    run = gpi.train("geppo", Fixed, out=tmp_path / "run", steps=600, **TINY)
    for seed in run.seeds:
        _, returns = run.episodes(seed)
        assert len(returns) > 5 and (returns == 50.0).all()


def test_default_directories_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = default_directory(Config("cheetah-run"))
    made = [lock.make_new(path) for _ in range(3)]
    assert made == [path, path.with_name(path.name + "-2"), path.with_name(path.name + "-3")]
    assert all(directory.is_dir() for directory in made)


def test_a_frozen_seed_is_announced_when_it_freezes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    class Breaks(envs_own.Walk):
        """The second one made for training has a NaN reward late in its life."""

        made = 0

        def __init__(self) -> None:
            super().__init__()
            Breaks.made += 1
            self.number, self.count = Breaks.made, 0

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            self.count += 1
            bad = self.number == Breaks.made and self.count > 600
            return obs, float("nan") if bad else reward, terminated, truncated, info

    settings: dict[str, Any] = TINY | {"quiet": False}
    run = gpi.train("ppo", Breaks, out=tmp_path / "run", steps=2000, **settings)
    assert "2,000 steps each\n" in repr(run), "the frozen seed has fewer, and the run is finished all the same"
    printed = capsys.readouterr().out.splitlines()
    said = [i for i, line in enumerate(printed) if "warning: frozen at its last good state: seed" in line]
    assert len(said) == 1 and printed[said[0]].endswith("; the others continue")
    assert said[0] < len(printed) - 2, "before the end of the run"


# --- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--seeds", "1000000"), "use a smaller --seeds"),
        (("--n", "1000000000", "--no-reset-each-batch"), "use a smaller --n"),
        (("--hidden", "1000000,1000000"), "use a smaller --hidden"),
        (("--steps", "1e13"), "steps = 10000000000000 must be at most 1,000,000,000,000"),
    ],
)
def test_impossible_sizes_are_refused_before_anything_is_allocated(
    options: tuple[str, ...], remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["train", "cheetah-run", *options, "--out", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr().err
    assert remedy in printed and printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_memory_is_estimated_from_below():
    job = resolve(Config("cheetah-run", seeds=100, steps=2000, epochs=1))
    with pytest.raises(UsageError, match=r"needs at least 1\.8 GiB of memory, this machine has 1\.0 GiB free"):
        memory.require_memory(job, 2**30)
    memory.require_memory(job, 3 * 2**30)  # a run of this size took 2.9 GiB
    memory.require_memory(resolve(Config("humanoid-run")), 2**30)
