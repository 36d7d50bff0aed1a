"""Child processes that simulate or draw: started, connected by a pipe, and never left behind.

Only JSON and numbers as bytes pass between the processes, nothing that can carry code.
"""

from __future__ import annotations

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
from gpi.machine import end_with_parent

PATIENCE = 1.0
"""Seconds that a process is given to end."""


def start_process(module: str, extra: dict[str, str], **options: Any) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start `python -m module` with one end of a pipe; return the process and the other end.

    The working directory is not on the path (-P): no file there may replace one of Python's modules. The process has
    its own group, so that signals to ours do not reach it, and it ends when this process does.
    """
    here, there = socket.socketpair()
    cwd = os.getcwd()
    paths = [os.path.abspath(path) for path in sys.path if path and os.path.abspath(path) != cwd]
    with there:
        process: Any = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(there.fileno())],
            stdin=subprocess.DEVNULL,  # environments must not read the keyboard
            pass_fds=[there.fileno()],
            process_group=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | extra,
            **options,
        )
    return process, Connection(here.detach())


def connect_to_parent() -> Connection:
    """Return the child's end of the pipe, and make sure that the child does not outlive its parent."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    return Connection(int(sys.argv[1]))


def wait_or_kill(process: subprocess.Popen[bytes], deadline: float) -> int:
    """Wait for a process that should end by itself, kill it at the deadline, and return its exit code."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def spec_from_json(fields: list[Any]) -> Spec:
    """Restore a spec from JSON, which has no tuples."""
    return Spec._make(tuple(x) if isinstance(x, list) else x for x in fields)


def last_words(log: Path, code: int) -> str:
    """Return the last line that a process wrote, or else how it ended."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit code {code}"
