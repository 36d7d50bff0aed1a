"""The command line. It only parses and prints: every command calls a function that anyone can call."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Sequence

from gpi.cli.environments import add_check, add_tasks
from gpi.cli.parsing import EXAMPLES, EXIT_CODES, Parser
from gpi.cli.policies import add_eval, add_export, add_record
from gpi.cli.reports import add_audit, add_mixture, add_plot
from gpi.cli.train import add_resume, add_train
from gpi.errors import EnvironmentFault, GpiError, unexpected


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    tolerate_narrow_streams()
    parsed = parser().parse_args(arguments)
    try:
        code = parsed.run(parsed)
        sys.stdout.flush()  # a full disk must not be noticed later than here
        return code
    except GpiError as error:
        print(f"gpi: {error}{save_traceback(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # training has its own way to end
        print("gpi: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:  # of a file that no part of gpi expected to fail
        known = unexpected(error)
        if known is None:
            raise
        if error.filename is None:
            discard_output()
        print(f"gpi: {known}", file=sys.stderr)
        return known.exit_code


def discard_output() -> None:
    """Send what is left of the output nowhere: Python would try to write it once more when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tolerate_narrow_streams() -> None:
    """Let characters that the output cannot show, as in ASCII terminals, be replaced: no result is lost for a bar."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def save_traceback(error: GpiError) -> str:
    """Save the traceback of a user's environment, unless a run directory has it; return words that say where."""
    if not isinstance(error, EnvironmentFault) or "(traceback: " in str(error):
        return ""
    from gpi.envs.faults import traceback_of

    text = traceback_of(error)
    if text is None:
        return ""
    fd, path = tempfile.mkstemp(prefix="gpi-environment-error-", suffix=".txt")
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return f" (traceback: {path})"


def parser() -> Parser:
    """Return the parser of all commands and their options."""
    formatter = argparse.RawDescriptionHelpFormatter
    top = Parser(
        prog="gpi",
        description="Generalized Policy Improvement: train controllers from few samples, reusing data safely.",
        epilog=f"{EXAMPLES}\n{EXIT_CODES}",
        formatter_class=formatter,
    )
    verbs = top.add_subparsers(required=True, metavar="COMMAND")
    add_train(verbs)
    add_resume(verbs)
    add_check(verbs)
    add_eval(verbs)
    add_record(verbs)
    add_export(verbs)
    add_plot(verbs)
    add_audit(verbs)
    add_mixture(verbs)
    add_tasks(verbs)
    return top
