"""The parser that the modules of the command line share: its errors, its help, and how it reads numbers."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from gpi.cli.output import complain
from gpi.config import nearest
from gpi.config_file import meant
from gpi.setting import KINDS

ELSEWHERE = {
    "tune": "study", "sweep": "study", "grid": "study", "benchmark": "study", "evaluate": "eval", "test": "eval",
    "enjoy": "record", "render": "record", "video": "record", "play": "record", "continue": "resume", "envs": "tasks",
    "list": "tasks", "fit": "train", "learn": "train", "run": "train",
}  # fmt: skip
"""What commands are called elsewhere."""
ENV = "the environment by name; needed for your own, because no run directory may name code to import"


class Layout(argparse.HelpFormatter):
    """Help that wraps text line by line: sentences are filled, examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = []
        for line in text.splitlines():
            margin = indent + line[: len(line) - len(line.lstrip())]
            wrapped = textwrap.wrap(
                line, width, initial_indent=indent, subsequent_indent=margin, break_on_hyphens=False
            )  # fmt: skip
            lines += wrapped or [""]
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with the nearest name where one was mistyped."""

    def __init__(self, **options: Any):
        super().__init__(**{"formatter_class": Layout, **options})
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -2000,0 is a value, not an option
        self.hints: dict[str, str] = {}
        """What to say about options that belong to another command."""
        self.hidden: dict[argparse.Action, str | None] = {}
        """Options that only `--help all` shows, with their help."""

    def hide(self, action: argparse.Action) -> None:
        """Leave an option out of the short help."""
        self.hidden[action], action.help = action.help, argparse.SUPPRESS

    def full_help(self) -> str:
        """Return the help with every option."""
        for action, text in self.hidden.items():
            action.help = text
        return self.format_help()

    def error(self, message: str) -> NoReturn:
        """Print the error in one line that names `--help`, and exit with code 2."""
        complain(f"{' '.join(message.split())}; see `{self.prog} --help`")
        raise SystemExit(2)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments, and refuse those left over here: `gpi` itself does not know a command's options."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self.unexpected(rest[0]))
        return found, rest

    def unexpected(self, word: str) -> str:
        """Return what to say about an argument that this command does not have."""
        name = word.partition("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument {word!r} of {self.prog}"
        if name.replace("_", "-") in self.hints:
            return self.hints[name.replace("_", "-")]
        known = {action.dest: str(action.metavar) for action in self._get_positional_actions()}
        near = nearest(name, [*self._option_string_actions, *known])
        if near in known:
            return f"unknown option {name} of {self.prog}; {known[near]} is named without an option"
        return f"unknown option {name} of {self.prog}{meant(name.strip('-'), near)}"

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raise unless a value is one of the choices, and name the nearest."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = meant(str(value), nearest(str(value), choices))
        if action.metavar == "COMMAND" and str(value) in ELSEWHERE:
            near = f"; {ELSEWHERE[str(value)]} is its name here"
        if action.metavar in ("COMMAND", "ACTION"):
            self.error(f"unknown {action.metavar.lower()} {value!r}{near}")
        name = "/".join(action.option_strings) or action.dest
        self.error(f"{name} {value!r} must be one of {', '.join(choices)}{near}")


class Help(argparse.Action):
    """`--help`, which shows options that are seldom changed only where it is given `all`."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        """Print the help and exit."""
        print(parser.full_help() if isinstance(parser, Parser) and values[1] == "all" else parser.format_help(), end="")
        parser.exit()


if TYPE_CHECKING:  # argparse does not export the type
    Verbs = argparse._SubParsersAction[Parser]


def reader(kind: Any) -> Callable[[str], Any]:
    """Return what reads an option of this type; its errors have the words of `KINDS`."""
    parse, form = KINDS[kind].parse, KINDS[kind].form
    if not form:
        return parse

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} {form}") from None

    return read


whole = reader(int)
