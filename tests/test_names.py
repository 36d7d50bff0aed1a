"""Names of environments and settings: which simulator runs each, and that no file names code to import."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envs_own
import gpi
from gpi.callbacks import Evaluate
from gpi.config import Config
from gpi.envs import tasks
from gpi.envs.importing import maker
from gpi.training.job import resolve
from own_runs import TINY, Watch, done


@pytest.mark.parametrize(("settings", "words"), [
    ({"steps": "many"}, "steps = 'many' must be a whole number"), ({"steps": 5.5}, "steps = '5.5' must be a whole"),
    ({"hidden": "64"}, "hidden = '64' must be"), ({"reset_each_batch": 1}, "reset_each_batch = '1' must be"),
    ({"kappa": None}, "kappa = 'None' must be a number"), ({"seeds": True}, "seeds = 'True' must be a whole number"),
])  # fmt: skip
def test_settings_of_another_type_are_one_line(settings: dict[str, Any], words: str):
    with pytest.raises(gpi.UsageError) as error:
        gpi.train("ppo", "CartPole-v1", **settings)
    assert words in str(error.value)


def test_numbers_of_any_kind_are_settings():
    config = resolve(Config("CartPole-v1", steps=1e6, seeds=np.int64(3), hidden=[8, 8], kappa=1)).config  # type: ignore[arg-type]
    assert config == resolve(Config("CartPole-v1", seeds=3, hidden=(8, 8), kappa=1.0)).config
    assert type(config.steps) is int and type(config.seeds) is int and type(config.kappa) is float


def test_an_environment_instead_of_its_maker_is_one_line():
    with pytest.raises(gpi.UsageError, match="env is a Walk; give a name, or the function or class"):
        gpi.train("ppo", envs_own.Walk())  # type: ignore[arg-type]


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
        assert "never imports code named in a file; name it: --env" in result.stderr
    assert gpi.load(copy, 0)(np.zeros(2)).shape == (1,)


def test_functions_without_a_name_to_import_are_passed_again(tmp_path: Path):
    """A function inside another trains; resume and evaluation ask for it, and it is never imported by its name."""
    settings = {**TINY, "seeds": 1}
    run = gpi.train("ppo", lambda: envs_own.Walk(), out=tmp_path / "r", steps=256, **settings)
    for again in (lambda: gpi.resume(run.dir, steps=600), lambda: gpi.evaluate(run.dir)):
        with pytest.raises(gpi.UsageError, match="is your own code; gpi never imports code named in a file"):
            again()
    with pytest.raises(gpi.UsageError, match="cannot be imported by its name; pass the function in Python"):
        gpi.evaluate(run, run.config["task"])
    more = gpi.resume(run, steps=600, env=lambda: envs_own.Walk(), quiet=True)
    assert done(more)["exact"] and gpi.evaluate(more, envs_own.Walk).mean


def test_a_name_other_than_the_run_s_is_refused(walk: tuple[gpi.Run, Watch, Evaluate]):
    run, _, _ = walk
    with pytest.raises(gpi.UsageError, match="was trained in envs_own:Walk, not in envs_own:Choice"):
        gpi.resume(run, env="envs_own:Choice", quiet=True)


@pytest.mark.parametrize("task", ["math:CartPole-v1", "json:Taxi-v4", "envs_own:Pendulum-v1"])
def test_another_librarys_environment_never_becomes_gymnasiums(task: str):
    """As of `gymnax:CartPole-v1`: importing it registers nothing, so that Gymnasium's would run without a word."""
    with pytest.raises(gpi.UsageError, match=f"would run Gymnasium's own {task.split(':')[1]}: .*; name"):
        maker(task)
    assert maker("gymnasium:CartPole-v1") and maker("envs_own:OwnWalk-v0") and maker("envs_own:LongCart-v0")


@pytest.mark.parametrize(("task", "backend", "words"), [
    ("cheetah-run", "gymnasium", "runs on EnvPool"),
    ("envs_own:Walk", "envpool", "your own"),
    ("Taxi-v4", "envpool", "leave --backend out"),
    ("MetaWorld/DrawerClose-v3", "gymnasium", "leave --backend out"),
    ("Pendulum-v1", "numpy", "must be one of auto, envpool, gymnasium, processes"),
    ("Pendulm-v1", "auto", "nearest is 'Pendulum-v1'"),
    ("my module:x", "auto", "must be module:id or module:function"),
    ("os:system('true')", "auto", "must be module:id or module:function"),
    (":", "auto", "must be module:id or module:function"),
])  # fmt: skip
def test_tasks_and_backends_that_do_not_fit_are_one_line(task: str, backend: str, words: str):
    with pytest.raises(gpi.UsageError) as error:
        resolve(Config(task, backend=backend))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_which_simulator_runs_each_task():
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
    assert resolve(Config("cheetah-run")).config.reset_each_batch is True
    assert resolve(Config("Pendulum-v1")).config.reset_each_batch is False
    assert resolve(Config("cheetah-run", reset_each_batch=False)).config.reset_each_batch is False


def test_files_in_the_working_directory_replace_no_module(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    """No file in a run directory, or in the working directory, is imported instead of a module that is needed."""
    run, _, _ = walk
    copy = shutil.copytree(run.dir, tmp_path / "run")
    for name in ("jax", "gymnasium", "matplotlib", "onnx", "random", "json"):
        (copy / f"{name}.py").write_text("print('imported from here'); raise SystemExit(9)")
    program = Path(sys.executable).with_name("gpi")
    environment = {**os.environ, "PYTHONPATH": str(Path(envs_own.__file__).parent)}
    for words in (
        ["eval", ".", "--env", "envs_own:Walk", "--episodes", "1"],
        ["export", ".", "--out", "x"],
        ["plot", "."],
    ):
        result = subprocess.run([program, *words], cwd=copy, capture_output=True, text=True, env=environment)
        assert result.returncode == 0 and "imported" not in result.stdout + result.stderr, result


def test_modules_are_found_in_the_working_directory(tmp_path: Path):
    (tmp_path / "mine.py").write_text(Path(envs_own.__file__).read_text())
    for name in ("mine:Walk", "mine:OwnWalk-v0"):
        command = [str(Path(sys.executable).with_name("gpi")), "check", name]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0 and f"{name}: no problem" in result.stdout, result


@pytest.mark.parametrize("words", [["check", "envs_own:Crash"], ["train", "envs_own:Crash", "--out", "run"]])
def test_a_broken_environment_is_one_line_and_its_traceback_is_saved(words: list[str], tmp_path: Path):
    command = [sys.executable, "-m", "gpi.cli", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(envs_own.__file__).parent), "TMPDIR": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert result.returncode == 6 and result.stdout == "" and result.stderr.count("\n") == 1, result
    line = re.fullmatch(
        r"gpi: envs_own:Crash: step 3 of episode 1: step raised ZeroDivisionError: no friction at all; fix the "
        r"environment \(traceback: (\S+)\)\n", result.stderr,
    )  # fmt: skip
    assert line, result.stderr
    text = Path(line[1]).read_text()
    assert 'raise ZeroDivisionError("no friction' in text and "envs_own.py" in text
    assert [path.name for path in tmp_path.iterdir()] == [Path(line[1]).name], "no run directory is left"
