"""Messages about environments that break their contract or raise: one line, and the traceback of the user's code."""

from __future__ import annotations

import traceback
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


class ContractError(Exception):
    """A broken contract: the problem and its remedy, without the environment's name or the step."""


class Hanging(BaseException):
    """A reset or step takes too long; not an Exception, which an environment might catch."""


class WorkerError(Exception):
    """The traceback of an exception in a worker process, as text."""


def brief(value: object, limit: int = 60) -> str:
    """Describe any value in one short printable line."""
    try:
        text = " ".join(str(value).split())
    except Exception:  # a user's class may fail even here
        text = f"a {type(value).__name__}"
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(error: BaseException) -> str:
    """Describe an exception in one line."""
    text = brief(error, 300)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traceback_of(error: BaseException) -> str | None:
    """Return the traceback of the user's exception behind a fault, or None; this package's frames are left out."""
    cause = error.__cause__
    if isinstance(cause, WorkerError):
        return str(cause) or None
    trace = cause.__traceback__ if cause is not None and not isinstance(cause, ContractError) else None
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    if cause is None or trace is None:
        return None
    return "".join(traceback.TracebackException(type(cause), cause, trace).format())


def _ours(file: str) -> bool:
    """Return whether a frame belongs to this package, or to Python's import system."""
    return Path(file).is_relative_to(PACKAGE) or "importlib" in file
