"""Points in the writing of files where tests kill the process or find the disk full; otherwise they do nothing.

`GPI_FAILPOINT=NAME:COUNT` kills the process at the COUNT-th passage of a point, `NAME:COUNT:enospc` fills the disk.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
import signal
from collections.abc import Iterator
from typing import NamedTuple

from gpi.errors import UsageError

FAILPOINTS = (
    "table.before_write", "table.before_fsync",
    "file.before_write", "file.mid_write", "file.before_fsync", "file.after_fsync",
    "write.before_rename", "write.after_rename", "write.after_dirsync",
    "ckpt.before_mkdir", "ckpt.after_mkdir", "ckpt.before_verify", "ckpt.before_dirsync", "ckpt.after_dirsync",
    "ckpt.after_aside", "ckpt.before_rename", "ckpt.after_rename", "ckpt.after_parentsync",
    "ckpt.before_retire", "ckpt.after_retire", "ckpt.before_remove", "ckpt.mid_remove",
    "segment.before_verify", "segment.after_rename", "segment.before_remove",
)  # fmt: skip


class Trap(NamedTuple):
    """The setting of GPI_FAILPOINT: the count-th passage of one point kills the process, or finds the disk full."""

    name: str
    count: int
    full: bool
    passages: Iterator[int]


@functools.cache
def read_trap() -> Trap | None:
    """Return the trap that GPI_FAILPOINT sets, or None; the variable is read once."""
    setting = os.environ.get("GPI_FAILPOINT")
    if not setting:
        return None
    match = re.fullmatch(r"([a-z._]+):([1-9][0-9]*)(:enospc)?", setting)
    if not match or match[1] not in FAILPOINTS:
        raise UsageError(f"GPI_FAILPOINT={setting[:80]!a} is not NAME:COUNT[:enospc] with a name of {FAILPOINTS}")
    return Trap(match[1], int(match[2]), match[3] is not None, itertools.count(1))


def failpoint(name: str) -> None:
    """Kill the process or fill the disk here, if GPI_FAILPOINT asks for it."""
    trap = read_trap()
    if trap is None or trap.name != name or next(trap.passages) != trap.count:
        return
    if trap.full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.kill(os.getpid(), signal.SIGKILL)
