"""The lock of a run directory: one process writes to it at a time."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpi import files
from gpi.errors import LockedError, UsageError

LOCK = "run.lock"
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""What a file system without locks answers, such as Lustre mounted without them."""


@contextmanager
def claim(directory: Path) -> Iterator[None]:
    """Make and lock a new run directory; refuse one that holds other files, and remove it if the start fails."""
    refuse_foreign(directory, make(directory, exist_ok=True))  # before anything is added to it
    with hold(directory):
        names = {path.name for path in directory.iterdir() if not files.LEFTOVER.fullmatch(path.name)}
        refuse_foreign(directory, names - {LOCK})
        try:
            yield
        finally:
            if not (directory / "config.json").exists():  # the run did not start, so nothing is left behind
                (directory / LOCK).unlink(missing_ok=True)
                with suppress(OSError):
                    directory.rmdir()


def refuse_foreign(directory: Path, names: set[str]) -> None:
    """Raise if a directory holds other files; one with a lock is left to `hold`, which names its holder."""
    if names and LOCK not in names:
        raise UsageError(
            f"--out {directory} holds another run or other files; name a new directory, or remove that one"
        )


def make(directory: Path, *, exist_ok: bool) -> set[str]:
    """Make a run directory and return the names in it; an existing one raises FileExistsError, unless `exist_ok`."""
    try:
        directory.mkdir(parents=True, exist_ok=exist_ok)
        return {path.name for path in directory.iterdir()}
    except OSError as error:
        if isinstance(error, FileExistsError) and not exist_ok:
            raise
        raise UsageError(
            f"--out {directory} cannot be made: {error.strerror}; name a directory you may write to"
        ) from error


def make_new(path: Path) -> Path:
    """Make a directory that no other run has, and return it: `path`, or path-2, path-3 ... if that exists."""
    for number in itertools.count(1):
        directory = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with suppress(FileExistsError):  # made by another run, perhaps in this very second
            make(directory, exist_ok=False)
            return directory
    raise AssertionError  # the count never ends


def take(path: Path, *, shared: bool = False, wait: bool = False) -> int | None:
    """Lock a file by `flock` and return its descriptor, whose end unlocks it; None if another process has it.

    The file is made if it is not there, but not to share a lock: a reader writes nothing. Where the file system has no
    locks at all, every lock is had: better unlocked than not at all.
    """
    made = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
    fd = os.open(path, made | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in NO_LOCKS:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
    return fd


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Lock a run directory so that no other process writes to it; the kernel unlocks it when the process dies."""
    path = directory / LOCK
    while True:
        try:
            fd = take(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be opened: {error.strerror}; name a directory you may write to") from error
        if fd is None:
            raise LockedError(f"{directory} is in use by {holder_of(path)}; wait until it ends, or stop it")
        if same_file(fd, path):  # or another process removed it between our opening and locking it
            break
        os.close(fd)
    try:
        with suppress(OSError):  # the name of the holder is a courtesy: a full disk must not prevent locking
            os.ftruncate(fd, 0)
            os.write(fd, f"process {os.getpid()} on {platform.node()}\n".encode())
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(fd, 0)
        os.close(fd)


def holder_of(path: Path) -> str:
    """Return the process that holds a lock, after giving it a moment to write its name."""
    for _ in range(20):
        with suppress(OSError):
            if name := path.read_text(errors="replace")[:200].strip():
                return name
        time.sleep(0.05)
    return "another process"


def same_file(fd: int, path: Path) -> bool:
    """Return whether a path still names an open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
