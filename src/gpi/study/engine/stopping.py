"""When a runner ends before all jobs are done: by a signal, or because its time is up."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gpi.errors import UsageError

SAVING = 30.0  # seconds that jobs have for their last iteration and for saving it
ENDING = 1.0  # seconds that the runner itself needs


class Stop:
    """Remembers signals, and the time until which the runner may work."""

    def __init__(self, seconds: float | None = None):
        """Count from now; without `seconds` the time is unlimited."""
        self.signals: list[int] = []
        self.patience = math.inf  # until when jobs may save after a signal
        self.end = math.inf if seconds is None else time.monotonic() + seconds
        self.saving = 0.0 if seconds is None else min(SAVING, seconds / 4)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; a user who presses Ctrl-C can press it again, other senders wait for an end."""
        self.signals.append(number)
        if number != signal.SIGINT:
            self.patience = min(self.patience, time.monotonic() + SAVING)

    def seconds_left(self) -> float:
        """Return the seconds in which jobs may work."""
        return self.end - self.saving - time.monotonic()

    @property
    def time_is_up(self) -> bool:
        """Whether the runner's time is up."""
        return self.seconds_left() <= 0.0

    @property
    def asked(self) -> bool:
        """Whether jobs shall save and end."""
        return bool(self.signals) or self.time_is_up

    @property
    def now(self) -> bool:
        """Whether jobs must end without saving."""
        return len(self.signals) > 1 or time.monotonic() >= min(self.end - ENDING, self.patience)

    @property
    def why(self) -> str:
        """What makes the runner end."""
        return signal.Signals(self.signals[0]).name if self.signals else "time is up"


@contextmanager
def stoppable(seconds: float | None = None) -> Iterator[Stop]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the runner; a SIGHUP that is ignored, as under nohup, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("a study must be run in the main thread, because its processes end with the thread they have")
    stop = Stop(seconds)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
