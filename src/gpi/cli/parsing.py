"""The parser that the modules of the command line share, and how it reads numbers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from gpi.cli.output import complain

EXIT_CODES = """exit codes:
  0 done (also with some seeds frozen: see the last lines and DONE)   1 a bug in gpi   2 bad input
  3 damaged or foreign file, or a run that cannot be resumed exactly  4 run directory in use
  5 disk full or not writable   6 the environment broke its contract  7 every seed diverged
  129, 130, 143 hung up, interrupted or terminated, everything saved: `gpi resume DIR` continues
  141 nobody read the output to its end (training never stops for that)
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
        complain(f"{message}; see `{self.prog} --help`")
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
