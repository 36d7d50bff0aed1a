"""Training: collect, learn, collect, learn; each iteration is Algorithm 2 in two compiled programs.

The collector's program steps the pool on a CPU device. The learner's does the rest. They are two programs because
the pool's address is compiled into the first, so that only the second, which is the slow one to compile, can be kept
for the next start; and because a GPU cannot step the pool.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpi.core.agent import Metrics
from gpi.core.audit import Audit
from gpi.core.sample import Rollout
from gpi.envs.pool import CompiledPool, HostPool
from gpi.envs.replay import Position, actions_limit
from gpi.errors import EnvironmentFault
from gpi.files import ArraySpec
from gpi.rundir.policies import in_force
from gpi.standalone import Facts
from gpi.training.collect import Collector, CompiledCollector, HostCollector, Shape, batch_shape
from gpi.training.devices import Device
from gpi.training.job import Job
from gpi.training.keeping import Keeper, Kept
from gpi.training.learner import Learner, Reports

RENAMED = {"state/learned/": "state/",
           "state/agent/value/params/net/": "state/agent/value/params/",
           "state/agent/value/first/net/": "state/agent/value/first/",
           "state/agent/value/second/net/": "state/agent/value/second/"}  # fmt: skip
"""Fields whose names in checkpoints differ from those in the code: array names are a file format."""
LATER = re.compile(r"(?P<normaliser>.*/normaliser/)in_force/.*|state/buffer/raw")
"""Arrays that checkpoints of earlier versions lack."""


class Feed(NamedTuple):
    """The last observations of the environments, as a checkpoint holds them."""

    obs: Any  # [N, O]
    ended: np.ndarray  # [N]


class Iteration(NamedTuple):
    """The results of one iteration on the host, as arrays with a leading axis P."""

    number: int
    raw: Rollout  # the new samples, raw
    metrics: Metrics
    audit: Audit
    fault: np.ndarray  # for each member, 0 or 1 + the stage that froze it
    collect_seconds: float
    learn_seconds: float
    kept: Kept | None = None  # if `Job.keeps`


class Trainer:
    """A population in its environments, stepping through iterations."""

    def __init__(self, job: Job, pool: CompiledPool | HostPool, devices: list[Device]):
        """Lay out the population over `devices`; it cannot train before it is compiled."""
        self.started = time.perf_counter()
        config = job.config
        shape = batch_shape(
            config.seeds, config.num_envs, job.plan.steps // config.num_envs, pool.spec.horizon,
            reset_each_batch=config.reset_each_batch,
        )  # fmt: skip
        self.job, self.spec = job, pool.spec
        self.learner = Learner(job, pool.spec, shape, devices)
        self.keeper = Keeper(job, self.learner) if job.keeps else None
        self.collector = self._collector(pool, shape)
        self.batches = 0  # collected, warm-up included
        self.done = 0  # iterations
        self.taken = np.zeros(config.seeds, np.int64)  # steps of each member, warm-up not included

    def _collector(self, pool: Any, shape: Shape) -> Collector:
        kind = CompiledCollector if self.job.task.compiled else HostCollector
        return kind(pool, shape, self.learner.population, keep_actions=not self.job.config.reset_each_batch)

    def compile(self) -> None:
        """Compile every program once, side by side, ahead of the run: collect, learn and observe."""
        lowered = [self.collector.lower(self.learner.acting), *self.learner.lower()]
        lowered += self.keeper.lower() if self.keeper else []
        with ThreadPoolExecutor() as compilers:
            collecting, learning, observing, *keeping = compilers.map(lambda program: program.compile(), lowered)
        self.collector.use(collecting)
        self.learner.use(learning, observing)
        if self.keeper:
            self.keeper.use(*keeping)
        self.compile_seconds = time.perf_counter() - self.started

    def collect(self) -> Rollout:
        """Collect the next batch of every member."""
        raw = self.collector.collect(self.learner.acting, self.batches)
        self.batches += 1
        return raw

    def _prepare(self) -> None:
        """Prepare the environments for the next batch."""
        if self.job.config.reset_each_batch:
            self.collector.reset()

    def warm_up(self) -> list[Rollout]:
        """Start the normalisers with B batches of n, or one of B n on-policy, and return them; they count no steps."""
        batches = []
        for _ in range(self.job.warm_up_batches):
            raw = self.collect()
            self.learner.observe(raw)
            if self.keeper:
                self.keeper.begin(raw)
            self._prepare()
            batches.append(jax.tree.map(np.asarray, raw))
        return batches

    def iterations(self, steps: int) -> Iterator[Iteration]:
        """Collect and learn, from the current state, until every agent has taken `steps` steps."""
        while self.taken.min() < steps:
            start = time.perf_counter()
            raw = self.collect()
            collected = time.perf_counter()
            if self.keeper:
                self.keeper.before_learning(raw, self.taken)
            pending = self.learner.learn(raw, self.batches - 1)
            broken = None
            try:
                self._prepare()  # while the devices learn
            except EnvironmentFault as error:  # this iteration is complete; only the next cannot begin
                broken = error
            reports = self.learner.fetch(*pending)
            kept = self.keeper.after_learning(reports.fault) if self.keeper else None
            seconds = collected - start, time.perf_counter() - collected
            yield self._count(jax.tree.map(np.asarray, raw), reports, seconds, kept)
            if broken is not None:
                raise broken

    def _count(self, raw: Rollout, reports: Reports, seconds: tuple[float, float], kept: Kept | None) -> Iteration:
        self.done += 1
        self.taken = self.taken + raw.valid.sum(axis=(1, 2))
        return Iteration(self.done, raw, *reports, *seconds, kept)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return everything the next iteration depends on, as arrays by name."""
        return {name: np.asarray(x) for name, x in named(self._everything(jax.device_get)).items()}

    def layout(self) -> dict[str, ArraySpec]:
        """Return the shape and dtype of every array of a snapshot; they do not depend on the devices."""
        layout = {
            name: ArraySpec(
                x.shape, np.dtype(x.dtype), optional=LATER.fullmatch(name) is not None,
                segmented=name.startswith("replay/"),
            )
            for name, x in named(self._shapes()).items()
        }  # fmt: skip
        name, actions = "place/actions", layout["place/actions"].shape
        longest = (actions_limit(actions), *actions[1:])
        return layout | {name: ArraySpec(longest, layout[name].dtype, at_most=True)}

    def _shapes(self) -> Any:
        """Return shape and dtype of everything, without fetching it from the devices."""
        real = self.learner.population.real
        return jax.eval_shape(lambda: self._everything(lambda tree: tree) | {"replay": real(self.learner.rows)})

    def new_batches(self, since: int) -> tuple[int, dict[str, np.ndarray], int]:
        """Return what the rings hold since this many batches: the first, their arrays `[P, k, ...]`, and the slots."""
        rows = self.learner.rows
        if not rows:
            return since, {}, 0
        slots = rows[0].reward.shape[1]
        first = max(since, self.batches - slots)
        places = np.arange(first, self.batches) % slots
        new = self.learner.population.real(jax.device_get(jax.tree.map(lambda x: x[:, places], rows)))
        return first, {name: np.asarray(x) for name, x in named({"replay": new}).items()}, slots

    def _everything(self, fetch: Callable[[Any], Any]) -> dict[str, Any]:
        """Return everything the next iteration depends on, with the parts on the devices as `fetch` returns them."""
        counters = {"batches": np.int64(self.batches), "done": np.int64(self.done), "taken": self.taken}
        feed = Feed(self.collector.obs, self.collector.ended)
        kept = {"kept": self.keeper.snapshot(fetch)} if self.keeper else {}
        return {
            "state": self.learner.snapshot(fetch),
            "feed": feed,
            "place": self.collector.position,
            "counters": counters,
        } | kept

    def facts(self) -> Facts:
        """Return what state.json and DONE say of certificates; the arrays of a snapshot have the rest."""
        uncertified = {"uncertified": self.job.uncertified} if self.job.uncertified else {}
        return self.keeper.facts() if self.keeper else uncertified

    def restore(self, arrays: dict[str, np.ndarray], facts: Facts | None = None) -> np.ndarray:
        """Continue from a snapshot; return which of the replayed environments `[P, E]` repeat what they had shown."""
        now = self._shapes()
        arrays = arrays | first_arrays(arrays, named(now))
        saved = jax.tree.unflatten(jax.tree.structure(now), [arrays[name] for name in named(now)])
        self.learner.restore(saved["state"], saved["replay"])
        if self.keeper:
            self.keeper.restore(saved["kept"], facts or {})
        counters, position = saved["counters"], saved["place"]
        self.batches, self.done, self.taken = int(counters["batches"]), int(counters["done"]), counters["taken"]
        same = self.collector.replay(Position(*position))
        self.collector.obs, self.collector.ended = jnp.asarray(saved["feed"].obs), saved["feed"].ended
        return same.reshape(len(self.job.seeds), -1)

    def start_over(self) -> None:
        """Start new episodes everywhere, because the environments cannot be brought back to where they were."""
        self.collector.reset()
        if self.keeper:
            self.keeper.forget()


def first_arrays(arrays: Mapping[str, np.ndarray], now: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return what a checkpoint of an earlier version lacks: there, all that was seen was in force.

    Its buffer has no observations as they came. Nothing reads them: the run's audit.csv has no column for that.
    """
    found: dict[str, np.ndarray] = {}
    for name in now:
        if name not in arrays and (later := LATER.fullmatch(name)):
            normaliser = later["normaliser"]
            found |= in_force(arrays, normaliser) if normaliser else {name: np.zeros(now[name].shape, now[name].dtype)}
    return found


def named(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by their names in a checkpoint, `state/agent/policy/params/net/0/kernel`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    for now, then in RENAMED.items():
        names = [then + name.removeprefix(now) if name.startswith(now) else name for name in names]
    return dict(zip(names, (leaf for _, leaf in leaves), strict=True))
