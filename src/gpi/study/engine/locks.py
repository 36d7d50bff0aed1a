"""Locks between runners that share a study's directory, where the file system carries them to other hosts.

A job belongs to the runner that has locked its file in `claims/`; a runner lives as long as it has locked its file in
`runners/`, which says which jobs it runs. A file in `claims/` stays when it is let go: removing it would let two
processes lock two files of one name.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gpi import files
from gpi.errors import FileError, UsageError
from gpi.rundir.lock import same_file, take
from gpi.standalone import Facts

RUNNERS = "runners"
MOUNTS = Path("/proc/self/mountinfo")
UNSURE = ("gpfs", "beegfs", "fhgfs", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "orangefs", "pvfs2", "drvfs")
"""File systems whose locks may hold on one host only; all of FUSE too, but not disks that it shows (fuseblk)."""


class Shard(NamedTuple):
    """A part of a study's jobs: the first of `of` parts is 1."""

    number: int
    of: int


def read_shard(text: str) -> Shard:
    """Read a part such as 3/16."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    shard = Shard(int(found[1]), int(found[2])) if found else Shard(0, 0)
    if not 1 <= shard.number <= shard.of:
        raise UsageError(f"--shard {text} must be a part and the number of parts, counted from 1; use --shard 1/2")
    return shard


def require_locks(directory: Path, held: Path, mounts: Path = MOUNTS) -> None:
    """Raise UsageError unless runners on this file system see each other's locks; `held` is locked by this process."""
    kind, options = mount_of(directory, mounts)
    local = kind in UNSURE or (kind.startswith("fuse") and kind != "fuseblk")
    without = kind == "lustre" and "flock" not in options
    if not local and not without and lives(held):
        return
    raise UsageError(
        f"{directory} is on {kind or 'a file system'} whose locks may not reach other runners; say which part of the "
        "jobs is this one's, e.g. --shard 3/16, or --shard 1/1 if it is the only one"
    )


def mount_of(directory: Path, mounts: Path = MOUNTS) -> tuple[str, list[str]]:
    """Return the type of the file system that holds a directory, and its options; an empty type if unknown."""
    place, best = directory.resolve(), Path()
    kind, options = "", []
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return kind, options
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        if place.is_relative_to(point) and len(point.parts) >= len(best.parts):  # a later mount hides an earlier one
            best, kind, options = point, rest[0], [*fields[5].split(","), *rest[2].split(",")]
    return kind, options


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
    (study / RUNNERS).mkdir(parents=True, exist_ok=True)
    for path in (study / RUNNERS).glob("*.json"):
        with suppress(OSError):
            if not lives(path):
                path.unlink(missing_ok=True)
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", platform.node()) or "host"
    number = 1
    while True:  # containers may share their host's name and number processes alike
        path = study / RUNNERS / f"{host}-{os.getpid()}{f'-{number}' if number > 1 else ''}.json"
        fd = take(path)
        if fd is None:
            number += 1
        elif same_file(fd, path):
            break
        else:  # another runner took it for one of the dead
            os.close(fd)
    try:
        yield RunnerFile(path, fd)
    finally:
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
    """Return whether a process has locked a file; a reader's shared lock does not hide it from another reader."""
    fd = take(path, shared=True)
    if fd is not None:
        os.close(fd)
    return fd is None
