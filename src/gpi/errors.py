"""Errors that people cause or can act on: each becomes one line and has its own exit code."""


class GpiError(Exception):
    """An error whose message is one line with value, rule and remedy; the command line exits with `exit_code`."""

    exit_code = 1


class UsageError(GpiError, ValueError):
    """Bad input: the message states value, rule and remedy on one line; the command line exits with code 2."""

    exit_code = 2


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


class DivergedError(GpiError):
    """Training diverged in every member of the population."""

    exit_code = 7
