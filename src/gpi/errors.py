"""Errors that people cause or can act on: each becomes one line and has its own exit code."""

from __future__ import annotations

import errno
import os
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
DENIED = (errno.EACCES, errno.EPERM)
REMEDIES = {
    errno.ENOSPC: "free space on that disk", errno.EDQUOT: "free space: your quota on that disk is used up",
    errno.EIO: "free space on that disk and look whether it is sound", errno.EFBIG: "raise the limit: ulimit -f",
    errno.EROFS: "that disk is read-only; name another place",
    errno.EISDIR: "name a file", errno.ENOTDIR: "a part of that path is a file; name another place",
    errno.ENAMETOOLONG: "use a shorter name", errno.ELOOP: "it is a symbolic link; name its target",
    errno.ENOENT: "make the directory first, or name another place",
    errno.EMFILE: "close other files, or raise the limit: ulimit -n",
}  # fmt: skip
"""What to do about an error of the operating system, by its number."""


class GpiError(Exception):
    """An error whose message is one line with value, rule and remedy; the command line exits with `exit_code`."""

    exit_code = 1


class UsageError(GpiError, ValueError):
    """Bad input: the message states value, rule and remedy on one line; the command line exits with code 2."""

    exit_code = 2

    def __init__(self, message: str = "", setting: str = ""):
        """`setting` is the setting at fault, whose line in a file is to be named."""
        super().__init__(message)
        self.setting = setting


class UnknownTaskError(UsageError):
    """No task has this name here; on another machine, or by `--env`, one may."""

    def __init__(self, message: str = ""):
        """Blame the task."""
        super().__init__(message, "task")


class FileError(GpiError):
    """A checkpoint or policy file is damaged, hostile or from another run; no part of it was loaded."""

    exit_code = 3


class LockedError(GpiError):
    """The run directory is in use by another process."""

    exit_code = 4


class DiskError(GpiError):
    """The disk refused a write; earlier files are unchanged."""

    exit_code = 5


class EnvironmentFault(GpiError):  # noqa: N818 (EnvironmentError is Python's own)
    """The environment broke its contract: wrong shapes, or values that are not finite."""

    exit_code = 6
    traced = False
    """Whether a run directory has the traceback."""


class DivergedError(GpiError):
    """Training diverged in every member of the population."""

    exit_code = 7


def disk_error(path: Path | str, error: OSError, kept: str = "") -> DiskError:
    """Return the error of a file that cannot be written; `kept` describes the data that remain."""
    remedy = REMEDIES.get(error.errno or 0, "name another place")
    if error.errno in DENIED:
        barred = os.path.lexists(path) and not os.access(path, os.W_OK)
        place = path if barred else os.path.dirname(path) or "."
        remedy = f"change its permissions (chmod u+w {place}), or name another place"
    return DiskError(f"{path} cannot be written: {reason(error)}; {f'{kept}; ' if kept else ''}{remedy}")


def read_error(path: Path | str, error: OSError) -> FileError | UsageError:
    """Return the error of a file or directory that cannot be read: bad input where only permission is missing."""
    if error.errno in DENIED:
        return UsageError(f"{path} may not be read: {reason(error)}; ask its owner for permission (chmod -R a+rX)")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return FileError(f"{path} does not exist; restore it, or name another")
    return FileError(f"{path} cannot be read: {reason(error)}; {REMEDIES.get(error.errno or 0, 'restore it')}")


def unexpected(error: OSError) -> GpiError | None:
    """Return the error to report for an unexpected one of the operating system, or None for a bug in gpi."""
    if error.errno not in (*FULL, *DENIED, *REMEDIES) or error.errno == errno.ENOENT:
        return None
    path = error.filename2 or error.filename
    if path is None:
        return disk_error("the output", error) if error.errno in FULL else None
    path = os.fsdecode(path) if isinstance(path, bytes) else str(path)
    unreadable = error.errno in DENIED and os.path.lexists(path) and not os.access(path, os.R_OK)
    hidden = error.errno in DENIED and not os.access(os.path.dirname(path) or ".", os.X_OK)
    return read_error(path, error) if unreadable or hidden else disk_error(path, error)


def reason(error: OSError) -> str:
    """Return what the operating system says."""
    return error.strerror or str(error) or type(error).__name__
