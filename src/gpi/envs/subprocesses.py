"""Child processes that simulate or draw for us: started, spoken to through a pipe, and never left behind.

Nothing that can carry code crosses between the processes: JSON and numbers as bytes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gpi.envs.pool import Spec

PATIENCE = 1.0
"""Seconds in which a process must end."""
PR_SET_PDEATHSIG = 1


def start(module: str, extra: dict[str, str], **options: Any) -> tuple[subprocess.Popen[bytes], Connection]:
    """`python -m module` with one end of a pipe, and the other end.

    The working directory is on no path (-P): no file there may stand in for one of Python's modules. The process is in
    a group of its own: signals to ours are for us, and it ends with us.
    """
    here, there = socket.socketpair()
    cwd = os.getcwd()
    paths = [os.path.abspath(path) for path in sys.path if path and os.path.abspath(path) != cwd]
    with there:
        process: Any = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(there.fileno())],
            stdin=subprocess.DEVNULL,  # the keyboard is not for environments
            pass_fds=[there.fileno()],
            process_group=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | extra,
            **options,
        )
    return process, Connection(here.detach())


def begin() -> Connection:
    """The child's end of the pipe; from now on it does not outlive its parent, whatever it is busy with."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return Connection(int(sys.argv[1]))


def ended(process: subprocess.Popen[bytes], deadline: float) -> int:
    """The exit code of a process that should end by itself; at the deadline it is killed."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def spec_of(fields: list[Any]) -> Spec:
    """A task as JSON had it, which has no tuples."""
    return Spec._make(tuple(x) if isinstance(x, list) else x for x in fields)


def last_words(log: Path, code: int) -> str:
    """The last line that a process wrote, or how it ended."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit code {code}"
