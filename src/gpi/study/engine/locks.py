"""Locks between runners that share a study's directory: by `flock`, where the file system carries it to other hosts.

A file that is locked stays when it is let go: removing it would let two processes lock two files of one name.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import NamedTuple

from gpi.errors import UsageError
from gpi.rundir.lock import NO_LOCKS

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


def take(path: Path) -> int | None:
    """Lock a file, which is made if it is not there, and return its descriptor; None if another runner has it.

    Where the file system has no locks at all, it counts as locked: `require_locks` has asked for a shard by then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            os.close(fd)
            raise
    return fd


def require_locks(directory: Path, held: Path, mounts: Path = MOUNTS) -> None:
    """Raise UsageError unless runners on this file system see each other's locks; `held` is locked by this process."""
    kind, options = mount_of(directory, mounts)
    local = kind in UNSURE or (kind.startswith("fuse") and kind != "fuseblk")
    without = kind == "lustre" and "flock" not in options
    if not local and not without:
        fd = take(held)
        if fd is None:
            return
        os.close(fd)
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
