"""`python -m gpi.cli.child PARENT ...`: a command of gpi that ends when the process that started it ends."""

from __future__ import annotations

import os
import signal
import sys

from gpi.cli import main
from gpi.machine import end_with_parent
from gpi.training.signals import Interrupt

ORPHANED = 128 + signal.SIGTERM

if __name__ == "__main__":
    Interrupt.patient = True
    end_with_parent(signal.SIGTERM)
    orphaned = os.getppid() != int(sys.argv[1])  # it may have died before we asked
    sys.exit(ORPHANED if orphaned else main(sys.argv[2:]))
