"""What people type first: gpi alone, help, --version, a mistyped command or option, and python -m gpi."""

import argparse
import re
import shlex
import subprocess
import sys

import pytest

import gpi
from gpi import cli
from gpi.cli.guide import COMMANDS, EXAMPLES, FIRST_EXAMPLES, with_actions
from gpi.cli.parsing import ELSEWHERE, Parser
from gpi.cli.train import ABOUT, HINTS
from gpi.config import FIRST, GROUPS, SYNONYMS, Config

VERSIONS = rf"gpi {re.escape(gpi.__version__)} \(Python [\d.]+\S*, JAX [\d.]+, EnvPool [\d.]+, Gymnasium [\d.]+\)\n"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command prints that ends well."""
    try:
        code = cli.main(arguments)
    except SystemExit as stop:  # argparse
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 0 and err == "", (code, err)
    return out


def verbs() -> dict[str, Parser]:
    (action,) = (a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return action.choices


def test_version_is_one_line_and_starts_nothing():
    program = "import sys; from gpi.cli import main\ntry: main(['--version'])\nfinally: assert 'jax' not in sys.modules"
    for command in ([sys.executable, "-c", program], [sys.executable, "-m", "gpi", "--version"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "" and re.fullmatch(VERSIONS, done.stdout), done


def test_gpi_alone_helps(capsys: pytest.CaptureFixture[str]):
    text = said(capsys)
    assert text == said(capsys, "help") == said(capsys, "--help")
    assert len(text.splitlines()) < 60 and "exit codes:" in text
    assert [name for names in COMMANDS.values() for name in names if f"\n  {name} " in text] == [
        name for names in COMMANDS.values() for name in names
    ]
    assert {name for names in COMMANDS.values() for name in names} == set(verbs())


@pytest.mark.parametrize("name", dict(with_actions(verbs())))
def test_every_command_teaches_itself(name: str, capsys: pytest.CaptureFixture[str]):
    text = said(capsys, *name.split(), "--help")
    assert " " in name or text == said(capsys, "help", name)
    assert dict(with_actions(verbs()))[name].description, name
    assert max(map(len, text.splitlines())) <= 80
    shown = [line.strip() for line in text.partition("\nexample")[2].splitlines()[1:]]
    assert shown == list(EXAMPLES[name])
    for command in (*shown, *FIRST_EXAMPLES):
        program, *words = shlex.split(command)
        assert program == "gpi" and cli.parser().parse_args(words)
    assert all(command.startswith(f"gpi {name} ") or command == f"gpi {name}" for command in shown)


def test_help_of_train_shows_first_groups_first_and_choices(capsys: pytest.CaptureFixture[str]):
    short = re.findall(r"^  --([a-z-]+|B)", said(capsys, "train", "--help"), re.M)
    assert len(short) <= 24 and {"algorithm", "trust", "steps", "out"} <= set(short) and "hidden" not in short
    text = said(capsys, "train", "--help", "all")
    assert text.startswith("usage: gpi train TASK [options]\n       gpi train --config FILE [options]\n\n")
    assert set(ABOUT) == set(GROUPS)
    places = [text.index(f"\n{group}:\n  {ABOUT[group][:40]}") for group in GROUPS]
    assert places == sorted(places) and GROUPS[: len(FIRST)] == FIRST
    for choices in (
        "{ppo,trpo,vmpo,geppo,getrpo,gevmpo}",
        "{paper,adaptive,strict,keep}",
        "{auto,envpool,gymnasium,processes}",
    ):
        assert choices in text
    assert "(default: 64,64)" in text and "(default: 1000000)" in text and "SUPPRESS" not in text


def test_abbreviations_work():
    parsed = cli.parser().parse_args(["train", "x", "--algo", "ppo", "--kap", "0.5", "--no-reset"])
    assert (parsed.algorithm, parsed.kappa, parsed.reset_each_batch) == ("ppo", 0.5, False)


@pytest.mark.parametrize(("words", "line"), [
    ("trian x", "unknown command 'trian'; the nearest is train; see `gpi --help`"),
    ("zzz", "unknown command 'zzz'; see `gpi --help`"),
    ("help trian", "unknown command 'trian'; the nearest is train; see `gpi help --help`"),
    ("--vesrion", "unknown option --vesrion of gpi; the nearest is --version; see `gpi --help`"),
    ("train x --learning-rate 3e-4",
     "unknown option --learning-rate of gpi train; --lr is its name here; see `gpi train --help`"),
    ("train x --total_timesteps=5",
     "unknown option --total_timesteps of gpi train; --steps is its name here; see `gpi train --help`"),
    ("train --env CartPole-v1",
     "unknown option --env of gpi train; TASK is named without an option; see `gpi train --help`"),
    ("train x --kapa 1", "unknown option --kapa of gpi train; the nearest is --kappa; see `gpi train --help`"),
    ("train x --num_envs 2",
     "unknown option --num_envs of gpi train; the nearest is --num-envs; see `gpi train --help`"),
    ("eval d --no-such-option", "unknown option --no-such-option of gpi eval; see `gpi eval --help`"),
    ("eval d --learning-rate 1", "unknown option --learning-rate of gpi eval; see `gpi eval --help`"),
    ("train x --device cuda",
     "gpi train has no option for devices; type JAX_PLATFORMS=cpu, or cuda, before gpi; see `gpi train --help`"),
    ("train x --lr-schedule=linear",
     "gpi train needs no schedule: the learning rate follows the trust region; --lr is where it begins; "
     "see `gpi train --help`"),
    ("tune x", "unknown command 'tune'; study is its name here; see `gpi --help`"),
    ("mixture --eps 3", "eps = 3 must be at most 2: TV distance is at most 1 and eps is twice its bound; use 0.2"),
    ("eval d --seed x", "argument --seed: 'x' must be a seed of the run, e.g. 0, or best; see `gpi eval --help`"),
    ("train x y", "unexpected argument 'y' of gpi train; see `gpi train --help`"),
    ("train", "no task is named; name one, as in `gpi train cheetah-run`: `gpi tasks` lists them"),
    ("export d --format onx",
     "--format 'onx' must be one of numpy, onnx; the nearest is onnx; see `gpi export --help`"),
    ("resume d --kappa 1",
     "--kappa cannot be changed by gpi resume, which keeps the settings of a run; "
     "train a new run: `gpi train --config DIR --kappa ...`; see `gpi resume --help`"),
])  # fmt: skip
def test_what_is_mistyped_is_one_line_with_the_nearest_name(words: str, line: str, capsys: pytest.CaptureFixture[str]):
    try:
        code = cli.main(words.split())
    except SystemExit as stop:
        code = stop.code
    assert (code, *capsys.readouterr()) == (2, "", f"gpi: {line}\n")


def test_hints_are_about_what_gpi_does_not_have():
    assert set(ELSEWHERE.values()) <= set(verbs()) and not set(ELSEWHERE) & set(verbs())
    assert not HINTS.keys() & verbs()["train"]._option_string_actions.keys()


def test_synonyms_are_names_that_gpi_does_not_have():
    assert not set(SYNONYMS) & set(Config.__dataclass_fields__)
