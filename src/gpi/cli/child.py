"""`python -m gpi.cli.child PARENT ...`: a command of gpi that ends when the process that started it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from gpi.cli import main
from gpi.training.signals import Interrupt

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
ORPHANED = 128 + signal.SIGTERM


def end_with(parent: int) -> bool:
    """Ask the kernel for SIGTERM when the parent dies, even if it is killed; return whether it still lives."""
    ctypes.CDLL(None, use_errno=True).prctl(SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent  # it may have died before we asked


if __name__ == "__main__":
    Interrupt.patient = True
    sys.exit(main(sys.argv[2:]) if end_with(int(sys.argv[1])) else ORPHANED)
