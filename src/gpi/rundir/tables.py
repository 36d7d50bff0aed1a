"""The tables of a run directory: the measurements of every iteration, as CSV files that people can open."""

from __future__ import annotations

import csv
import io
import os
import time
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from gpi.envs.episodes import EpisodeCounter
from gpi.errors import DENIED, FileError, disk_error
from gpi.failpoints import failpoint
from gpi.standalone import Facts

if TYPE_CHECKING:  # reading a run must not start JAX
    from gpi.core.sample import Rollout
    from gpi.training.job import Job
    from gpi.training.trainer import Iteration

EPISODES = ("seed", "steps", "return", "length")
METRICS = (
    "seed", "iteration", "steps", "episode_return", "tv_abs", "penalty_abs", "kl", "eps_gpi", "lr", "entropy",
    "value_loss", "ess", "improvement", "fraction", "adv_std", "degenerate_batch",
)  # fmt: skip
AUDIT = (
    "seed", "iteration", "steps", "penalty_lost", "penalty_bound", "penalty_held", "penalty_acted", "tv_lost",
    "tv_bound", "tv_held", "tv_closed", "kl", "kl_bound", "kl_held", "ess", "ess_realised", "surrogate_gain",
    "gain_se", "c_estimate", "worst_case_decline", "normaliser_tv", "normaliser_lag", "fraction", "budget_exhausted",
)  # fmt: skip
KEPT = ("kept_return", "undone")  # of audit.csv, if `Job.keeps`
EARLIER = ("tv", "penalty")  # of earlier versions: two estimates under one name (`as_begun`)
TIMING = ("iteration", "steps", "collect_seconds", "learn_seconds", "seconds")
HEADER_LIMIT = 1 << 16  # bytes of a table's first line
RECENT_EPISODES = 10  # per seed, averaged into the return that is shown


def cell(x: Any) -> str:
    """Return a number as text, with the nine digits that hold every float32; empty for None and NaN."""
    if x is None or x != x:
        return ""
    return str(int(x)) if isinstance(x, int | np.integer | np.bool_) else f"{float(x):.9g}"


class Table:
    """A CSV file that grows by rows; rows that a full disk refuses are kept in memory and written later."""

    def __init__(self, path: Path, columns: tuple[str, ...], size: int | None = None):
        """Start the file with its header, or cut it back to a size it once had and continue from there."""
        self.path, self.columns, self.pending, self.size = path, columns, b"", size or 0
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.fd = os.open(path, flags | (os.O_CREAT | os.O_TRUNC if size is None else 0), 0o666)
        except OSError as error:
            if size is None or error.errno in DENIED:
                raise disk_error(path, error) from error
            raise FileError(f"{path} cannot be opened: {error.strerror}; restore it, or train again") from error
        if size is None:
            self.add([columns])
            return
        found = os.fstat(self.fd).st_size
        if found < size:
            os.close(self.fd)
            raise FileError(f"{path} was cut short (expected at least {size} bytes, found {found}); restore it")
        self.columns = self._header(columns)
        os.ftruncate(self.fd, size)
        os.lseek(self.fd, size, os.SEEK_SET)

    def _header(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns that the file has: an earlier version may have begun it with others, and it keeps them."""
        line = os.pread(self.fd, min(self.size, HEADER_LIMIT), 0).decode(errors="replace").partition("\n")[0]
        found = tuple(line.split(","))
        unknown = [name for name in found if name not in (*columns, *EARLIER)]
        if unknown:
            os.close(self.fd)
            raise FileError(f"{self.path} has a column {unknown[0][:40]!r} that this version does not know; restore it")
        return found

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
        """Hand everything to the operating system."""
        while self.pending:
            failpoint("table.before_write")
            written = os.write(self.fd, self.pending)
            self.pending, self.size = self.pending[written:], self.size + written

    def sync(self) -> int:
        """Wait until the disk has everything; return the size of the file."""
        try:
            self.flush()
            failpoint("table.before_fsync")
            os.fsync(self.fd)
        except OSError as error:
            raise disk_error(self.path, error) from error
        return self.size

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class Fault(TypedDict):
    """When and where a seed was frozen."""

    iteration: int
    stage: str


Row = dict[str, Any]  # one seed's numbers of one iteration, by column


class RunTables:
    """The tables of a run, and the totals that progress and the end of the run need."""

    def __init__(self, directory: Path, job: Job, saved: Facts | None = None):
        """Open the tables of a new run, or cut those of an interrupted one back to its checkpoint."""
        self.job, config = job, job.config
        ages = tuple(f"tv_age_{i}" for i in range(len(job.plan.nu)))
        kept = KEPT if job.keeps else ()
        columns = {"metrics": METRICS, "audit": AUDIT + ages + kept, "episodes": EPISODES, "timing": TIMING}
        sizes = saved["tables"] if saved else dict.fromkeys(columns)
        self.tables = {name: Table(directory / f"{name}.csv", columns[name], sizes[name]) for name in columns}
        self.episodes = EpisodeCounter(config.seeds, config.num_envs)
        self.steps = np.zeros(config.seeds, np.int64)
        self.recent = [deque(maxlen=RECENT_EPISODES) for _ in job.seeds]
        self.frozen: dict[str, Fault] = {}  # by seed
        seconds = 0.0
        if saved:
            self.steps = np.array(saved["steps"], np.int64)
            self.episodes.total, self.episodes.length = np.array(saved["total"]), np.array(saved["length"], np.int64)
            self.recent = [deque(returns, maxlen=RECENT_EPISODES) for returns in saved["recent"]]
            self.frozen, seconds = saved["frozen"], saved["seconds"]
        self.start = time.perf_counter() - seconds

    def begin(self, warm_up: Iterable[Rollout]) -> None:
        """Count the beginnings of the first episodes, which lie in the warm-up, so that their returns are whole."""
        for raw in warm_up:
            self.episodes.add_batch(raw, np.zeros(len(self.job.seeds), np.bool_))

    def state(self) -> Facts:
        """Return the state that a checkpoint needs to continue the tables without losing or repeating a row."""
        return {
            "tables": {name: table.sync() for name, table in self.tables.items()},
            "steps": self.steps.tolist(),
            "total": self.episodes.total.tolist(), "length": self.episodes.length.tolist(),
            "recent": [list(returns) for returns in self.recent], "frozen": self.frozen,
            "seconds": time.perf_counter() - self.start,
        }  # fmt: skip

    def add(self, it: Iteration) -> dict[str, np.ndarray]:
        """Write one iteration's rows, none for a frozen seed; return the metrics, `[seeds]`."""
        frozen = self._freeze(it)
        alive = [(p, seed) for p, seed in enumerate(self.job.seeds) if not frozen[p]]
        if self.job.config.reset_each_batch:
            self.episodes.forget()
        ended = self.episodes.add_batch(it.raw, frozen)
        before = self.steps
        self.steps = before + np.where(frozen, 0, it.raw.valid.sum(axis=(1, 2)))
        self.tables["episodes"].add(
            (seed, before[p] + steps, total, length) for p, seed in alive for steps, total, length, _ in ended[p]
        )
        rows = {p: self._row(it, p, seed, [e.total for e in ended[p]]) for p, seed in alive}
        audits = [row | audit_of(it, p) for p, row in rows.items()]
        for name, found in (("metrics", rows.values()), ("audit", audits)):
            table = self.tables[name]
            table.add([as_begun(row, table.columns)[column] for column in table.columns] for row in found)
        seconds = time.perf_counter() - self.start
        self.tables["timing"].add([(it.number, self.steps.max(), it.collect_seconds, it.learn_seconds, seconds)])
        return self._measured(rows)

    def _freeze(self, it: Iteration) -> np.ndarray:
        """Note which seeds are frozen, since when, and why; return them as a mask `[seeds]`."""
        from gpi.core.faults import NONE, STAGES  # it imports JAX, which must wait for `devices.prepare`

        frozen = np.asarray(it.fault) != NONE
        for p, seed in enumerate(self.job.seeds):
            if frozen[p] and str(seed) not in self.frozen:
                self.frozen[str(seed)] = {"iteration": it.number, "stage": STAGES[int(it.fault[p]) - 1]}
        return frozen

    def _row(self, it: Iteration, p: int, seed: int, returns: list[float]) -> Row:
        """Return one seed's measurements of an iteration, by column of metrics.csv."""
        self.recent[p].extend(returns)
        row = {name: value[p] for name, value in it.metrics._asdict().items()}
        row |= {"seed": seed, "iteration": it.number, "steps": self.steps[p]}
        return row | {"episode_return": np.mean(returns) if returns else None}

    def _measured(self, rows: dict[int, Row]) -> dict[str, np.ndarray]:
        """Return the metrics of all seeds; NaN for a frozen one."""
        names = [name for name in METRICS if name not in ("seed", "iteration", "steps")]
        measured = {name: np.full(len(self.job.seeds), np.nan) for name in names}
        for p, row in rows.items():
            for name, column in measured.items():
                column[p] = np.nan if row[name] is None else row[name]
        return measured

    def returns(self) -> np.ndarray:
        """Return the mean of each seed's recent episodes; NaN before the first."""
        return np.array([np.mean(recent) if recent else np.nan for recent in self.recent])

    def close(self) -> None:
        """Close the tables."""
        for table in self.tables.values():
            table.close()

    def slowest(self) -> int:
        """Return the steps that decide the end of the run."""
        return slowest(self.job.seeds, self.steps.tolist(), self.frozen)

    def all_frozen(self) -> bool:
        """Return whether every seed is frozen."""
        return len(self.frozen) == len(self.job.seeds)

    def faults(self) -> str:
        """Describe which seeds are frozen, since when, and why."""
        return describe(self.frozen)


def audit_of(it: Iteration, p: int) -> Row:
    """Return one seed's audit of an iteration, by column of audit.csv."""
    row = {name: value[p] for name, value in it.audit._asdict().items()}
    row |= {f"tv_age_{i}": x for i, x in enumerate(row.pop("tv_age"))}
    return row if it.kept is None else row | {name: getattr(it.kept, name)[p] for name in KEPT}


def as_begun(row: Row, columns: Sequence[str]) -> Row:
    """Return a row with what the columns of an earlier version mean: a table keeps the estimates it was begun with.

    There, `tv` and `penalty` are ½ E|ratio - 1|, but (1 - ratio)+ in an audit.csv with `tv_closed`.
    """
    if not set(EARLIER) & set(columns):
        return row
    if "tv_closed" in columns:
        return row | {"tv": row["tv_lost"], "penalty": row["penalty_lost"]}
    row = row | {"tv": row["tv_abs"], "penalty": row["penalty_abs"]}
    if "penalty_bound" in columns:  # the first audit.csv: its other estimates were dropped, these stay empty
        gone = ("surrogate_gain", "normaliser_tv", *(name for name in columns if name.startswith("tv_age_")))
        held = {f"{name}_held": row[name] <= row[f"{name}_bound"] for name in EARLIER}
        row = row | held | dict.fromkeys(gone)
    return row


def slowest(seeds: Iterable[int], steps: Sequence[int], frozen: Container[str]) -> int:
    """Return the steps of the slowest seed that can still learn, or of the fastest if none can."""
    alive = [count for seed, count in zip(seeds, steps, strict=True) if str(seed) not in frozen]
    return min(alive) if alive else max(steps)


def describe(frozen: Mapping[str, Fault]) -> str:
    """Say which seeds are frozen, since when, and why; those that met the same fault together."""
    together: dict[str, list[str]] = {}
    for seed, fault in frozen.items():
        together.setdefault(f"at iteration {fault['iteration']} ({fault['stage']} not finite)", []).append(seed)
    return ", ".join(f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)} {why}" for why, seeds in together.items())
