"""The Ray engine: the same jobs as the local one, as tasks of a Ray cluster that run our command as a process.

Ray only places tasks. A job lost with a worker or a node is noticed here and submitted again, from its last
checkpoint; the directory alone says how far a job is, and its locks who runs it (see `ray_worker`).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from gpi.errors import GpiError, LockedError, UsageError
from gpi.standalone import Facts
from gpi.study.definition import Job, Study, load_study
from gpi.study.directory import Failure, Layout, StudyDir, last_timing, read_failure
from gpi.study.engine import ray_worker
from gpi.study.engine.begin import Options, begin, chosen, keep_source, require_disk
from gpi.study.engine.gpus import sharing
from gpi.study.engine.jobs import BUSY, FULL, RETRIES, outcome, words_of
from gpi.study.engine.locks import take
from gpi.study.engine.loop import final_return, set_aside
from gpi.study.engine.machine_layout import places
from gpi.study.engine.queue import Waiting
from gpi.study.engine.ray_cluster import (
    SMALL,
    Node,
    Where,
    ask,
    first_line,
    gpu_share,
    nodes_of,
    other_cluster,
    own_cluster,
    require_alike,
    require_usable,
    slots,
)
from gpi.study.engine.runner import Ended, measured, safely_done
from gpi.study.engine.runners import RunnerFile, read_runners, runner_file
from gpi.study.engine.screen import Screen, Standing
from gpi.study.engine.stopping import Stop, stoppable
from gpi.study.gathered import covered
from gpi.terminal import clock, plural

TICK, LOOK = 0.2, 2.0  # seconds between looks at tasks, and at the directory and the nodes
LOCK = "ray.lock"
LOST = "lost with its worker or node"
DIED = "Ray's node on this machine has died, its jobs save and end"
SAVING = ray_worker.SAVING + 30.0  # seconds to wait for a node that does not answer


def run_on_ray(
    source: str | Path, out: str | Path, options: Options, where: Where, *, stream: TextIO | None = None,
    quiet: bool = False,
) -> Ended:  # fmt: skip
    """Run the jobs of a study on a Ray cluster; return how that ended. Call it in the main thread."""
    if options.whole_jobs:
        raise UsageError("--whole-jobs needs the speed of one machine; leave it out with --engine ray")
    wanted, out = load_study(source, options.environments), Path(out).absolute()
    with stoppable(options.seconds) as stop, ExitStack() as stack:
        ray = stack.enter_context(other_cluster(where)) if where.address else None
        study = begin_there(ray, wanted, out, options) if ray else begin(wanted, out, options)
        keep_source(study, source)
        jobs = chosen(study, wanted, options)
        finished = covered(study, options.environments) | {job.name for job in jobs if safely_done(study, job)}
        todo = [job for job in jobs if job.name not in finished]
        require_disk(study, todo)
        stack.enter_context(only_driver(study.path))
        file = stack.enter_context(runner_file(study.path))
        screen = stack.enter_context(Screen(stream, quiet=quiet))
        if not ray:
            here = places(study.layout, todo, options.jobs)
            for note in [*wanted.notes, here.note, stack.enter_context(sharing()) if here.gpus else ""]:
                screen.say(f"note: {note}") if note else None
            ray = stack.enter_context(own_cluster(here.number * study.layout.cores, len(here.gpus)))
        heed_signals(stop)
        nodes = require_nodes(ray, study.layout, file, screen, token=bool(where.address) and not where.trusted)
        engine = RayEngine(ray, study, todo, len(jobs) - len(todo), options, screen, own=not where.address)
        engine.announce(nodes, len(jobs))
        began = time.monotonic()
        engine.run(stop)
        return Ended(
            study.path, len(jobs), engine.done, engine.aside, 0, engine.steps, time.monotonic() - began,
            stop.signals[0] if stop.signals else None, stop.time_is_up, engine.killed, DIED if engine.died else "",
        )  # fmt: skip


def begin_there(ray: Any, wanted: Study, out: Path, options: Options) -> StudyDir:
    """Begin a study with the layout that a node of the cluster decides, one with a GPU if there is one."""

    def decide(jobs: Sequence[Job], cores: int | None) -> Layout:
        node = max(nodes_of(ray), key=lambda node: (node.gpus > 0, node.cpus))
        configs = [dataclasses.asdict(job.config) for job in jobs]
        text = json.dumps({"configs": configs, "cores": cores, "most": cores or max(1, node.cpus)})
        found = ask(ray, ray_worker.decide, node, text, SMALL if node.gpus else 0.0)
        if "error" in found:
            raise UsageError(f"node {node.address}: {found['error']}")
        return Layout(**found["layout"])

    return begin(wanted, out, options, decide=decide, require=lambda layout: None)


@contextmanager
def only_driver(directory: Path) -> Iterator[None]:
    """Let one driver at a time number the attempts of a study: two would fence off each other's jobs."""
    fd = take(directory / LOCK)
    if fd is None:
        rule = "wait until it ends, or run more jobs beside it with --engine local"
        raise LockedError(f"{directory} is in use by another process with --engine ray; {rule}")
    try:
        yield
    finally:
        os.close(fd)


def heed_signals(stop: Stop) -> None:
    """Take back the signals that Ray has taken."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def require_nodes(ray: Any, layout: Layout, file: RunnerFile, screen: Screen, *, token: bool) -> list[Node]:
    """Return the nodes that can run jobs; raise UsageError if one of them cannot run the study's."""
    nodes = require_usable(nodes_of(ray), layout)
    secret = os.urandom(8).hex()
    file.write({"running": [], "looked_for": secret})
    for note in require_alike(ray, nodes, layout, {"file": str(file.path), "content": secret}, token=token):
        screen.say(f"note: {note}")
    return nodes


class Flight(NamedTuple):
    """A job that was given to Ray, and waits there or runs."""

    waiting: Waiting
    attempt: int
    base: int
    """Steps of each seed that it continued from."""
    began: float


class RayEngine:
    """The driver of a cluster: which jobs wait, which Ray has, and what followed from their ends."""

    def __init__(
        self, ray: Any, study: StudyDir, todo: Sequence[Job], done: int, options: Options, screen: Screen, *, own: bool
    ):  # fmt: skip
        """Take the jobs to do; nothing starts yet. No node ever joins a private cluster (`own`)."""
        self.ray, self.study, self.options, self.screen, self.own = ray, study, options, screen, own
        self.died, self.killed = False, 0
        self.task = ray.remote(max_retries=0)(ray_worker.run_job)  # each attempt must have a unique number
        self.speeds = measured(study, study.jobs)
        entries = [self._entry(job) for job in todo]
        self.waiting = sorted(entries, key=lambda one: -self.speeds.remaining(one.job, one.best))
        self.flights: dict[Any, Flight] = {}
        self.done, self.aside, self.steps = done, dict[str, Failure](), 0
        self.looked, self.slots, self.share = -math.inf, 0, 0.0
        self.places: dict[tuple[str, object], str] = {}
        """Nodes by name of a job and number of its attempt."""
        self.mark: tuple[float, int] | None = None
        self.rate = math.nan
        self.said: set[str] = set()

    def _entry(self, job: Job) -> Waiting:
        """Return a job as one that waits; one that was set aside before gets one attempt."""
        noted = 0
        with suppress(GpiError, OSError):
            failure = read_failure(self.study, job)
            noted = max(1, failure.attempts) if failure else 0
        return Waiting(job, "", last_timing(self.study.run(job))[0], failures=RETRIES if noted else 0, attempts=noted)

    def announce(self, nodes: Sequence[Node], jobs: int) -> None:
        """Show how many jobs are about to run, and where."""
        share = gpu_share(nodes, self.study.layout)
        layout, room = self.study.layout, slots(nodes, self.study.layout, share)
        each = f"{plural(layout.cores, 'core')}{f' and {share:g} of a GPU' * (share > 0)} each"
        self.screen.say(
            f"{self.study.name}: {jobs} jobs, {self.done} done; Ray {self.ray.__version__} with "
            f"{plural(len(nodes), 'node')}: {room} side by side, {each}; writing {self.study.path}"
        )

    def run(self, stop: Stop) -> None:
        """Run jobs until none is left, or `stop` says so; then no process of them is left."""
        try:
            while (self.waiting or self.flights) and not (stop.asked or self.died):
                self._look()
                self._fill()
                self._collect(TICK)
            if stop.asked and self.flights:
                self.screen.say(f"{stop.why}: saving {plural(len(self.flights), 'job')}")
        finally:
            self._end_all(stop)

    # --- starting ---------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give Ray as many jobs as it has room for, those that were lost and the longest first."""
        room, now = min(self.slots, self.options.jobs or self.slots), time.monotonic()
        for one in [one for one in self.waiting if one.ready <= now][: max(0, room - len(self.flights))]:
            try:
                attempt = ray_worker.next_attempt(self.study, one.job)
            except OSError as error:
                self._once(one.job.name, f"wait   {one.job.name}: {error.strerror}")
                one.ready = now + 60.0
                continue
            order = json.dumps({
                "directory": str(self.study.path), "job": one.job.name, "attempt": attempt,
                "environments": dict(self.options.environments),
            })  # fmt: skip
            layout = self.study.layout
            task = self.task.options(num_cpus=layout.cores, num_gpus=self.share, name=one.job.name)
            one.attempts += 1
            self.flights[task.remote(order)] = Flight(one, attempt, last_timing(self.study.run(one.job))[0], now)
            self.waiting.remove(one)

    # --- ends -------------------------------------------------------------------------------------------------------

    def _collect(self, seconds: float) -> None:
        """Wait a moment for tasks that end, and do what follows from their ends."""
        if not self.flights:
            time.sleep(seconds)
            return
        ready, _ = self.ray.wait(list(self.flights), num_returns=1, timeout=seconds)
        for ref in ready:
            flight = self.flights.pop(ref)
            self._end(flight, self._answer(ref))

    def _answer(self, ref: Any) -> Facts:
        """Return what a task answered; a worker or node that was lost is as good as killed."""
        errors = importlib.import_module("ray.exceptions")
        try:
            return json.loads(self.ray.get(ref))
        except errors.RayTaskError as error:
            return {"code": 1, "line": first_line(error.cause or error)}
        except errors.RayError as error:
            return {"code": -int(signal.SIGKILL), "line": f"{LOST}: {first_line(error)}"}

    def _end(self, flight: Flight, answer: Facts) -> None:
        """Do what follows from the end of a task."""
        one, job, code, line = flight.waiting, flight.waiting.job, int(answer["code"]), str(answer["line"])
        steps, seconds = last_timing(self.study.run(job))
        self.steps += job.config.seeds * max(0, steps - flight.base)
        self.speeds.note(job, steps, seconds)
        if steps > one.best:
            one.best, one.failures = steps, 0
        result = outcome(code, complete=ray_worker.complete(self.study, job), failures=one.failures)
        one.failures += result.counts
        if result.verdict == "done":
            self.done += 1
            with suppress(OSError):
                self.study.failure(job).unlink(missing_ok=True)
            took = clock(time.monotonic() - flight.began)
            self.screen.say(f"done   {job.name}: {final_return(self.study.run(job))}, {took}")
        elif result.verdict == "aside":
            self.aside[job.name] = Failure(line or words_of(code), code, one.attempts)
            set_aside(self.study, job, self.aside[job.name], self.screen)
        else:
            one.ready = time.monotonic() + result.wait
            self.waiting.insert(0, one)
            misplaced = answer.get("misplaced", False)
            patient = not misplaced and one.patient(code)
            if not patient and (result.counts or code in (BUSY, FULL)):
                what = line if misplaced else f"{job.name}: {line or words_of(code)}"
                self._once(what, f"again  {what}")

    def _once(self, what: str, line: str) -> None:
        """Say a line, but not again and again."""
        if what not in self.said:
            self.said.add(what)
            self.screen.say(line)

    def _end_all(self, stop: Stop) -> None:
        """Let every job that Ray has save and end: a higher number of attempt is what its worker heeds."""
        for flight in self.flights.values():
            with suppress(OSError):
                ray_worker.next_attempt(self.study, flight.waiting.job)
        limit = time.monotonic() + SAVING
        while self.flights and time.monotonic() < limit and not (stop.now or self.died):
            self._collect(TICK)
        self.killed = len(self.flights)
        for ref in self.flights if not self.died else ():  # nodes that do not answer; their jobs end with the workers
            self.ray.cancel(ref, force=True)

    # --- looking ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look now and then how many nodes there are, and how far jobs are."""
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        nodes = nodes_of(self.ray)
        self.share = gpu_share(nodes, self.study.layout) or self.share
        self.slots = slots(nodes, self.study.layout, self.share)
        self.died = self.own and not nodes
        if not self.slots and not self.died:
            self._once("nodes", "wait   no node is left that can run a job; the study continues when one joins")
        runners = read_runners(self.study.path)
        self._give_up({node.id for node in nodes}, runners)
        self.screen.show(self.standing(runners))

    def _give_up(self, alive: set[str], runners: Sequence[Facts]) -> None:
        """Take back jobs of nodes that Ray has given up: it may wait for minutes until a connection breaks."""
        for runner in runners:
            for one in runner.get("running", []):
                self.places[str(one.get("job")), one.get("attempt")] = str(runner.get("node", ""))
        for ref, flight in list(self.flights.items()):
            node = self.places.get((flight.waiting.job.name, flight.attempt))
            if node and node not in alive:
                del self.flights[ref]
                self._end(flight, {"code": -int(signal.SIGKILL), "line": LOST})

    def standing(self, runners: Sequence[Facts]) -> Standing:
        """Return where the study stands: jobs that Ray has and no worker has begun are waiting too."""
        alive = {str(one.get("job")) for runner in runners for one in runner.get("running", [])}
        running = [flight for flight in self.flights.values() if flight.waiting.job.name in alive]
        shares, gained, left = [], self.steps, [self.speeds.remaining(one.job, one.best) for one in self.waiting]
        for flight in running:
            job = flight.waiting.job
            steps, seconds = last_timing(self.study.run(job))
            self.speeds.note(job, steps, seconds)
            shares.append((job.name, min(1.0, steps / job.config.steps)))
            gained += job.config.seeds * max(0, steps - flight.base)
            left.append(self.speeds.remaining(job, steps))
        now = time.monotonic()
        if self.mark and now > self.mark[0]:
            self.rate = (gained - self.mark[1]) / (now - self.mark[0])
        self.mark = self.mark or (now, gained)
        known = bool(self.speeds.ratios and self.slots)
        return Standing(
            self.done, shares, len(self.waiting) + len(self.flights) - len(running), len(self.aside), 0, self.rate,
            max([sum(left) / self.slots, *left], default=0.0) if known else math.nan,
        )  # fmt: skip
