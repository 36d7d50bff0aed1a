"""The runners of a study: each has a file that it holds locked while it lives, and that says which jobs it runs."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpi import files
from gpi.errors import FileError
from gpi.rundir.lock import same_file
from gpi.standalone import Facts
from gpi.study.engine.locks import take

RUNNERS = "runners"


class RunnerFile:
    """The file of this runner, locked."""

    def __init__(self, path: Path, fd: int):
        """Take a file that is locked already."""
        self.path, self.fd, self.size, self.beat = path, fd, 0, 0

    def write(self, facts: Facts) -> None:
        """Say what this runner does. A full disk must not end it, so the file may be old."""
        self.beat += 1
        text = json.dumps({"host": platform.node(), "pid": os.getpid(), "beat": self.beat, **facts}).encode()
        self.size = max(self.size, len(text) + 1)
        with suppress(OSError):  # in place, as the lock is on this very file; never shorter, so that no old end is left
            os.pwrite(self.fd, text.ljust(self.size - 1) + b"\n", 0)


@contextmanager
def runner_file(study: Path) -> Iterator[RunnerFile]:
    """Make and lock this runner's file until the end; first remove those of runners that were killed."""
    remove_dead(study)
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", platform.node()) or "host"
    number = 1
    while True:  # containers may share their host's name and number processes alike
        path = study / RUNNERS / f"{host}-{os.getpid()}{f'-{number}' if number > 1 else ''}.json"
        fd = take(path)
        if fd is not None and same_file(fd, path):  # or another runner took it for one of the dead
            break
        number += fd is None
    try:
        yield RunnerFile(path, fd)
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def remove_dead(study: Path) -> None:
    """Remove the files of runners that no longer live."""
    for path in sorted((study / RUNNERS).glob("*.json")):
        with suppress(OSError):
            fd = take(path)
            if fd is not None:
                path.unlink(missing_ok=True)
                os.close(fd)


def read_runners(study: Path) -> list[Facts]:
    """Return what the runners that live say about themselves: host, pid, and `running`, a list of jobs.

    Where locks do not reach other hosts, runners there cannot be told from dead ones, and are left out.
    """
    found = []
    for path in sorted((study / RUNNERS).glob("*.json")):
        with suppress(OSError, FileError):
            if lives(path):
                found.append(files.parse_json(files.read(path.parent, path.name, files.JSON_LIMIT), path.name))
    return found


def lives(path: Path) -> bool:
    """Return whether a runner's file is locked; a reader takes a shared lock, which does not hide another reader."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
