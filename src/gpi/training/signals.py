"""Signals: the first ends a run after its iteration, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Remembers the first signal that asks a run to end, so that the iteration can; the second ends it at once."""

    patient = False
    """Whether further SIGTERMs are ignored: a job of a study may get one from each of its runner, the kernel when the
    runner dies, and the scheduler of a cluster."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.patient and number == signal.SIGTERM and self.signal is not None:
            return
        if self.signal is not None:
            os._exit(128 + number)  # files on disk are complete at any time
        self.signal = number


class Starting:
    """Raises KeyboardInterrupt at Ctrl-C, and remembers it: an import that swallows the exception hides it from us."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C."""
        self.interrupted = True
        raise KeyboardInterrupt


def ignored(number: signal.Signals) -> bool:
    """Return whether the parent process, or the user's own code, wants a signal ignored."""
    return signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[Mapping[signal.Signals, object]]:
    """Give Ctrl-C, SIGTERM and SIGHUP to a handler; yield those that they had. Call it in the main thread.

    A signal that is ignored stays ignored: SIGHUP under nohup, SIGINT in what a script started in the background.
    """
    optional = [number for number in (signal.SIGINT, signal.SIGHUP) if not ignored(number)]
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, *optional)}
    try:
        yield before
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the run after its iteration; not in other threads, where Python cannot."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    with handling(interrupt) as before:
        starting = before.get(signal.SIGINT)
        if isinstance(starting, Starting) and starting.interrupted:
            raise KeyboardInterrupt
        yield interrupt


@contextmanager
def starting() -> Iterator[None]:
    """Keep a Ctrl-C of the first moments, when imports may swallow it, for `interruptible`."""
    if threading.current_thread() is not threading.main_thread() or ignored(signal.SIGINT):
        yield
        return
    before = signal.signal(signal.SIGINT, Starting())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def pass_on(number: int, saved: str) -> None:
    """Let a signal that ended a run have its usual effect; Ctrl-C raises KeyboardInterrupt."""
    if number == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise KeyboardInterrupt(saved)
    signal.raise_signal(number)
