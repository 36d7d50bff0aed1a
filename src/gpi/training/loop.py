"""Training: a population of agents in lockstep, each iteration Algorithm 2 in two compiled programs.

The population is shared out in equal groups, one per device. `collect` steps a group's own pool on a CPU device, all
groups side by side. `learn` is everything else, `vmap`ped over the population and sharded over the devices. They are
two programs because a pool's address is compiled into the first, so that only the second, the slow one to compile, can
be kept for the next start; and because a GPU cannot step a pool.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpi.core import normalize
from gpi.core.algorithms import Agent, Hyper, Metrics, Static, estimate, improve
from gpi.core.audit import Audit, audit, normaliser_tv
from gpi.core.normalize import Normaliser
from gpi.core.plan import ALGORITHMS, TRUST
from gpi.core.policy import distribution, init_phi, init_theta, log_prob
from gpi.core.sample import Buffer, Rollout, init_buffer, push
from gpi.core.solvers import init_climber
from gpi.envs.pool import Pool, Spec
from gpi.training.config import Config, plan_of
from gpi.training.rollout import Feed, Shape, collect, shape_of

COLLECTING, LEARNING = 0, 1  # the two uses of an iteration's randomness


class State(NamedTuple):
    """Everything an agent carries from one iteration to the next."""

    agent: Agent
    buffer: Buffer
    normaliser: Normaliser
    key: Array  # the member's own; an iteration's randomness is folded in from its number


class Iteration(NamedTuple):
    """What one iteration leaves for the host, arrays with leading axis P."""

    k: int
    raw: Rollout  # the new samples, raw
    metrics: Metrics
    audit: Audit
    collect_seconds: float
    learn_seconds: float


def init_state(key: Array, spec: Spec, config: Config, shape: Shape) -> State:
    """One agent before its first sample."""
    keys = jax.random.split(key, 3)
    theta = init_theta(keys[0], spec.observation_size, spec.action_size, config.hidden, discrete=False)
    phi = init_phi(keys[1], spec.observation_size, config.hidden)
    rows = (shape.T, shape.E)
    obs, scalar, flag = (jnp.zeros((*rows, *rest), dtype) for rest, dtype in (
        ((spec.observation_size,), jnp.float32), ((), jnp.float32), ((), jnp.bool_)
    ))  # fmt: skip
    action = jnp.zeros((*rows, spec.action_size), jnp.float32)
    rollout = Rollout(obs, action, scalar, obs, flag, flag, flag)
    return State(
        Agent(init_climber(theta), init_climber(phi), jnp.asarray(config.lr, jnp.float32)),
        init_buffer(rollout, len(plan_of(config).nu)),
        normalize.init_normaliser(spec.observation_size),
        keys[2],
    )


def learn(state: State, raw: Rollout, hyper: Hyper, k: Array, static: Static) -> tuple[State, Metrics, Audit]:
    """Algorithm 2, lines 4 and 5, for one agent: reuse the last M policies' samples for one policy improvement."""
    agent = state.agent
    theta_k = agent.policy.params
    rollout = normalize.normalise(state.normaliser, raw)
    buffer = push(state.buffer, rollout, logp_of(theta_k, rollout))
    sample = estimate(theta_k, agent.value.params, buffer, hyper)
    agent, metrics = improve(agent, sample, use_of(state.key, k, LEARNING), hyper, static)
    # After the update, or ratio would not start at rho.
    updated = normalize.update(state.normaliser, raw, hyper.gamma)
    normaliser = jax.tree.map(lambda new, old: jnp.where(k < hyper.freeze, new, old), updated, state.normaliser)
    theta = agent.policy.params
    moved = normaliser_tv(theta, raw, buffer, state.normaliser, normaliser)
    scale = normalize.lens(state.normaliser.returns).scale
    report = audit(theta_k, theta, sample, metrics, hyper, moved, scale)
    return State(agent, buffer, normaliser, state.key), metrics, report


def observe(state: State, raw: Rollout, hyper: Hyper) -> State:
    """The warm-up: a batch of the initial policy only starts the normaliser."""
    return state._replace(normaliser=normalize.update(state.normaliser, raw, hyper.gamma))


def logp_of(theta: Any, rollout: Rollout) -> Array:
    """log pi(a|s) of a rollout's actions, `[T, E]`."""
    obs = rollout.obs.reshape(-1, rollout.obs.shape[-1])
    action = rollout.action.reshape(-1, *rollout.action.shape[2:])
    return log_prob(distribution(theta, obs), action).reshape(rollout.reward.shape)


def use_of(key: Array, k: Array, use: int) -> Array:
    """The key of one use in one iteration."""
    return jax.random.fold_in(jax.random.fold_in(key, k), use)


def member_key(config: Config, seed: int) -> Array:
    """A seed's key, hashed with task and algorithm so that no two runs of a study share their randomness."""
    words = hashlib.sha256(f"{config.task.removeprefix('dmc/')}/{config.algorithm}/{seed}".encode()).digest()[:8]
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(words, np.uint32)), impl="threefry2x32")


def hyper_of(config: Config) -> Hyper:
    """The traced settings of one member."""
    plan = plan_of(config)
    numbers = (plan.nu, config.eps, plan.eps, config.gamma, config.gae_lambda, config.value_lr)
    warm_up = config.B * config.n // plan.steps
    freeze = warm_up + -(-config.freeze_normaliser // plan.steps) if config.freeze_normaliser else 2**31 - 1
    return Hyper(*(jnp.asarray(number, jnp.float32) for number in numbers), freeze=jnp.int32(freeze))


def static_of(config: Config) -> Static:
    """The settings that shape the compiled program."""
    rule, _ = ALGORITHMS[config.algorithm]
    return Static(rule, config.epochs, config.minibatches, config.max_grad_norm, config.kl_slack, TRUST[config.trust])


def groups(config: Config, devices: int) -> list[range]:
    """The seeds of each device: equally many, so the last group may hold further seeds, which are not reported."""
    each = -(-config.seeds // devices)
    used = -(-config.seeds // each)
    return [range(config.seed + each * d, config.seed + each * (d + 1)) for d in range(used)]


class Station:
    """One pool and the members that act in it, on a CPU device of their own."""

    def __init__(self, config: Config, pool: Pool, shape: Shape, host: Any):
        """Nothing is compiled or simulated yet."""
        self.config, self.pool, self.shape, self.host = config, pool, shape, host
        self.handle = pool.handle
        self.feed = self._reset()

    def compile(self, acting: Any) -> Rollout:
        """Compile its program for the members' `acting` state; returns the shapes of what it collects."""

        def program(handle: Any, feed: Feed, acting: Any, k: Array) -> Any:
            theta, normaliser, key = acting
            keys = jax.vmap(lambda key: use_of(key, k, COLLECTING))(key)
            return collect(self.pool, self.shape, handle, feed, theta, normaliser, keys)

        arguments = jax.device_put((self.handle, self.feed, acting, jnp.int32(0)), self.host)
        self.program = jax.jit(program).lower(*arguments).compile()
        return jax.eval_shape(program, *arguments)[2]

    def gather(self, acting: Any, k: int) -> Rollout:
        """The next batch of its members, raw, `[K, T, E]`."""
        if self.config.reset_each_batch:
            self.feed = self._reset()
        arguments = jax.device_put((self.handle, self.feed, acting, np.int32(k)), self.host)
        self.handle, self.feed, raw = self.program(*arguments)
        return jax.block_until_ready(raw)

    def _reset(self) -> Feed:
        self.handle, obs = self.pool.reset(self.handle)
        return jax.device_put(Feed(jnp.asarray(obs), jnp.zeros(self.pool.num_envs, jnp.bool_)), self.host)


class Trainer:
    """A population: owns its stations, its devices and the compiled programs, and steps through iterations."""

    def __init__(self, config: Config, pools: Sequence[Pool], devices: list[Any]):
        """Lay out the population, one group and its pool on each device, and compile."""
        started = time.perf_counter()
        self.config, self.plan = config, plan_of(config)
        self.seeds = range(config.seed, config.seed + config.seeds)
        layout = groups(config, len(devices))
        devices = devices[: len(layout)]
        spec = pools[0].spec
        shape = shape_of(
            len(layout[0]), config.num_envs, self.plan.steps // config.num_envs, spec.horizon,
            reset_each_batch=config.reset_each_batch,
        )  # fmt: skip
        self.mesh = Mesh(np.array(devices), ("P",))
        self.sharded = NamedSharding(self.mesh, PartitionSpec("P"))
        hosts = jax.local_devices(backend="cpu")
        self.stations = [Station(config, pool, shape, hosts[d % len(hosts)]) for d, pool in enumerate(pools)]
        # A pool's threads and a station's program keep one core busy: stations collect side by side.
        self.crew = ThreadPoolExecutor(len(pools))
        keys = jnp.stack([member_key(config, seed) for group in layout for seed in group])
        init = jax.jit(jax.vmap(lambda key: (init_state(key, spec, config, shape), hyper_of(config))))
        self.state, self.hyper = jax.device_put(init(keys), self.sharded)
        self.batches = 0  # collected, warm-up included
        self.done = 0  # iterations
        self._compile()
        self.compile_seconds = time.perf_counter() - started

    def _compile(self) -> None:
        """Compile every program once, ahead of the run."""
        static, members = static_of(self.config), PartitionSpec("P")

        def population(one: Callable[..., Any], *specs: PartitionSpec) -> Any:
            axes = tuple(None if spec == PartitionSpec() else 0 for spec in specs)
            spread = jax.shard_map(
                jax.vmap(one, in_axes=axes), mesh=self.mesh, in_specs=specs, out_specs=members, check_vma=False
            )
            return jax.jit(spread, donate_argnums=0)

        for station, acting in zip(self.stations, self._acting(), strict=True):
            shapes = station.compile(acting)
        P = self.state.key.shape[0]
        raw = jax.tree.map(lambda x: jax.ShapeDtypeStruct((P, *x.shape[1:]), x.dtype, sharding=self.sharded), shapes)
        step = population(lambda s, r, h, k: learn(s, r, h, k, static), members, members, members, PartitionSpec())
        self._learn = step.lower(self.state, raw, self.hyper, jnp.int32(0)).compile()
        self._observe = population(observe, members, members, members).lower(self.state, raw, self.hyper).compile()

    def _acting(self) -> list[Any]:
        """What acting needs of the state, for each station."""
        acting = (self.state.agent.policy.params, self.state.normaliser, self.state.key)
        return [jax.tree.map(lambda x, d=d: x.addressable_data(d), acting) for d in range(len(self.stations))]

    def _gather(self) -> Rollout:
        """The next batch of every member, raw, where it is learned from."""
        k = self.batches
        self.batches += 1
        jobs = [self.crew.submit(s.gather, acting, k) for s, acting in zip(self.stations, self._acting(), strict=True)]
        parts = [jax.device_put(job.result(), d) for job, d in zip(jobs, self.mesh.devices, strict=True)]

        def join(*shards: Array) -> Array:
            shape = (len(shards) * shards[0].shape[0], *shards[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, self.sharded, shards)

        return jax.tree.map(join, *parts)

    def warm_up(self) -> None:
        """B batches of n, or one of B n on-policy, to start the normalisers; not counted as steps."""
        for _ in range(self.config.B * self.config.n // self.plan.steps):
            self.state = self._observe(self.state, self._gather(), self.hyper)

    def iterations(self, steps: int) -> Iterator[Iteration]:
        """Collect and learn until every agent has taken `steps` steps."""
        for i in range(-(-steps // self.plan.steps)):
            start = time.perf_counter()
            raw = self._gather()
            collected = time.perf_counter()
            k = jnp.int32(self.batches - 1)
            self.state, *reports = self._learn(self.state, raw, self.hyper, k)
            reports = jax.device_get(reports)
            learned = time.perf_counter()
            raw, metrics, audit = jax.tree.map(lambda x: np.asarray(x)[: self.config.seeds], (raw, *reports))
            self.done = i + 1
            yield Iteration(self.done, raw, metrics, audit, collected - start, learned - collected)

    def close(self) -> None:
        """End the threads that collect."""
        self.crew.shutdown()
