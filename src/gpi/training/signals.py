"""Signals: the first ends a run after its iteration, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Remembers the first SIGINT or SIGTERM, so that the iteration under way ends well; a second ends at once."""

    def __init__(self) -> None:
        """Nothing came yet."""
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal is not None:
            os._exit(128 + number)  # what is on disk is whole at any time
        self.signal = number


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Signals end the run after its iteration; outside the main thread Python allows no handlers, so none are set."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
