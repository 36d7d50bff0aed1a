"""Signals: the first ends a run after its iteration, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Remembers the first SIGINT or SIGTERM, so that the iteration can end properly; the second ends at once."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal is not None:
            os._exit(128 + number)  # files on disk are complete at any time
        self.signal = number


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Let signals end the run after its iteration; only in the main thread, as Python allows handlers nowhere else."""
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
