"""Jobs of a runner, waiting or running, and the runner's record of each."""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpi.study.definition import Job
from gpi.study.engine.jobs import BUSY, BUSY_SECONDS
from gpi.study.engine.stopping import SAVING

PATIENCE = math.ceil(SAVING / BUSY_SECONDS)  # attempts after which a run directory in use is worth a line


@dataclass
class Waiting:
    """A job that is to be started, now or later."""

    job: Job
    program: str
    """The name of its compiled program."""
    best: int = 0
    """Steps of each seed at the furthest point it has ever reached."""
    ready: float = -math.inf
    """When it may be started, by the monotonic clock."""
    elsewhere: bool = False
    """Whether another runner had it when this one last tried."""
    failures: int = 0
    """Failures since it last made progress."""
    attempts: int = 0
    noted: int = 0
    """Attempts recorded in its file of failure when this runner began; 0 if it had none."""
    busy: int = 0
    """How often in a row its run directory was in use."""

    def patient(self, code: int) -> bool:
        """Note the end of an attempt; return whether it met a job of a killed runner, which still saves."""
        self.busy = self.busy + 1 if code == BUSY else 0
        return 0 < self.busy < PATIENCE


@dataclass
class Running:
    """A job that runs in a process."""

    waiting: Waiting
    process: subprocess.Popen[bytes]
    lock: int
    gpu: str
    began: float
    table: tuple[int, int] | None
    """Size and time of its timing.csv when it was started."""
    base: int
    """Steps of each seed that it continued from."""
    steps: int = 0
    iterates: bool = False
    """Whether it has compiled its program and ended an iteration."""

    @property
    def job(self) -> Job:
        """The job."""
        return self.waiting.job

    @property
    def gained(self) -> int:
        """Steps of all seeds in this process."""
        return self.job.config.seeds * max(0, self.steps - self.base)


def next_gpu(gpus: Sequence[str], running: Sequence[Running]) -> str:
    """Return the GPU that the fewest jobs use; empty without a choice."""
    if len(gpus) < 2:
        return ""
    used = Counter(one.gpu for one in running)
    return min(gpus, key=lambda gpu: used[gpu])
