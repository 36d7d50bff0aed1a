"""The parser that the modules of the command line share, and how it reads numbers."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

ENV = "the environment by name; needed for your own, because no run directory may name code to import"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error in one line that names `--help`, and exit with code 2."""
        print(f"gpi: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


if TYPE_CHECKING:  # argparse does not export the type
    Verbs = argparse._SubParsersAction[Parser]


def whole(text: str) -> int:
    """Read a whole number, which may be written as 1e6 or 1_000_000."""
    number = float(text)
    if not number.is_integer():
        raise ValueError
    return int(number)


def units(text: str) -> tuple[int, ...]:
    """Read comma-separated whole numbers."""
    return tuple(int(part) for part in text.split(","))
