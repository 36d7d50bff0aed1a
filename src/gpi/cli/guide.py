"""What help teaches besides options: which command is for what, examples, exit codes, and `gpi --version`."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gpi
from gpi.cli.parsing import Parser
from gpi.training.devices import versions

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs

COMMANDS = {
    "train": ("train", "resume", "tasks", "check"),
    "study": ("study",),
    "look": ("plot", "audit", "eval", "record"),
    "use": ("export",),
    "theory": ("mixture",),
    "help": ("doctor", "help"),
}
FIRST_EXAMPLES = (
    "gpi train cheetah-run --algorithm geppo --seeds 5 --out runs/first",
    "gpi plot runs/first",
    "gpi eval runs/first --episodes 100",
    "gpi export runs/first --format onnx",
    "gpi resume runs/first --steps 2e6",
)
EXAMPLES = {
    "train": (
        "gpi train cheetah-run --algorithm geppo --seeds 5",
        "gpi train Pendulum-v1 --steps 200000 --out runs/pendulum",
        "gpi train my_module:MyEnv-v0 --num-envs 4 --backend processes",
        "gpi train --config runs/pendulum --kappa 0.5",
    ),
    "resume": ("gpi resume runs/spin", "gpi resume runs/spin --steps 2e6"),
    "tasks": ("gpi tasks",),
    "check": ("gpi check CartPole-v1", "gpi check my_module:MyEnv-v0"),
    "plot": ("gpi plot runs/a runs/b --out curves.png",),
    "audit": ("gpi audit runs/a", "gpi audit runs/a runs/b --out audit.png"),
    "eval": ("gpi eval runs/spin --episodes 100",),
    "record": ("gpi record runs/spin --out spin.mp4",),
    "export": ("gpi export runs/spin --out policy", "gpi export runs/spin --format onnx --out policy.onnx"),
    "mixture": ("gpi mixture --B 2 --kappa 0.5", "gpi mixture --plot mixture.png"),
    "study": (
        "gpi study show quick",
        "gpi study run quick --out studies/quick",
        "gpi study report studies/quick",
    ),
    "study show": ("gpi study show quick", "gpi study show paper --json"),
    "study run": (
        "gpi study run quick --out studies/quick",
        "gpi study run paper --out studies/paper --only 'cheetah-run' --for 25m",
    ),
    "study status": ("gpi study status studies/quick", "gpi study status studies/quick --json"),
    "study pack": ("gpi study pack studies/quick --out quick.safetensors",),
    "study merge": (
        "gpi study merge studies/paper part-1.safetensors part-2.safetensors",
        "gpi study merge studies/all runs/first",
    ),
    "study report": ("gpi study report studies/quick", "gpi study report runs --title 'My runs'"),
    "doctor": ("gpi doctor", "gpi doctor --json"),
    "help": ("gpi help train",),
}
EXIT_CODES = """exit codes:
  0  done; also with some seeds frozen: see the last lines and DONE
  1  a bug in gpi
  2  bad input: the line says value, rule and remedy
  3  a damaged or foreign file, or a run that cannot be resumed exactly
  4  the run directory is in use
  5  the disk is full or not writable
  6  the environment broke its contract
  7  every seed diverged
  8  some jobs of a study were set aside: the last lines say why
  9  `gpi study run --for` ran out with jobs left: run it again
  129, 130, 143  hung up, interrupted or terminated, all saved:
     `gpi resume DIR` continues
  141  the output pipe was closed early, as by `head`; never for training
"""


class Version(argparse.Action):
    """`--version`: print the versions that results depend on, without starting JAX."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print one line, and exit."""
        print(version_line())
        parser.exit(0)


def version_line() -> str:
    """Return the versions of gpi, Python and gpi's main dependencies."""
    found = versions()
    names = {"Python": "python", "JAX": "jax", "EnvPool": "envpool", "Gymnasium": "gymnasium"}
    return f"gpi {gpi.__version__} ({', '.join(f'{name} {found[key]}' for name, key in names.items())})"


def add_help(top: Parser, verbs: Verbs) -> None:
    """Add `gpi help`, which is what `gpi` alone does too."""
    verb = verbs.add_parser(
        "help", help="explain gpi, or one command",
        description="Explain gpi, or one command: `gpi help train` is `gpi train --help`.",
    )  # fmt: skip
    verb.add_argument("command", nargs="?", metavar="COMMAND", choices=verbs.choices, help="the command to explain")

    def run_help(parsed: argparse.Namespace) -> int:
        (verbs.choices[parsed.command] if parsed.command else top).print_help()
        return 0

    verb.set_defaults(run=run_help)
    top.set_defaults(run=run_help, command=None)


def introduce(top: Parser, verbs: Verbs) -> None:
    """Add what the help of `gpi` itself has: the commands by purpose, first examples and exit codes."""
    top.description = f"{top.description}\n\n{command_list(verbs)}"
    top.epilog = f"{examples(FIRST_EXAMPLES)}\n`gpi help COMMAND` explains a command and its options.\n\n{EXIT_CODES}"


def teach(verbs: Mapping[str, Parser]) -> None:
    """Add examples to the help of commands and their actions."""
    for name, verb in with_actions(verbs):
        verb.epilog = examples(EXAMPLES[name])


def with_actions(verbs: Mapping[str, Parser]) -> Iterator[tuple[str, Parser]]:
    """Yield every command with its parser, and every action of a command that has several, as `study show`."""
    for name, verb in verbs.items():
        yield name, verb
        for action in verb._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from with_actions({f"{name} {inner}": one for inner, one in action.choices.items()})


def command_list(verbs: Verbs) -> str:
    """Return the commands in groups, each with its line of help."""
    about = {action.dest: action.help or "" for action in verbs._choices_actions}
    lines = []
    for group, names in COMMANDS.items():
        lines.append(f"{group}:")
        for name in names:
            lines += textwrap.wrap(f"  {name:<9} {about[name]}", 78, subsequent_indent=" " * 12)
    return "\n".join(lines)


def examples(commands: tuple[str, ...]) -> str:
    """Return commands as a list of examples."""
    return "\n".join(["examples:" if len(commands) > 1 else "example:", *(f"  {command}" for command in commands), ""])
