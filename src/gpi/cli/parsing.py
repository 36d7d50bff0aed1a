"""The parser that the modules of the command line share, and how it reads numbers."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, NoReturn

EXIT_CODES = """exit codes:
  0 done (also with some seeds frozen: see the last lines and DONE)   1 a bug in gpi   2 bad input
  3 damaged or foreign file, or a run that cannot be resumed exactly  4 run directory in use
  5 disk full or not writable   6 the environment broke its contract  7 every seed diverged
  130, 143 interrupted or terminated, everything saved: `gpi resume DIR` continues
"""
EXAMPLES = """examples:
  gpi train cheetah-run --algorithm geppo --seeds 5
  gpi train finger-spin --algorithm getrpo --kappa 0.5 --steps 300000 --out runs/spin
  gpi train Pendulum-v1 --steps 200000
  gpi check my_module:MyEnv-v0
  gpi train my_module:MyEnv-v0 --num-envs 4 --backend processes
  gpi resume runs/spin
  gpi eval runs/spin --episodes 100
  gpi record runs/spin --out spin.mp4
  gpi export runs/spin --format onnx
  gpi plot runs/a runs/b
  gpi audit runs/a runs/b --out audit.png
  gpi mixture --B 2 --kappa 0.5 --json
"""
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
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():  # infinity and NaN are not either
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, e.g. 1000000 or 1e6")
    return int(number)


def units(text: str) -> tuple[int, ...]:
    """Read comma-separated whole numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        rule = "must be whole numbers with commas between them, one per layer, e.g. 64,64"
        raise argparse.ArgumentTypeError(f"{text!r} {rule}") from None
