"""The numbers of docs/reliability.md: runs that are killed, moved, raced for or out of disk end bit for bit the same.

    python benchmarks/reliability.py                        # everything: hours on 2 cores, minutes on 16
    python benchmarks/reliability.py --only kills chain     # some parts
    python benchmarks/reliability.py --only kills --trials 20 --record try.jsonl
    python benchmarks/reliability.py --trial-seed 37        # one trial again, the one that a failure named
    python benchmarks/reliability.py --only replay --match humanoid

kills   independent trials, six algorithms x three tasks: `gpi train` is killed with SIGKILL, half at a time uniform in
        the length of an undisturbed run, half at a failpoint (`gpi.failpoints`); a fifth is killed again while it
        resumes; then `gpi resume`. After each kill the newest whole checkpoint must be the last that was due. At the
        end the newest checkpoint's arrays, the tables and the policies must have the bytes of the undisturbed run.
chain   one run, killed many times in a row.
replay  28 tasks, batches with and without resets, five cut points each: a new pool that is brought to where another
        was gives the same next batch; and the seconds that takes after 1M steps, on one core (bar: 5).
disk    the disk is full once, at every failpoint, midway and last: exit code 0 or 5, checkpoints stay, resume is exact.
cores   one and two visible cores with PJRT_NPROC pinned: the same bytes.
race    eight processes claim one directory at once: exactly one gets it.
cost    the share of a run's time that its checkpoints take (bar: 2 %), alone on the machine.

Every process has PJRT_NPROC=2 and, with more than one job, a core of its own; `cost` has the machine as users do. Each
part prints a Markdown table and adds a line to the record. The exit code is 1 if anything was not as it must be.
"""

import argparse
import hashlib
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpi.core.plan import ALGORITHMS
from gpi.envs.dmc import TASKS
from gpi.errors import FileError
from gpi.failpoints import FAILPOINTS
from gpi.rundir import checkpoint
from gpi.training import devices as runtime

PARTS = ("kills", "chain", "replay", "disk", "cores", "race", "cost")
PAIRS = [(a, t) for t in ("cartpole-balance", "finger-spin", "reacher-easy") for a in ALGORITHMS]
TINY = {"seeds": 2, "n": 1000, "hidden": 8, "epochs": 2, "minibatches": 4}
ITERATIONS, COST_ITERATIONS = 8, 120
CUTS = (0, 1, 2, 4, 7)
RACERS = 8
REPLAY_BAR, COST_BAR = 5.0, 0.02
SAME = ("metrics.csv", "audit.csv", "episodes.csv", "policy-*.safetensors", ".*")  # the last: nothing is left over
TIMEOUT = 300.0

Job = dict[str, Any]  # what a job found: name, note, ok, and numbers


# --- processes ----------------------------------------------------------------------------------------------------


class Lab:
    """Runs jobs side by side in the order given, each thread with a core of its own, and says when one is done."""

    def __init__(self, out: Path, jobs: int, match: str):
        self.out, self.jobs, self.match = out, jobs, match
        self.cores = sorted(os.sched_getaffinity(0))
        self.began, self.done, self.total = time.perf_counter(), 0, 0
        self.mine, free = threading.local(), queue.SimpleQueue[int]()
        for i in range(jobs):
            free.put(i)
        self.pool = ThreadPoolExecutor(jobs, initializer=lambda: setattr(self.mine, "place", free.get()))
        self.references: dict[tuple[str, str, int], Future[Job]] = {}
        self.lock = threading.Lock()

    def submit(self, name: str, job: Callable[..., Job], *arguments: Any) -> Future[Job]:
        """Queue a job; one that raises has failed, and the others go on."""
        self.total += 1

        def work() -> Job:
            try:
                found = {"name": name, **job(*arguments)}
            except Exception as error:
                found = {"name": name, "ok": False, "note": f"{type(error).__name__}: {error}"}
            with self.lock:
                self.done += 1
                seconds, verdict = time.perf_counter() - self.began, "" if found["ok"] else "FAILED: "
                print(f"[{seconds:5.0f} s, {self.done} of {self.total}] {name}: {verdict}{found['note']}", flush=True)
            return found

        return self.pool.submit(work)

    def command(self, arguments: list[str], cores: int | None) -> list[str]:
        """A Python process, pinned to this thread's core, or to `cores` of them."""
        if cores is None and self.jobs == 1:
            return [sys.executable, *arguments]
        mine = [str(self.cores[(self.mine.place + i) % len(self.cores)]) for i in range(cores or 1)]
        return ["taskset", "-c", ",".join(mine), sys.executable, *arguments]

    def environment(self, failpoint: str = "", pinned: bool = True) -> dict[str, str]:
        """What decides bits is set, compiled programs are shared."""
        setting = {"JAX_COMPILATION_CACHE_DIR": str(self.out / "xla"), "JAX_PLATFORMS": "cpu", **os.environ}
        setting |= {"XLA_FLAGS": "", "GPI_FAILPOINT": failpoint}
        return setting | {"PJRT_NPROC": "2"} if pinned else setting

    def gpi(
        self, *arguments: str, failpoint: str = "", seconds: float = TIMEOUT, cores: int | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> tuple[int, float, str]:  # fmt: skip
        """A `gpi` of its own, killed after `seconds` or once it is `enough`: exit code, duration, last complaint."""
        command = self.command(["-m", "gpi.cli", *arguments], cores)
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env=self.environment(failpoint), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        while process.poll() is None and time.perf_counter() - began < seconds and not enough():
            time.sleep(0.02)
        process.kill()  # does nothing to one that has ended
        _, errors = process.communicate()
        lines = errors.strip().splitlines() or [""]
        return process.returncode, time.perf_counter() - began, lines[-1][:300]

    def worker(self, *arguments: str, pinned: bool = True) -> Job:
        """What a part of this program that needs JAX in a process of its own found."""
        own = [__file__, "--worker", *arguments]
        command = self.command(own, None) if pinned else [sys.executable, *own]
        ended = subprocess.run(command, env=self.environment(pinned=pinned), capture_output=True, text=True)
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or [""]
            return {"ok": False, "note": f"exit {ended.returncode}: {lines[-1][:300]}"}
        return json.loads(ended.stdout.splitlines()[-1])

    def fresh(self, *names: str) -> Path:
        """A path for a run that nothing is at."""
        path = self.out.joinpath(*names)
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def reference(self, algorithm: str, task: str, every: int = 2) -> Future[Job]:
        """The undisturbed run; twice, which must be the same, and the second time nothing is compiled."""
        key = (algorithm, task, every)
        if key not in self.references:
            self.references[key] = self.submit(f"reference {algorithm} {task}", reference, self, *key)
        return self.references[key]

    def matches(self, name: str) -> bool:
        return self.match in name


def settings(algorithm: str, task: str, every: int, iterations: int = ITERATIONS) -> list[str]:
    """The arguments of `train` for a number of iterations."""
    steps = iterations * TINY["n"] * (1 if ALGORITHMS[algorithm].plan == "reuse" else 2)
    chosen = {"algorithm": algorithm, **TINY, "checkpoint-every": every, "steps": steps}
    return ["train", task, *(word for name, value in chosen.items() for word in (f"--{name}", str(value)))]


def again(directory: Path, start: list[str]) -> list[str]:
    """Continue a run; one that was killed before it wrote its settings starts again in the same place."""
    return ["resume", str(directory)] if (directory / "config.json").exists() else [*start, "--out", str(directory)]


def reference(lab: Lab, algorithm: str, task: str, every: int) -> Job:
    start, found = settings(algorithm, task, every), []
    for name in ("whole", "twice"):
        directory = lab.fresh(f"reference-{every}", f"{algorithm}-{task}", name)
        code, seconds, error = lab.gpi(*start, "--out", str(directory))
        if code:
            return {"ok": False, "note": f"exit {code}: {error}"}
        found.append((fingerprint(directory), seconds, directory))
    (whole, _, directory), (twice, seconds, _) = found
    note = f"{seconds:.1f} s" if whole == twice else f"two fresh runs differ in {differing(whole, twice)}"
    return {"ok": whole == twice, "note": note, "files": whole, "seconds": seconds, "directory": directory}


# --- looking at a run from outside --------------------------------------------------------------------------------


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fingerprint(directory: Path) -> dict[str, str]:
    """What must be the same: the newest checkpoint's arrays (weights, optimiser, buffer), tables and policies."""
    paths = [path for pattern in SAME for path in directory.glob(pattern)]
    paths += [path / checkpoint.ARRAYS for path in checkpoint.saved(directory)[:1]]
    return {str(path.relative_to(directory)): sha256(path) if path.is_file() else "directory" for path in paths}


def differing(a: dict[str, str], b: dict[str, str]) -> str:
    return ", ".join(sorted(name for name in {*a, *b} if a.get(name) != b.get(name)))


def intact(path: Path) -> bool:
    """Whether a checkpoint's manifest and the bytes it vouches for are whole."""
    try:
        checkpoint.read_identity(path)
        facts = json.loads((path / checkpoint.MANIFEST).read_text())["files"]
        return all(sha256(path / name) == fact["sha256"] for name, fact in facts.items())
    except (FileError, OSError):
        return False


def lost(directory: Path, every: int, missed: int = 0) -> str:
    """What a stopped run lacks: rows of an iteration mean that the checkpoint due before it is on disk and whole.

    `missed`: how many were allowed to fail, because the disk was full.
    """
    if not directory.exists():
        return ""
    whole = [int(path.name[5:]) for path in checkpoint.saved(directory) if intact(path)]
    if checkpoint.saved(directory) and not whole:
        return "no checkpoint is whole"
    table = directory / "metrics.csv"
    rows = table.read_text().splitlines(keepends=True)[1:] if table.exists() else []
    last = max([int(row.split(",")[1]) for row in rows if row.endswith("\n")], default=1)
    due = (last - 1) // every * every - missed * every
    found = max(whole, default=0)
    return f"checkpoint {due} was due, the newest whole one is {found}" if found < due else ""


def newest(directory: Path) -> int:
    """The iteration of a run's newest checkpoint."""
    saved = checkpoint.saved(directory) if directory.exists() else []
    return int(saved[0].name[5:]) if saved else 0


def passages(name: str, saves: int) -> int:
    """How often a run of eight iterations passes a failpoint."""
    if name.startswith("table."):
        return 4 + 4 * ITERATIONS if name == "table.before_write" else 4 * saves
    if name.startswith(("file.", "write.")):  # settings, two policies, DONE, and the three files of each checkpoint
        return 4 + 3 * saves if name.startswith("file.") else 4
    if name == "ckpt.after_aside":
        return 2
    return max(saves - checkpoint.KEEP, 1) if name in (*FAILPOINTS[-4:-2], FAILPOINTS[-1]) else saves


def spoiled(source: Path, directory: Path) -> None:
    """A finished run whose last two checkpoints rotted: resuming replaces them, which is what a run else never does."""
    shutil.copytree(source, directory)
    (directory / "DONE").unlink()
    for path in checkpoint.saved(directory)[:2]:
        data = bytearray((path / checkpoint.ARRAYS).read_bytes())
        data[len(data) // 2] ^= 1
        (path / checkpoint.ARRAYS).write_bytes(data)


# --- kills and chain ----------------------------------------------------------------------------------------------


def kills(lab: Lab, seeds: list[int]) -> list[Future[Job]]:
    chosen = [(seed, *PAIRS[seed // 2 % len(PAIRS)]) for seed in seeds]
    chosen = [row for row in chosen if lab.matches(f"{row[1]} {row[2]}")]
    for _, algorithm, task in chosen:
        lab.reference(algorithm, task)
    return [
        lab.submit(f"kills {seed} {algorithm} {task}", killed, lab, seed, algorithm, task)
        for seed, algorithm, task in chosen
    ]


def killed(lab: Lab, seed: int, algorithm: str, task: str) -> Job:
    """One run killed once or twice, at moments that its seed decides."""
    rng, whole = random.Random(seed), lab.reference(algorithm, task).result()
    start, directory = settings(algorithm, task, 2), lab.fresh("kills", str(seed))
    point = FAILPOINTS[seed // 2 % len(FAILPOINTS)] if seed % 2 else ""
    plan = [point, rng.choice(["", *FAILPOINTS])] if rng.random() < 0.2 else [point]
    found: Job = {"seed": seed, "algorithm": algorithm, "task": task, "kills": [], "landed": 0, "ok": False}
    aside = point == "ckpt.after_aside"
    if aside:
        spoiled(whole["directory"], directory)
    for name in plan:
        arguments = again(directory, start)
        if name:
            failpoint = f"{name}:{rng.randint(1, passages(name, ITERATIONS // 2))}"
            code, seconds, error = lab.gpi(*arguments, failpoint=failpoint)
        else:
            moment = rng.uniform(0, whole["seconds"])
            failpoint, (code, seconds, error) = f"{moment:.2f} s", lab.gpi(*arguments, seconds=moment)
        found["kills"].append(f"{failpoint}{'' if code else ' (not reached)'}")
        found["landed"] += code == -9
        if code not in (-9, 0) or seconds > TIMEOUT:
            return found | {"note": f"{failpoint}: exit {code}: {error}"}
        if gone := "" if aside else lost(directory, 2):
            return found | {"note": f"{failpoint}: {gone}"}
    return compared(lab, found, directory, start, whole["files"])


def compared(lab: Lab, found: Job, directory: Path, start: list[str], whole: dict[str, str]) -> Job:
    """Run to the end without disturbance and compare; what is as it must be is removed."""
    code, _, error = lab.gpi(*again(directory, start))
    if code:
        return found | {"ok": False, "note": f"{', '.join(found['kills'])}: then exit {code}: {error}"}
    mine = fingerprint(directory)
    if mine != whole:
        return found | {"ok": False, "note": f"{', '.join(found['kills'])}: differs in {differing(mine, whole)}"}
    shutil.rmtree(directory)
    return found | {"ok": True, "note": f"{', '.join(found['kills'])}: identical"}


def report_kills(jobs: list[Job]) -> tuple[str, Job]:
    rows, numbers = [], {}
    for algorithm in (*ALGORITHMS, "all"):
        mine = [job for job in jobs if algorithm in (job.get("algorithm"), "all")]
        twice = sum(len(job.get("kills", ())) > 1 for job in mine)
        numbers[algorithm] = {
            "trials": len(mine), "identical": sum(job["ok"] for job in mine),
            "killed": sum(job.get("landed", 0) > 0 for job in mine), "twice": twice,
            "by_time": sum(job.get("seed", 1) % 2 == 0 for job in mine),
        }  # fmt: skip
        x = numbers[algorithm]
        rows.append([algorithm, x["trials"], x["by_time"], x["trials"] - x["by_time"], x["killed"], twice,
                     f"{x['identical']}/{x['trials']}"])  # fmt: skip
    header = ["algorithm", "trials", "by time", "at a failpoint", "died of it", "killed twice", "identical"]
    points = Counter(job["kills"][0].split(":")[0] for job in jobs if job.get("seed", 0) % 2 and job["landed"])
    return markdown(header, rows), {"by_algorithm": numbers, "by_failpoint": dict(sorted(points.items()))}


def chain(lab: Lab, count: int) -> list[Future[Job]]:
    lab.reference("geppo", "cartpole-balance")
    return [lab.submit(f"chain of {count}", chained, lab, count)]


def chained(lab: Lab, count: int) -> Job:
    """One run killed `count` times; half at a time, half at a failpoint; no life is longer than eight iterations."""
    rng, start = random.Random(count), settings("geppo", "cartpole-balance", 1, 8 * count + 8)
    longest = lab.reference("geppo", "cartpole-balance").result()["seconds"]
    undisturbed, directory = lab.fresh("chain", "whole"), lab.fresh("chain", "killed")
    code, _, error = lab.gpi(*start, "--out", str(undisturbed))
    found: Job = {"kills": [], "landed": 0, "ok": False}
    if code:
        return found | {"note": f"exit {code}: {error}"}
    for i in range(count):
        name = rng.choice([name for name in FAILPOINTS if name != "ckpt.after_aside"]) if i % 2 else ""
        most = {"table.before_write": 24, "table.before_fsync": 12}.get(name, {"f": 9, "w": 1}.get(name[:1], 3))
        failpoint, moment = f"{name}:{rng.randint(1, most)}" if name else "", rng.uniform(0, longest)
        goal = newest(directory) + 7
        code, _, error = lab.gpi(
            *again(directory, start), failpoint=failpoint, seconds=TIMEOUT if name else moment,
            enough=lambda goal=goal, name=name: not name and newest(directory) >= goal,
        )  # fmt: skip
        found["kills"].append(failpoint or f"{moment:.2f} s")
        found["landed"] += code == -9
        if code not in (-9, 0):
            return found | {"note": f"{found['kills'][-1]}: exit {code}: {error}"}
        if gone := lost(directory, 1):
            return found | {"note": f"{found['kills'][-1]}: {gone}"}
    at = newest(directory)
    found = compared(lab, found | {"reached": at}, directory, start, fingerprint(undisturbed))
    if found["ok"]:
        found["note"] = f"{found['landed']} kills up to iteration {at} of {8 * count + 8}: identical"
    return found | {"ok": found["ok"] and found["landed"] == count}


def report_chain(jobs: list[Job]) -> tuple[str, Job]:
    rows = [
        [job["name"], len(job.get("kills", ())), job.get("landed", 0), job.get("reached", "-"), says(job)]
        for job in jobs
    ]
    return markdown(["what", "kills", "died of it", "iteration reached", "end"], rows), {}


# --- environments, cores, disks -----------------------------------------------------------------------------------


def replay(lab: Lab) -> list[Future[Job]]:
    return [lab.submit(f"replay {task}", lab.worker, "replay", task) for task in TASKS if lab.matches(task)]


def replayed(task: str) -> Job:
    """In a process of its own: cut a pool's life at several points, with and without resets, and go on elsewhere."""
    import jax
    import numpy as np

    from gpi.config import Config
    from gpi.envs.replay import Position
    from gpi.training.job import resolve
    from gpi.training.session import make_environments
    from gpi.training.trainer import Trainer

    def collecting(reset_each_batch: bool, seeds: int = 2) -> Trainer:
        """A trainer that can collect and never learns, and so need not compile how."""
        job = resolve(Config(task, "geppo", seeds=seeds, hidden=(8,), reset_each_batch=reset_each_batch))
        trainer = Trainer(job, make_environments(job), jax.local_devices()[:1])
        trainer.collector.use(trainer.collector.lower(trainer.learner.acting).compile())
        return trainer

    def leaves(tree: Any) -> list[bytes]:
        return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]

    same = cuts = 0
    with jax.enable_x64(True):
        for reset_each_batch in (True, False):
            first = collecting(reset_each_batch)
            for batch in range(max(CUTS) + 1):
                saved = first.snapshot() if batch in CUTS else None
                expected = leaves(first.collect())
                first._prepare()
                if saved is not None:
                    second = collecting(reset_each_batch)
                    cuts, same = cuts + 1, same + (second.restore(saved).all() and leaves(second.collect()) == expected)
        five, batches = collecting(False, seeds=5), -(-1_000_000 // 1024) + 2  # two of warm-up
        shape = (999, *five.collector.position.actions.shape[1:])
        actions, each = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32), np.ones(5, np.int64)
        lives = [(2 * batches + 1, 0), (batches * 1024 // 1001 + 1, 999)]  # the second: the longest episode to redo
        seconds = []
        for resets, calls in lives:
            began = time.perf_counter()
            five.collector.replay(Position(resets * each, calls * each, each, actions))
            seconds.append(round(time.perf_counter() - began, 3))
    ok = same == cuts and max(seconds) <= REPLAY_BAR
    note = f"{same}/{cuts} identical; 1M steps in {seconds[0]:.2f} s, without resets {seconds[1]:.2f} s"
    return {"task": task, "ok": ok, "note": note, "same": same, "cuts": cuts, "seconds": seconds}


def report_replay(jobs: list[Job]) -> tuple[str, Job]:
    rows = [[job["task"], f"{job['same']}/{job['cuts']}", *(f"{x:.2f}" for x in job["seconds"])]
            for job in jobs if "task" in job]  # fmt: skip
    worst = [max((job["seconds"][i] for job in jobs if "seconds" in job), default=None) for i in range(2)]
    header = ["task", "next batch identical", "1M steps replayed in s", "without resets"]
    if rows:
        rows.append(["worst", "", *(f"{x:.2f}" for x in worst)])
    return markdown(header, rows), {"worst_seconds": worst[0], "worst_seconds_without_resets": worst[1]}


def disk(lab: Lab) -> list[Future[Job]]:
    lab.reference("geppo", "cartpole-balance", 1)
    counts = {name: passages(name, ITERATIONS) for name in FAILPOINTS if lab.matches(name)}
    return [
        lab.submit(f"disk {name}:{count}", full, lab, name, count)
        for name, last in counts.items()
        for count in sorted({(last + 1) // 2, last, *[1] * name.startswith(("file.", "write."))})  # 1: the settings
    ]


def full(lab: Lab, name: str, count: int) -> Job:
    """A run that finds the disk full once."""
    start, directory = settings("geppo", "cartpole-balance", 1), lab.fresh("disk", f"{name}-{count}")
    whole = lab.reference("geppo", "cartpole-balance", 1).result()
    aside = name == "ckpt.after_aside"
    if aside:
        spoiled(whole["directory"], directory)
    code, _, error = lab.gpi(*again(directory, start), failpoint=f"{name}:{count}:enospc")
    found: Job = {"point": name, "count": count, "code": code, "kills": [f"exit {code}"], "ok": False}
    if code not in (0, 5):
        return found | {"note": f"exit {code}: {error}"}
    if gone := "" if aside else lost(directory, 1, missed=1):
        return found | {"note": f"exit {code}: {gone}"}
    return compared(lab, found, directory, start, whole["files"])


def report_disk(jobs: list[Job]) -> tuple[str, Job]:
    points = list(dict.fromkeys(job["point"] for job in jobs if "point" in job))
    rows = []
    for point in points:
        mine = [job for job in jobs if job.get("point") == point]
        codes = ", ".join(f"{job['code']} at {job['count']}" for job in mine)
        rows.append([point, codes, f"{sum(job['ok'] for job in mine)}/{len(mine)}"])
    codes = Counter(str(job["code"]) for job in jobs if "code" in job)
    return markdown(["failpoint", "exit code at passage", "identical after resume"], rows), {"exit_codes": codes}


def cores(lab: Lab) -> list[Future[Job]]:
    if len(lab.cores) < 2:
        print("cores: skipped, this machine has one")
        return []
    return [lab.submit(f"cores {name}", visible, lab, name) for name in ALGORITHMS if lab.matches(name)]


def visible(lab: Lab, algorithm: str) -> Job:
    start, found = settings(algorithm, "cartpole-balance", 2), []
    for count in (1, 2):
        directory = lab.fresh("cores", f"{algorithm}-{count}")
        code, _, error = lab.gpi(*start, "--out", str(directory), cores=count)
        if code:
            return {"ok": False, "note": f"exit {code}: {error}"}
        seen = json.loads((directory / "config.json").read_text())["runtime"]["cores"]
        if seen != count:
            return {"ok": False, "note": f"{count} cores were to be visible, {seen} were"}
        found.append(fingerprint(directory))
    ok = found[0] == found[1]
    note = "1 and 2 cores identical" if ok else f"1 and 2 cores differ in {differing(*found)}"
    return {"algorithm": algorithm, "ok": ok, "note": note}


def report_plain(jobs: list[Job]) -> tuple[str, Job]:
    return markdown(["what", "result"], [[job["name"], says(job)] for job in jobs]), {}


# --- races and cost -----------------------------------------------------------------------------------------------

RACER = """
import sys
from pathlib import Path
from gpi.errors import LockedError
from gpi.rundir.lock import claim
print("ready", flush=True)
sys.stdin.readline()
try:
    with claim(Path(sys.argv[1])):
        (Path(sys.argv[1]) / "config.json").write_text("{}")
        print("won", flush=True)
        sys.stdin.readline()
except LockedError as error:
    print(error, flush=True)
"""


def raced(lab: Lab, number: int) -> Job:
    """Processes that wait at the line, and then claim one directory at once."""
    directory = lab.fresh("race", str(number))
    command = [sys.executable, "-c", RACER, str(directory)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    racers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, text=True, bufsize=1) for _ in range(RACERS)
    ]
    try:
        ready = [racer.stdout.readline() for racer in racers if racer.stdout]
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("go\n")
        printed = {racer.pid: racer.stdout.readline().strip() for racer in racers if racer.stdout}
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    winners = [pid for pid, line in printed.items() if line == "won"]
    told = sum("is in use by" in line for line in printed.values())
    named = sum(f"in use by process {winners[0]} on " in line for line in printed.values()) if winners else 0
    ok = ready == ["ready\n"] * RACERS and len(winners) == 1 and told == RACERS - 1
    shutil.rmtree(directory, ignore_errors=True)
    note = f"{len(winners)} won, {told} were told so, {named} by whom"
    return {"ok": ok, "note": note, "winners": len(winners), "told": told, "named": named}


def report_race(jobs: list[Job]) -> tuple[str, Job]:
    won = Counter(str(job.get("winners")) for job in jobs)
    told, named = sum(job.get("told", 0) for job in jobs), sum(job.get("named", 0) for job in jobs)
    header = ["races", "processes each", "exactly one winner", "losers told so", "and by whom"]
    return markdown(header, [[len(jobs), RACERS, won["1"], told, named]]), {"winners": won, "told": told}


def cost(directory: Path) -> Job:
    """In a process of its own: how long a run with the default settings spends in its checkpoints."""
    from gpi.config import Config
    from gpi.rundir.run import read_rows
    from gpi.training.session import Running, Session
    from gpi.training.train import train

    spent, save = [], Session._save

    def timed(self: Session, run: Running) -> None:
        began = time.perf_counter()
        save(self, run)
        spent.append(time.perf_counter() - began)

    config = Config("cheetah-run", "geppo", steps=COST_ITERATIONS * 1024)
    with patch.object(Session, "_save", timed):
        train(config, directory, quiet=True)
    rows = read_rows(directory / "timing.csv")
    seconds = sum(float(row["collect_seconds"]) + float(row["learn_seconds"]) for row in rows)
    size = sum(path.stat().st_size for path in checkpoint.saved(directory)[0].iterdir())
    share = sum(spent) / seconds
    note = f"{len(spent)} checkpoints of {size / 1e6:.2f} MB: {sum(spent):.2f} s of {seconds:.1f} s, {share:.2%}"
    return {
        "ok": share < COST_BAR, "note": note, "share": share, "save_seconds": spent, "seconds": seconds,
        "iterations": len(rows), "bytes": size, "seeds": config.seeds, "checkpoint_every": config.checkpoint_every,
    }  # fmt: skip


# --- everything ---------------------------------------------------------------------------------------------------


def markdown(header: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table whose first column is words."""
    rule = ["---"] + ["--:"] * (len(header) - 1)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [header, rule, *rows])


def says(job: Job) -> str:
    return job["note"] if job["ok"] else f"FAILED: {job['note']}"


def finish(part: str, futures: list[Future[Job]], lab: Lab, record: Path) -> bool:
    """Wait for a part, print its table and record it."""
    report = {
        "kills": report_kills, "chain": report_chain, "replay": report_replay, "disk": report_disk, "race": report_race
    }.get(part, report_plain)  # fmt: skip
    jobs = [future.result() for future in futures]
    if not jobs:
        return True
    table, numbers = report(jobs)
    good, failed = sum(job["ok"] for job in jobs), [job for job in jobs if not job["ok"]]
    print(f"\n## {part}: {good}/{len(jobs)}\n\n{table}\n")
    for job in failed:
        print(f"FAILED {job['name']}: {job['note']}")
    line: Job = {"part": part, "ok": good, "of": len(jobs), **numbers, "failed": failed}
    if part in ("chain", "cost", "replay"):
        line["jobs"] = jobs
    line |= {"date": datetime.now().astimezone().isoformat(timespec="seconds"), "cores": len(lab.cores)}
    line |= {"at_once": lab.jobs, "seconds": round(time.perf_counter() - lab.began), "versions": runtime.versions()}
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return not failed


def run(chosen: argparse.Namespace) -> bool:
    """All parts; those that can share the machine do, and each is reported as soon as it is done."""
    lab = Lab(chosen.out.resolve(), chosen.jobs, chosen.match)
    lab.out.mkdir(parents=True, exist_ok=True)
    seeds = list(range(chosen.seed, chosen.seed + chosen.trials)) if chosen.trial_seed is None else [chosen.trial_seed]
    starts: dict[str, Callable[[], list[Future[Job]]]] = {
        "chain": lambda: chain(lab, chosen.chain),  # first, for it is one long job
        "kills": lambda: kills(lab, seeds),
        "replay": lambda: replay(lab),
        "disk": lambda: disk(lab),
        "cores": lambda: cores(lab),
    }
    good = []
    try:
        futures = {part: start() for part, start in starts.items() if part in chosen.only}
        for part in PARTS:
            if part in futures:
                good.append(finish(part, futures[part], lab, chosen.record))
        if lab.references:
            bad = [found["name"] for found in map(Future.result, lab.references.values()) if not found["ok"]]
            print(f"undisturbed runs, twice each: {len(lab.references) - len(bad)}/{len(lab.references)} identical")
            good.append(not bad)
        if "race" in chosen.only:
            few = Lab(lab.out, max(1, lab.jobs // 4), "")  # eight processes each, that do little
            good.append(finish("race", [few.submit(f"race {i}", raced, few, i) for i in range(chosen.races)],
                               few, chosen.record))  # fmt: skip
            few.pool.shutdown()
        if "cost" in chosen.only:
            alone = lab.submit("cost", lambda: lab.worker("cost", str(lab.fresh("cost")), pinned=False))
            good.append(finish("cost", [alone], lab, chosen.record))
    finally:
        lab.pool.shutdown(cancel_futures=True)
    print(f"{'all as it must be' if all(good) else 'SOMETHING FAILED'}, after {time.perf_counter() - lab.began:.0f} s")
    return all(good)


def main() -> None:
    """Choose, run, report."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    options.add_argument("--jobs", type=int, default=runtime.cores(), help="processes side by side; one per core")
    options.add_argument("--trials", type=int, default=200, help="trials of kills")
    options.add_argument("--seed", type=int, default=0, help="seed of the first trial; the next have the next")
    options.add_argument("--trial-seed", type=int, help="only the trial of kills with this seed")
    options.add_argument("--chain", type=int, default=30, help="kills of chain")
    options.add_argument("--races", type=int, default=100, help="races of race")
    options.add_argument("--match", default="", help="only tasks, algorithms and failpoints whose name contains this")
    options.add_argument("--out", type=Path, default=Path("runs/reliability"), help="directory of the runs")
    options.add_argument("--record", type=Path, default=Path(__file__).with_suffix(".jsonl"), help="where lines go")
    options.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.worker:
        part, what = chosen.worker
        return print(json.dumps(replayed(what) if part == "replay" else cost(Path(what))))
    if chosen.trial_seed is not None:
        chosen.only = ("kills",)
    sys.exit(not run(chosen))


if __name__ == "__main__":
    main()
