"""The run directory: what a run is, what it measured, and what it learned, in files people can open."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpi import files
from gpi.errors import DiskError, FileError, LockedError, UsageError

if TYPE_CHECKING:  # reading a run must not start JAX
    from gpi.core.sample import Rollout

EPISODES = ("seed", "steps", "return", "length")
METRICS = (
    "seed", "iteration", "steps", "episode_return", "tv", "penalty", "kl", "eps_gpi", "lr", "entropy", "value_loss",
    "ess", "improvement", "fraction", "adv_std", "degenerate_batch",
)  # fmt: skip
AUDIT = (
    "seed", "iteration", "steps", "penalty", "penalty_bound", "penalty_held", "tv", "tv_bound", "tv_held", "kl",
    "kl_bound", "kl_held", "ess", "ess_realised", "surrogate_gain", "c_estimate", "worst_case_decline",
    "normaliser_tv", "fraction", "budget_exhausted",
)  # fmt: skip
TIMING = ("iteration", "steps", "collect_seconds", "learn_seconds", "seconds")
FINAL_STEPS = 204_800  # final performance is the mean return of the episodes that end in so many last steps


LOCK = "run.lock"


@contextmanager
def claim(directory: Path) -> Iterator[None]:
    """A new run directory, held; one that has another run or other files is refused, and a failed start leaves none."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out {directory} cannot be made: {error.strerror}; name a place you may write to"
        ) from error
    refuse_foreign(directory, {path.name for path in directory.iterdir()})  # before anything is added to it
    with hold(directory):
        names = {path.name for path in directory.iterdir() if not files.LEFTOVER.fullmatch(path.name)}
        refuse_foreign(directory, names - {LOCK})
        try:
            yield
        finally:
            if not (directory / "config.json").exists():  # nothing was begun, so nothing is left
                (directory / LOCK).unlink(missing_ok=True)
                with suppress(OSError):
                    directory.rmdir()


def refuse_foreign(directory: Path, names: set[str]) -> None:
    """A directory with these files is no place for a new run; with a lock among them, who holds it is asked first."""
    if names and LOCK not in names:
        raise UsageError(
            f"--out {directory} holds another run or other files; name a new directory, or remove that one"
        )


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """A run directory that no other process may write to meanwhile; the kernel lets go of it when the process dies."""
    path = directory / LOCK
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{path} cannot be opened: {error.strerror}; name a directory you may write to") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if same_file(fd, path):  # or another process removed it between our opening and locking it
                break
        except BlockingIOError:
            holder = holder_of(fd)
            os.close(fd)
            raise LockedError(f"{directory} is in use by {holder}; wait until it ends, or stop it") from None
        os.close(fd)
    try:
        with suppress(OSError):  # the name of the holder is a courtesy: a full disk does not forbid to hold
            os.ftruncate(fd, 0)
            os.write(fd, f"process {os.getpid()} on {platform.node()}\n".encode())
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(fd, 0)
        os.close(fd)


def holder_of(fd: int) -> str:
    """Who holds a lock, once it has had a moment to write its name."""
    for _ in range(20):
        if name := os.pread(fd, 200, 0).decode(errors="replace").strip():
            return name
        time.sleep(0.05)
    return "another process"


def same_file(fd: int, path: Path) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def write_json(path: Path, value: Any) -> None:
    """One JSON object, readable, on disk as a whole or not at all."""
    files.write(path, (json.dumps(value, indent=2, sort_keys=False) + "\n").encode())


def cell(x: Any) -> str:
    """A number as text: nine digits hold every float32; nothing for what does not exist."""
    if x is None or x != x:
        return ""
    return str(int(x)) if isinstance(x, int | np.integer | np.bool_) else f"{float(x):.9g}"


class Table:
    """A CSV file that grows by rows; what a full disk does not take is kept and written when it can be."""

    def __init__(self, path: Path, columns: tuple[str, ...], size: int | None = None):
        """Start the file with its header, or cut it back to a size it had and go on from there."""
        self.path, self.pending, self.size = path, b"", size or 0
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.fd = os.open(path, flags | (os.O_CREAT | os.O_TRUNC if size is None else 0), 0o600)
        except OSError as error:
            raise FileError(f"{path} cannot be opened: {error.strerror}; restore it, or train again") from error
        if size is None:
            self.add([columns])
            return
        found = os.fstat(self.fd).st_size
        if found < size:
            os.close(self.fd)
            raise FileError(f"{path} was cut short (expected at least {size} bytes, found {found}); restore it")
        os.ftruncate(self.fd, size)
        os.lseek(self.fd, size, os.SEEK_SET)

    def add(self, rows: Iterable[Iterable[Any]]) -> None:
        """Append rows."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(
            [[x if isinstance(x, str) else cell(x) for x in row] for row in rows]
        )
        self.pending += text.getvalue().encode()
        with suppress(OSError):
            self.flush()

    def flush(self) -> None:
        """Hand everything to the system."""
        while self.pending:
            files.failpoint("table.before_write")
            written = os.write(self.fd, self.pending)
            self.pending, self.size = self.pending[written:], self.size + written

    def sync(self) -> int:
        """Wait until the disk has everything; returns the size of the file."""
        try:
            self.flush()
            files.failpoint("table.before_fsync")
            os.fsync(self.fd)
        except OSError as error:
            raise DiskError(f"{self.path} cannot be written: {error.strerror}; free disk space") from error
        return self.size

    def close(self) -> None:
        """No more rows."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class EpisodeLog:
    """Adds up rewards into episode returns; episodes span batches, unless every batch starts with a reset."""

    def __init__(self, P: int, E: int, *, reset_each_batch: bool):
        """No episode has begun."""
        self.reset_each_batch = reset_each_batch
        self.total = np.zeros((P, E))
        self.length = np.zeros((P, E), np.int64)

    def forget(self) -> None:
        """What has begun will never end."""
        self.total[:], self.length[:] = 0.0, 0

    def finish(self, raw: Rollout, frozen: np.ndarray) -> list[list[tuple[int, float, int]]]:
        """For each member, the episodes that ended in this batch: steps into it, return, length; none if frozen."""
        P, _, E = raw.reward.shape
        if self.reset_each_batch:
            self.forget()
        ended: list[list[tuple[int, float, int]]] = [[] for _ in range(P)]
        steps = np.cumsum(raw.valid.sum(axis=2), axis=1)
        for p, e in np.ndindex(P, E):
            if frozen[p]:
                continue
            begin = 0
            for t in np.flatnonzero(raw.done[p, :, e]):
                self._extend(raw, p, e, begin, int(t) + 1)
                ended[p].append((int(steps[p, t]), float(self.total[p, e]), int(self.length[p, e])))
                self.total[p, e], self.length[p, e] = 0.0, 0
                begin = int(t) + 1
            self._extend(raw, p, e, begin, raw.reward.shape[1])
        return [sorted(member) for member in ended]

    def _extend(self, raw: Rollout, p: int, e: int, begin: int, end: int) -> None:
        self.total[p, e] += raw.reward[p, begin:end, e].sum(dtype=np.float64)
        self.length[p, e] += int(raw.valid[p, begin:end, e].sum())


@dataclass(frozen=True)
class Run:
    """A finished run, read from its directory."""

    dir: Path

    @property
    def config(self) -> dict[str, Any]:
        """The run's settings."""
        return json.loads((self.dir / "config.json").read_text(encoding="utf-8"))["config"]

    @property
    def seeds(self) -> list[int]:
        """The seeds of its members."""
        config = self.config
        return list(range(config["seed"], config["seed"] + config["seeds"]))

    def episodes(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps at which a seed's episodes ended, and their returns."""
        rows = [row for row in read(self.dir / "episodes.csv") if int(row["seed"]) == seed]
        return np.array([int(row["steps"]) for row in rows]), np.array([float(row["return"]) for row in rows])

    @property
    def returns(self) -> dict[int, float]:
        """Final performance of each seed: mean return of the episodes of its last 204,800 steps."""
        return {seed: final_return(*self.episodes(seed)) for seed in self.seeds}

    def policy(self, seed: int | None = None) -> Any:
        """The final policy of a seed, by default the first."""
        from gpi.policy_file import load

        return load(self.dir, seed)


def final_return(steps: np.ndarray, returns: np.ndarray) -> float:
    """Mean return of the episodes that ended in the last 204,800 steps; NaN if none did."""
    last = returns[steps > steps.max() - FINAL_STEPS] if len(steps) else returns
    return float(last.mean()) if len(last) else float("nan")


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def open_run(directory: str | Path, *needs: str) -> Run:
    """A run directory, checked to be one: by default, one with settings and episodes."""
    path = Path(directory)
    for name in needs or ("config.json", "episodes.csv"):
        if not (path / name).is_file():
            raise UsageError(f"{path} is not a run directory: it has no {name}; name a directory that `gpi train` made")
    return Run(path)
