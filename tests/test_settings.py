"""Settings as people type them: unknown names, other libraries' names, values without effect."""

import copy
import csv
import dataclasses
import json
import subprocess
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envs_own
import gpi
from gpi.api import Settings
from gpi.cli import main
from gpi.config import PRESETS, SYNONYMS, Config, nearest, validate, validate_new, without_effect
from gpi.core.plan import ALGORITHMS
from gpi.envs import tasks
from gpi.errors import UsageError
from own_runs import TINY

untyped: Any = gpi
NAMES = [*Config.__dataclass_fields__]


def test_names_of_other_libraries_lead_to_ours():
    assert {"learning_rate", "total_timesteps", "n_steps", "clip_range", "n_epochs", "net_arch"} <= SYNONYMS.keys()
    assert set(SYNONYMS.values()) <= set(NAMES) and not SYNONYMS.keys() & set(NAMES)
    assert nearest("learning_rate", NAMES) == nearest("learning-rate", NAMES) == "lr"
    assert nearest("--learning-rate", ["--lr", "--seeds"]) == "--lr"
    assert nearest("kapa", NAMES) == "kappa" and nearest("Gamma", NAMES) == "gamma" and nearest("b", NAMES) == "B"
    assert nearest("GePPO", ALGORITHMS) == "geppo"
    assert nearest("qwertz", NAMES) is None and nearest("", NAMES) is None


@pytest.mark.parametrize(("arguments", "line"), [
    ((("ppo", "Pendulum-v1"), {"learning_rate": 1e-3}), "gpi.train has no setting 'learning_rate'; try lr"),
    ((("ppo", "Pendulum-v1"), {"kapa": 1}), "no setting 'kapa'; try kappa"),
    ((("ppo", "Pendulum-v1"), {"qwertz": 1}), "no setting 'qwertz'; see gpi.Config"),
    ((("cheetah-run", "ppo"), {}), "takes the algorithm first; write gpi.train('ppo', 'cheetah-run', ...)"),
    (((envs_own.Walk, "ppo"), {}), "takes the algorithm first; write gpi.train('ppo', env, ...)"),
    ((("ppo", "Pendulum-v1"), {"callbacks": print}), "must be a list of functions; write callbacks=[...]"),
    ((("ppo", "Pendulum-v1"), {"callbacks": [3]}), "callback 3 must be a function"),
    ((("ppo", "Pendulum-v1"), {"callbacks": [gpi.Run]}), "must be a function"),
    ((("ppo", "Pendulum-v1"), {"eps": 5}), "eps = 5.0 must be at most 2: TV distance is at most 1"),
    ((("ppo", "Pendulum-v1"), {"allow_images": "no"}), "allow_images = 'no' must be true or false"),
    ((("ppo", "Pendulum-v1"), {"step_timeout": -1}), "step_timeout = -1.0 must be 0 or more seconds"),
    ((("ppo", "Pendulum-v1"), {"tensorboard": "yes"}), "tensorboard = 'yes' must be true or false"),
    ((("ppo", "Pendulum-v1"), {"quiet": "no"}), "quiet = 'no' must be true or false"),
    ((("ppo", 3), {}), "env is a int; give a name, or the function or class that makes environments"),
    ((("ppo", "Pendulum-v1"), {"callbacks": [lambda: None]}), "must take one argument, the report of an iteration"),
    ((("ppo", "Pendulum-v1"), {"callbacks": [lambda a, b: None]}), "must take one argument, the report of an iter"),
])  # fmt: skip
def test_wrong_arguments_in_python_are_one_line(arguments: tuple[Any, Any], line: str, tmp_path: Path):
    with pytest.raises(UsageError) as error:
        gpi.train(*arguments[0], out=tmp_path / "run", **arguments[1])
    assert line in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_rule_for_new_runs_does_not_stop_old_ones():
    old = Config("cheetah-run", eps=5.0)
    validate(old)
    with pytest.raises(UsageError, match="at most 2"):
        validate_new(old)
    with pytest.raises(UsageError, match="eps = inf must be positive and finite"):
        Config("cheetah-run", eps=float("inf"))


def test_settings_have_the_types_of_config():
    """They are written twice, because no type checker can derive the one from the other."""
    presets = {"preset": typing.Literal["paper"]}
    assert tuple(PRESETS) == typing.get_args(presets["preset"])
    kinds = typing.get_type_hints(Config)
    lists = {tuple[int, ...]: Sequence[int], tuple[float, ...]: Sequence[float]}  # lists may be given too
    expected = {name: lists.get(kind, kind) for name, kind in kinds.items() if name not in ("task", "algorithm")}
    expected |= presets
    assert typing.get_type_hints(Settings) == expected and not Settings.__required_keys__


WRITTEN = """
import gpi

run = gpi.train("geppo", "Pendulum-v1", kappa=0.5, seeds=5, hidden=[64, 64], trust="strict", out="runs/x", quiet=True)
gpi.resume(run, steps=1000, env="x")
gpi.load(run)
gpi.train("geppo", "Pendulum-v1", kapa=0.3)
gpi.train("geppo", "Pendulum-v1", seeds="five")
gpi.resume(run, steps="many")
gpi.Config("Pendulum-v1", kapa=0.3)
"""


def test_a_type_checker_refuses_settings_that_do_not_exist(tmp_path: Path):
    pytest.importorskip("pyright")
    (tmp_path / "written.py").write_text(WRITTEN)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(Path(gpi.__file__).parents[1])]}))
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    found = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    said = {one["range"]["start"]["line"] + 1: one["message"] for one in found}
    assert list(said) == [7, 8, 9, 10], found
    assert (
        'No parameter named "kapa"' in said[7]
        and '"seeds" of type "int"' in said[8]
        and 'No parameter named "kapa"' in said[10]
    )


def test_settings_are_checked_where_they_are_given():
    made: Any = Config
    for call, line in (
        (lambda: made("cheetah-run", steps=-1), "steps = -1 must be at least 1; use 1 or more"),
        (lambda: made("cheetah-run", tensorboard=True), "gpi.Config has no setting 'tensorboard'"),
        (lambda: made("cheetah-run", kapa=1), "gpi.Config has no setting 'kapa'; try kappa"),
        (lambda: made("cheetah-run", hidden="wide"), "hidden = 'wide' must be a list of whole numbers"),
        (lambda: dataclasses.replace(Config("cheetah-run"), gamma=1.0), "gamma = 1.0 must be in [0, 1); use 0.995"),
    ):
        with pytest.raises(UsageError) as error:
            call()
        assert str(error.value).startswith(line)
    converted = made("cheetah-run", steps=np.float64(1e6), hidden=[8, 8])
    assert (converted.steps, type(converted.steps), converted.hidden) == (1_000_000, int, (8, 8))
    assert copy.copy(converted) == copy.deepcopy(converted) == converted


NUMBERS = [
    field.name for field in dataclasses.fields(Config)
    if field.name not in ("task", "algorithm") and type(field.default) in (int, float, tuple)
]  # fmt: skip
MOST = {
    field.name: float(rule.words.split()[-1].replace(",", ""))
    for field in dataclasses.fields(Config) for rule in field.metadata["rules"] if rule.remedy == "use less"
}  # fmt: skip
BOUNDED = ("seeds", "seed", "steps", "kappa", "B", "gamma", "gae_lambda", "step_timeout")  # in all runs
BEYOND = {"hidden": (64,) * 33, "value_hidden": (64,) * 33, "return_range": (0.0, 1e31), "eps": 2.1} | {
    name: 2 * MOST[name] for name in MOST
}


def test_every_number_has_an_upper_bound(tmp_path: Path):
    """`epochs = 9223372036854775808` was a traceback of JAX's, 5,000 hidden layers compiled for ever."""
    assert {*BOUNDED, *BEYOND} == set(NUMBERS)
    made: Any = Config
    for name in BOUNDED:
        with pytest.raises(UsageError, match="^seeds? = .* must be" if name == "seeds" else f"^{name} = .* must be"):
            made("cheetah-run", **{name: 10**13})
    for name, value in (*BEYOND.items(), ("hidden", (10**7,)), ("epochs", 2**63)):
        old = made("cheetah-run", **{name: value})  # one that exists may be read and resumed
        with pytest.raises(UsageError, match=f"^{name} = .* must be (at most|within)"):
            validate_new(old)
        with pytest.raises(UsageError, match=f"^{name} = .* must be (at most|within)|divide|needs as many"):
            untyped.train("geppo", "CartPole-v1", out=tmp_path / "run", **{name: value})
        assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"^hidden = \(64, [64, ]{60,80}\.\.\. must be at most 32 layers"):
        validate_new(made("cheetah-run", hidden=(64,) * 5000))
    for name, most in MOST.items():
        validate_new(made("cheetah-run", **{name: most}))


@pytest.mark.parametrize(("name", "near"), [
    ("cheetah-rnu", "cheetah-run"), ("Cheetah-Run", "cheetah-run"), ("cheetah_run", "cheetah-run"),
    ("CartPole", "CartPole-v1"), ("Pendulum-v7", "Pendulum-v1"), ("dmc/walker-wlak", "walker-walk"),
    ("", None), ("3", None), ("漢字-🤖-v0", None), ("zzz", None), ("ppo", None),
])  # fmt: skip
def test_a_task_that_is_near_is_named_and_none_that_is_not(name: str, near: str | None):
    with pytest.raises(UsageError) as error:
        tasks.find(name)
    assert (f"the nearest is {near!r}" if near else "Gymnasium id or module:id; `gpi tasks`") in str(error.value)


def test_atari_says_what_to_install():
    with pytest.raises(UsageError, match=r"`pip install ale-py`, then name it ale_py:ALE/Pong-v5, with --allow-images"):
        tasks.find("ALE/Pong-v5")


@pytest.mark.parametrize(("option", "value", "rule"), [
    ("--steps", "abc", "whole number, e.g. 1000000 or 1e6"), ("--seeds", "1.5", "whole number"),
    ("--steps", "10**6", "whole number"), ("--steps", "inf", "whole number"), ("--steps", "nan", "whole number"),
    ("--hidden", "64x64", "e.g. 64,64"), ("--hidden", "", "e.g. 64,64"), ("--hidden", "64,", "e.g. 64,64"),
])  # fmt: skip
def test_numbers_that_are_none_name_their_form(option: str, value: str, rule: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["train", "cheetah-run", option, value])
    line = capsys.readouterr().err
    assert stop.value.code == 2 and line.count("\n") == 1 and repr(value) in line and rule in line


IDLE = [
    *((name, "kappa", 0.25, {}) for name in ("ppo", "trpo", "vmpo")),
    *((name, "lr", 5.0, {}) for name in ("trpo", "vmpo", "getrpo", "gevmpo")),
    *((name, "max_grad_norm", 0.01, {}) for name in ("trpo", "vmpo", "getrpo", "gevmpo")),
    *((name, "kl_slack", 9.0, {}) for name in ("ppo", "geppo")),
    *((name, "kl_slack", 9.0, {"trust": "strict"}) for name in ("trpo", "vmpo", "getrpo", "gevmpo")),
    ("trpo", "kl_slack", 9.0, {"trust": "keep"}),
    *((name, "trust", "adaptive", {}) for name in ("ppo", "trpo", "vmpo")),
    *((name, "return_range", (0.0, 1.0), {}) for name in ALGORITHMS),
]
ACTIVE = [("geppo", "kappa"), ("geppo", "lr"), ("geppo", "max_grad_norm"), ("getrpo", "kl_slack"), ("ppo", "B")]


def test_settings_without_effect_are_named():
    for algorithm, name, value, others in IDLE:
        config = Config("cheetah-run", algorithm, **others, **{name: value})
        [line] = without_effect(config, [name, "task", "algorithm"])
        assert line.startswith(f"{name} = {value} has no effect with ")
        assert without_effect(config, []) == [], "settings from elsewhere are not mentioned"
    for algorithm, name in ACTIVE:
        assert without_effect(Config("cheetah-run", algorithm), [name]) == []
    named = {(algorithm, name) for algorithm, name, _, _ in IDLE}
    for algorithm in ALGORITHMS:
        for name in set(NAMES) - {"eval_episodes", "keep_replay"}:
            told = without_effect(Config("cheetah-run", algorithm), [name])
            assert not told or (algorithm, name) in named
    told = without_effect(Config("cheetah-run"), ["keep_replay"])
    assert told == ["keep_replay = False has no effect with geppo, whose critic keeps no replay"]
    told = without_effect(Config("cheetah-run"), ["eval_episodes"])
    assert told == ["eval_episodes = 10 has no effect with eval_every = 0, which evaluates nothing"]
    late = Config("cheetah-run", steps=10_000, eval_every=11)
    assert without_effect(late, ["eval_every"]) != [] == without_effect(late, ["eval_episodes"])
    assert without_effect(Config("cheetah-run", steps=10_000, eval_every=10), ["eval_every"]) == []
    assert without_effect(Config("cheetah-run", trust="keep", return_range=(0.0, 1.0)), ["return_range"]) == []
    for algorithm in ALGORITHMS:
        told = without_effect(Config("cheetah-run", algorithm, trust="adaptive"), ["trust"])
        assert bool(told) == (algorithm in ("ppo", "trpo", "vmpo"))


def results(run: gpi.Run) -> tuple[list[bytes], list[list[str]]]:
    """Return the policies of a run, and its metrics but for the column that only repeats the setting lr."""
    with (run.dir / "metrics.csv").open(newline="") as file:
        rows = [[cell for name, cell in row.items() if name != "lr"] for row in csv.DictReader(file)]
    return [(run.dir / f"policy-{seed}.safetensors").read_bytes() for seed in run.seeds], rows


@pytest.mark.parametrize(("algorithm", "name", "value", "others"), [
    IDLE[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in IDLE[1:])
])  # fmt: skip
def test_settings_without_effect_have_none(
    algorithm: str, name: str, value: float, others: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    tiny: dict[str, Any] = TINY | {"seeds": 1, "quiet": False} | others
    changed: dict[str, Any] = tiny | {name: value}
    plain = gpi.train(algorithm, envs_own.Walk, out=tmp_path / "plain", steps=300, **tiny)
    assert "no effect" not in capsys.readouterr().out
    other = gpi.train(algorithm, envs_own.Walk, out=tmp_path / "other", steps=300, **changed)
    assert capsys.readouterr().out.count(f"note: {name} = {value} has no effect with ") == 1
    assert results(plain) == results(other)


def changed(config: Config, name: str) -> Config:
    """Return the settings with another value of one of them."""
    field, old = Config.__dataclass_fields__[name], getattr(config, name)
    kinds: dict[type, Any] = {
        bool: not old, type(None): True, int: 2 * old + 2 if type(old) is int else 0,
        float: 0.9 * old if name != "kl_slack" and type(old) is float else 2.0,
        tuple: (0.0, 1.0) if name == "return_range" else (5,),
        str: [*field.metadata["choices"], old][-2 if field.metadata["choices"] else 0],
    }  # fmt: skip
    return dataclasses.replace(config, **{name: kinds[type(old)]})


def test_settings_that_shape_the_compiled_program_say_so():
    """A study compiles one program for jobs that differ in others only."""
    jax = pytest.importorskip("jax")
    from gpi.envs.pool import Spec
    from gpi.training.collect import batch_shape
    from gpi.training.job import resolve
    from gpi.training.learner import Learner, signature, static_of

    spec = Spec("x", 3, 1, 1000, low=(-1.0,), high=(1.0,))

    def program(config: Config) -> object:
        job = resolve(config)
        shape = batch_shape(1, config.num_envs, job.plan.steps // config.num_envs, 1000, reset_each_batch=False)
        with jax.enable_x64(True):
            learner = Learner(job, spec, shape, jax.local_devices()[:1])
        return static_of(config), signature((learner.state, learner.hyper))

    base = Config("cheetah-run", hidden=(4,), seeds=1, policy="gaussian", trust="strict", reset_each_batch=False)
    told = {field.name for field in dataclasses.fields(Config) if field.metadata["compiled"]}
    by_plan = {"algorithm", "B", "n", "kappa", "eps"}  # which `program_of` takes from the plan
    tested = [name for name in NAMES if name not in {"task", "backend", "policy", "reset_each_batch"} | by_plan]
    first = program(base)
    assert {name for name in tested if program(changed(base, name)) != first} == told - {"policy", "reset_each_batch"}
