"""The command line. It only parses and prints: every command calls a function that anyone can call."""

from __future__ import annotations

import argparse
import importlib
import io
import signal
import sys
import tempfile
from collections.abc import Sequence

from gpi.cli.guide import Version, add_help, introduce, teach
from gpi.cli.output import complain, silence
from gpi.cli.parsing import Parser
from gpi.errors import EnvironmentFault, GpiError, unexpected
from gpi.training.signals import starting

MODULES = {
    "train": "train", "resume": "train", "check": "environments", "eval": "policies", "record": "policies",
    "export": "policies", "plot": "reports", "audit": "reports", "mixture": "reports", "tasks": "environments",
    "study": "study", "doctor": "doctor",
}  # fmt: skip
"""Each command, and the module that has its `add_` and `run_`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    tolerate_narrow_streams()
    try:
        with starting():
            words = sys.argv[1:] if arguments is None else list(arguments)
            parsed = parser(words).parse_args(words)
            code = parsed.run(parsed)
        sys.stdout.flush()  # a full disk must not be noticed later than here
        return code
    except GpiError as error:
        complain(f"{error}{save_traceback(error)}")
        return error.exit_code
    except KeyboardInterrupt:  # training has its own way to end
        complain("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has gone, as in `gpi tasks | head -1`; training continues without one
        silence()
        return 128 + signal.SIGPIPE
    except OSError as error:  # of a file that no part of gpi expected to fail
        known = unexpected(error)
        if known is None:
            raise
        if error.filename is None:
            silence()
        complain(str(known))
        return known.exit_code


def tolerate_narrow_streams() -> None:
    """Let characters that the output cannot show, as in ASCII terminals, be replaced: no result is lost for a bar."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def save_traceback(error: GpiError) -> str:
    """Save the traceback of a user's environment, unless a run directory has it; return words that say where."""
    if not isinstance(error, EnvironmentFault) or error.traced:
        return ""
    from gpi.envs.faults import traceback_of

    text = traceback_of(error)
    if text is None:
        return ""
    fd, path = tempfile.mkstemp(prefix="gpi-environment-error-", suffix=".txt")
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return f" (traceback: {path})"


def parser(words: Sequence[str] = ()) -> Parser:
    """Return the parser of the command that these words begin with, and of that alone; else of all commands."""
    top = Parser(
        prog="gpi", usage="gpi COMMAND [options]",
        description="Generalized Policy Improvement: train controllers from few samples, reusing data safely.",
    )  # fmt: skip
    top.add_argument("--version", action=Version, nargs=0, help="show the versions of gpi, Python, JAX and EnvPool")
    verbs = top.add_subparsers(metavar="COMMAND", prog="gpi", help=argparse.SUPPRESS)
    typed = [*words, ""][0]
    for name in [typed] if typed in MODULES else MODULES:
        add = getattr(importlib.import_module(f"gpi.cli.{MODULES[name]}"), f"add_{name}")
        add(verbs, *(words[1:2] if name == "study" else ()))
    if typed not in MODULES:
        add_help(top, verbs)
        introduce(top, verbs)
    if typed not in MODULES or {"-h", "--help"} & set(words):
        teach(verbs.choices)
    return top
