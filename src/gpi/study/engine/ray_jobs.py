"""Jobs as tasks of a Ray cluster: what runs on its nodes, and the executor that places tasks there.

A task runs the same process as on this machine, and does nothing else: whose a job is, when it is tried again and when
it is set aside, the runner decides, which has the lock of its file in `claims/`. That file has the number of the last
attempt, which is how a task is told to end: it lets its job save when it sees a higher number. So does one on a node
that was given up for lost; until it has, the lock of the run directory keeps the next attempt waiting, and two never
write. Text goes in and comes out of a task.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from gpi.config import config_of
from gpi.errors import LockedError, UsageError
from gpi.rundir.lock import take
from gpi.standalone import Facts
from gpi.study.definition import Job
from gpi.study.directory import Layout, StudyDir, is_done, open_study
from gpi.study.engine import machine_layout
from gpi.study.engine.begin import Runner
from gpi.study.engine.jobs import BUSY, Process
from gpi.study.engine.locks import lives
from gpi.study.engine.ray_cluster import (
    Node,
    Where,
    ask,
    first_line,
    gpu_share,
    nodes_of,
    on_node,
    other_cluster,
    own_cluster,
    require_usable,
    slots,
)
from gpi.terminal import plural

TICK, LOOK = 0.2, 2.0  # seconds between looks of a task at its process, and of the runner at the nodes
DIGITS = 12  # of an attempt's number
KILLED, ENDED = -int(signal.SIGKILL), 128 + signal.SIGTERM
SMALL = 0.001  # of a GPU: so little that it is always free
LOCK = "ray.lock"
LOST = "lost with its worker or node"
DIED = "Ray's node on this machine has died, its jobs save and end"


# --- on a node ------------------------------------------------------------------------------------------------------


def look_around(text: str) -> str:
    """Return what this node is like, and whether it sees a file of the study and that another node has locked it."""
    wanted = json.loads(text)
    path = Path(wanted["file"])
    try:
        sees = wanted["content"] in path.read_text(errors="replace")
        locked = sees and lives(path)
    except OSError:
        sees = locked = False
    return json.dumps({
        "host": platform.node(), "versions": machine_layout.versions_here(), "sees": sees, "locked": locked,
        "nice": os.nice(0), "authentication": os.environ.get("RAY_AUTH_MODE", ""),
    })  # fmt: skip


def decide(text: str) -> str:
    """Return the layout of a study that begins on a node like this one, or why there is none."""
    wanted = json.loads(text)
    jobs = [Job("", "", config_of(config)) for config in wanted["configs"]]
    try:
        layout = machine_layout.decide(jobs, wanted["cores"])
        if layout.cores > wanted["most"]:  # Ray was told to use only a part of the machine
            layout = machine_layout.decide(jobs, wanted["most"])
        return json.dumps({"layout": dataclasses.asdict(layout)})
    except UsageError as error:
        return json.dumps({"error": str(error)})


def run_job(text: str) -> str:
    """Begin or continue a job; return how its process ended, or why this node cannot run any."""
    order = json.loads(text)
    study = open_study(Path(order["directory"]))
    job = next(job for job in study.jobs if job.name == order["job"])
    try:
        machine_layout.require(study.layout)
    except UsageError as error:
        return json.dumps({"code": BUSY, "unfit": str(error)})
    if is_done(study, job) or attempt_of(study, job) > order["attempt"]:
        return json.dumps({"code": ENDED})
    process = Process(study, job, order["environments"])
    while (code := process.poll()) is None:
        if attempt_of(study, job) > order["attempt"]:
            process.stop()
        time.sleep(TICK)
    return json.dumps({"code": code})


def attempt_of(study: StudyDir, job: Job) -> int:
    """Return the number of the last attempt to run a job; it is read anew, as another host may have written it."""
    try:
        text = study.claim(job).read_text(errors="replace").strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def next_attempt(study: StudyDir, job: Job) -> int:
    """Number a new attempt to run a job, which ends all that were before."""
    path, number = study.claim(job), attempt_of(study, job) + 1
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:  # in place and never shorter: the lock is on this very file
        os.pwrite(fd, f"{number:0{DIGITS}d}\n".encode(), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    return number


# --- where the runner is --------------------------------------------------------------------------------------------


class OnRay:
    """The executor of a Ray cluster: jobs are its tasks, its nodes the places that they are dealt out to."""

    def __init__(self, where: Where, stack: ExitStack):
        """Connect to a cluster, or leave one on this machine for later; either is left at the end of `stack`."""
        self.where, self.stack = where, stack
        self.ray: Any = stack.enter_context(other_cluster(where)) if where.address else None
        self.nodes: dict[str, Node] = {}
        self.unfit: set[str] = set()
        self.room, self.looked, self.lost = Counter[str](), -math.inf, ""

    def decide(self, jobs: Sequence[Job], wanted: int | None = None) -> Layout:
        """Return the layout that a node decides, one with a GPU if there is one."""
        if self.ray is None:
            return machine_layout.decide(jobs, wanted)
        node = max(nodes_of(self.ray), key=lambda node: (node.gpus > 0, node.cpus))
        configs = [dataclasses.asdict(job.config) for job in jobs]
        text = json.dumps({"configs": configs, "cores": wanted, "most": wanted or max(1, node.cpus)})
        found = ask(self.ray, decide, node, text, SMALL if node.gpus else 0.0)
        if "error" in found:
            raise UsageError(f"node {node.address}: {found['error']}")
        return Layout(**found["layout"])

    def require(self, layout: Layout) -> None:
        """Ask this machine, unless `get_ready` asks the nodes of a cluster."""
        if self.ray is None:
            machine_layout.require(layout)

    def get_ready(self, runner: Runner) -> tuple[str, list[str]]:
        """Start Ray, or ask all nodes of a cluster whether they are alike; return where jobs run, and notes."""
        self.runner, layout = runner, runner.study.layout
        self.order: Facts = {
            "directory": str(runner.study.path.absolute()), "environments": dict(runner.options.environments),
        }  # fmt: skip
        self.keep_out_earlier_versions(runner.study.path)
        notes = []
        if self.ray is None:
            here = machine_layout.places(layout, runner.todo, runner.options.jobs)
            notes = [here.note, self.stack.enter_context(machine_layout.sharing()) if here.gpus else ""]
            self.ray = self.stack.enter_context(own_cluster(here.number * layout.cores, len(here.gpus)))
        nodes = require_usable(nodes_of(self.ray), layout)
        notes += [note for node in nodes for note in self.notes_about(node)]
        share = gpu_share(nodes, layout)
        number = slots(nodes, layout, share).total()
        each = f"{plural(layout.cores, 'core')}{f' and {share:g} of a GPU' * (share > 0)} each"
        return f"Ray {self.ray.__version__} with {plural(len(nodes), 'node')}: {number} side by side, {each}", notes

    def keep_out_earlier_versions(self, study: Path) -> None:
        """Raise LockedError if an earlier version uses a study on Ray: it numbers attempts at jobs of others too."""
        (study / LOCK).touch()
        lock = take(study / LOCK, shared=True)
        if lock is None:
            raise LockedError(f"{study} is in use by an earlier version of gpi with --engine ray; wait until it ends")
        self.stack.callback(os.close, lock)

    def notes_about(self, node: Node) -> list[str]:
        """Raise UsageError unless a node has the study's versions and sees its directory and locks; return notes."""
        versions, secret = self.runner.study.layout.versions, os.urandom(8).hex()
        self.runner.file.write({"running": [], "looked_for": secret})
        path = self.runner.file.path.absolute()
        found = ask(self.ray, look_around, node, json.dumps({"file": str(path), "content": secret}))
        name = f"node {node.address} ({found['host']})"
        other = [f"{what} {found['versions'].get(what)}, the study has {version}"
                 for what, version in versions.items() if found["versions"].get(what) != version]  # fmt: skip
        open_to_all = self.where.address and not self.where.trusted and found["authentication"].lower() != "token"
        if other:
            raise UsageError(f"{name} has {'; '.join(other)}: results would change; install the same versions there")
        if not found["sees"]:
            raise UsageError(f"{name} does not see {path}; --out must be a directory that all nodes share")
        if not found["locked"]:
            raise UsageError(f"{name} does not see locks on {path}, so two could run one job; use --shard without Ray")
        if open_to_all:
            rule = "was started without RAY_AUTH_MODE=token, so anyone who reaches it can run code there"
            raise UsageError(f"{name} {rule}; start it with a token, or add --i-trust-this-network")
        low = found["nice"] > os.nice(0)
        return [f"{name} runs jobs at low priority; start it with RAY_worker_niceness=0"] if low else []

    def places(self) -> Counter[str]:
        """Return how many jobs each node has room for; look now and then which nodes there are."""
        if time.monotonic() - self.looked >= LOOK:
            self.looked = time.monotonic()
            self.nodes = {node.id: node for node in nodes_of(self.ray)}
            fit = [node for node in self.nodes.values() if node.id not in self.unfit]
            self.share = gpu_share(fit, self.runner.study.layout)
            room = slots(fit, self.runner.study.layout, self.share)
            dealt = (node for turn in range(max(room.values(), default=0)) for node in room if room[node] > turn)
            self.room = Counter(islice(dealt, self.runner.options.jobs))
            if not self.nodes and not self.where.address:  # no node ever joins a private cluster
                self.lost = DIED
        return self.room

    def start(self, job: Job, place: str) -> Flight:
        """Give a job to a node."""
        study, node = self.runner.study, self.nodes[place]
        attempt = next_attempt(study, job)
        options = {"num_cpus": study.layout.cores, "num_gpus": self.share, "max_retries": 0, "name": job.name}
        text = json.dumps({**self.order, "job": job.name, "attempt": attempt})
        return Flight(self, job, node, on_node(self.ray, run_job, node, **options).remote(text))


class Flight:
    """A job that was given to a node."""

    def __init__(self, cluster: OnRay, job: Job, node: Node, ref: Any):
        """Take what Ray calls it."""
        self.cluster, self.job, self.node, self.ref = cluster, job, node, ref
        self.facts: Facts = {"node": node.address}
        self.why, self.asked, self.killed = "", False, False

    def poll(self) -> int | None:
        """Return how its process ended; one that was lost with its worker or node is as good as killed.

        A node that Ray has given up is not waited for: it may take minutes until a connection breaks.
        """
        ray = self.cluster.ray
        if self.killed or self.node.id not in self.cluster.nodes:
            self.why = LOST
            return KILLED
        if not ray.wait([self.ref], timeout=0)[0]:
            return None
        try:
            answer = json.loads(ray.get(self.ref))
        except ray.exceptions.RayTaskError as error:
            self.why = first_line(error.cause or error)
            return 1
        except ray.exceptions.RayError as error:
            self.why = f"{LOST}: {first_line(error)}"
            return KILLED
        if "unfit" in answer:
            self.cluster.unfit.add(self.node.id)
            self.why = f"node {self.node.address} gets no more jobs: {answer['unfit']}"
        return int(answer["code"])

    def stop(self, *, now: bool = False) -> None:
        """Let its process save and end, by a higher number of attempt; or leave it: it ends with its worker."""
        if not self.asked:
            self.asked = True
            with suppress(OSError):
                next_attempt(self.cluster.runner.study, self.job)
        if now and not self.killed:
            self.killed = True
            self.cluster.ray.cancel(self.ref, force=True)
