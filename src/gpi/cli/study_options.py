"""What the commands about studies have in common: which study is meant, and names of the user's own environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpi.errors import UsageError

if TYPE_CHECKING:
    from gpi.cli.parsing import Parser

STUDY = "a .toml file, or one that is built in"
OWN = "a name for your own environment, to use in the file's tasks; may be repeated"


def add_definition(action: Parser, nargs: Literal["?"] | None = None) -> None:
    """Add the arguments that say which study is meant; with `nargs` "?" none need be."""
    action.add_argument("study", metavar="STUDY", nargs=nargs, help=STUDY)
    action.add_argument("--env", action="append", default=[], metavar="NAME=MODULE:ID", help=OWN)


def named(words: list[str]) -> dict[str, str]:
    """Read names of the user's own environments, each as name=module:id."""
    found = {}
    for word in words:
        name, equals, env = word.partition("=")
        if not (name and equals and ":" in env):
            raise UsageError(f"--env {word} must be NAME=MODULE:ID; use --env mine=my_module:MyEnv-v0")
        found[name] = env
    return found
