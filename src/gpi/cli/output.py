"""Output of the command line, also after its reader has gone."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def complain(line: str) -> None:
    """Print a line about what went wrong on standard error, if somebody can read it."""
    with suppress(OSError):
        print(f"gpi: {line}", file=sys.stderr, flush=True)


def tell(*lines: str) -> None:
    """Print the closing lines of work that is done whether or not somebody reads them."""
    try:
        print(*lines, sep="\n", flush=True)
    except OSError:
        silence()


def silence() -> None:
    """Send the rest of standard output nowhere, so that Python does not fail to write it when it ends."""
    with suppress(OSError, ValueError):  # ValueError: standard output is not a file, as in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
