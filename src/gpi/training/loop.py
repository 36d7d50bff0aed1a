"""Training: a population of agents in lockstep, each iteration Algorithm 2 in two compiled programs.

`collect` steps the pool on a CPU device. `learn` is everything else, `vmap`ped over the population and sharded over the
devices that learn. They are two programs because the pool's address is compiled into the first, so that only the
second, which is the slow one to compile, can be kept for the next start; and because a GPU cannot step the pool.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from gpi.core import normalize
from gpi.core.algorithms import Agent, Hyper, Metrics, Static, estimate, improve
from gpi.core.normalize import Normaliser
from gpi.core.plan import ALGORITHMS
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


def learn(state: State, raw: Rollout, hyper: Hyper, k: Array, static: Static) -> tuple[State, Metrics]:
    """Algorithm 2, lines 4 and 5, for one agent: reuse the last M policies' samples for one policy improvement."""
    agent = state.agent
    theta_k = agent.policy.params
    rollout = normalize.normalise(state.normaliser, raw)
    buffer = push(state.buffer, rollout, logp_of(theta_k, rollout))
    sample = estimate(theta_k, agent.value.params, buffer, hyper)
    agent, metrics = improve(agent, sample, use_of(state.key, k, LEARNING), hyper, static)
    # After the update, or ratio would not start at rho.
    normaliser = normalize.update(state.normaliser, raw, hyper.gamma)
    return State(agent, buffer, normaliser, state.key), metrics


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
    return Hyper(*(jnp.asarray(number, jnp.float32) for number in numbers))


def static_of(config: Config) -> Static:
    """The settings that shape the compiled program."""
    rule, _ = ALGORITHMS[config.algorithm]
    return Static(rule, config.epochs, config.minibatches, config.max_grad_norm, config.kl_slack)


class Trainer:
    """A population on its pool: owns the compiled programs and the devices, and steps through iterations."""

    def __init__(self, config: Config, pool: Pool, devices: list[Any]):
        """Lay out the population over `devices`; nothing is compiled or simulated yet."""
        self.config, self.pool = config, pool
        self.plan = plan_of(config)
        self.seeds = range(config.seed, config.seed + config.seeds)
        self.shape = shape_of(
            config.seeds, config.num_envs, self.plan.steps // config.num_envs, pool.spec.horizon,
            reset_each_batch=config.reset_each_batch,
        )  # fmt: skip
        self.mesh = Mesh(np.array(devices), ("P",))
        self.sharded = NamedSharding(self.mesh, PartitionSpec("P"))
        self.host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        self.padded = -(-config.seeds // len(devices)) * len(devices)
        self.handle, self.feed = pool.handle, None
        self.k = 0  # batches collected, warm-up included
        self.done = 0  # iterations
        # A population that does not fill its devices repeats its last member there.
        members = [min(seed, self.seeds[-1]) for seed in range(config.seed, config.seed + self.padded)]
        keys = jnp.stack([member_key(config, seed) for seed in members])
        init = jax.jit(jax.vmap(lambda key: (init_state(key, pool.spec, config, self.shape), hyper_of(config))))
        self.state, self.hyper = jax.device_put(init(keys), self.sharded)
        self.compile_seconds = 0.0
        self._compile()

    def _compile(self) -> None:
        """Compile the three programs once, ahead of the run."""
        start = time.perf_counter()
        P, static = self.config.seeds, static_of(self.config)
        over_members = PartitionSpec("P")

        def gather(handle: Any, feed: Feed, state: tuple[Any, Normaliser, Array], k: Array) -> Any:
            theta, normaliser, key = jax.tree.map(lambda x: x[:P], state)
            keys = jax.vmap(lambda key: use_of(key, k, COLLECTING))(key)
            handle, feed, raw = collect(self.pool, self.shape, handle, feed, theta, normaliser, keys)
            fill = self.padded - P
            return handle, feed, jax.tree.map(lambda x: jnp.concatenate([x, *[x[-1:]] * fill]), raw)

        def population(one: Callable[..., Any], specs: tuple[Any, ...]) -> Any:
            axes = tuple(None if spec == PartitionSpec() else 0 for spec in specs)
            spread = jax.shard_map(
                jax.vmap(one, in_axes=axes), mesh=self.mesh, in_specs=specs, out_specs=over_members, check_vma=False
            )
            return jax.jit(spread, donate_argnums=0)

        self.feed = jax.device_put(self._first_feed(), self.host)
        k = jnp.int32(0)
        arguments = (self.handle, self.feed, self._acting(), jax.device_put(k, self.host))
        shapes = jax.eval_shape(gather, *arguments)[2]
        raw = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.sharded), shapes)
        self._collect = jax.jit(gather).lower(*arguments).compile()
        step = population(lambda s, r, h, k: learn(s, r, h, k, static), (over_members,) * 3 + (PartitionSpec(),))
        self._learn = step.lower(self.state, raw, self.hyper, k).compile()
        self._observe = population(observe, (over_members,) * 3).lower(self.state, raw, self.hyper).compile()
        self.compile_seconds = time.perf_counter() - start

    def _first_feed(self) -> Feed:
        self.handle, obs = self.pool.reset(self.handle)
        return Feed(jnp.asarray(obs), jnp.zeros(self.pool.num_envs, jnp.bool_))

    def _acting(self) -> tuple[Any, Normaliser, Array]:
        """What acting needs of the state, where the pool is."""
        acting = (self.state.agent.policy.params, self.state.normaliser, self.state.key)
        return jax.device_put(acting, self.host)

    def _gather(self) -> Rollout:
        """The next batch of every member, raw."""
        if self.config.reset_each_batch:
            self.feed = jax.device_put(self._first_feed(), self.host)
        k = jax.device_put(jnp.int32(self.k), self.host)
        self.handle, self.feed, raw = self._collect(self.handle, self.feed, self._acting(), k)
        self.k += 1
        return jax.block_until_ready(raw)

    def warm_up(self) -> None:
        """B batches of n, or one of B n on-policy, to start the normalisers; not counted as steps."""
        for _ in range(self.config.B * self.config.n // self.plan.steps):
            self.state = self._observe(self.state, jax.device_put(self._gather(), self.sharded), self.hyper)

    def iterations(self, steps: int) -> Iterator[Iteration]:
        """Collect and learn until every agent has taken `steps` steps."""
        for i in range(-(-steps // self.plan.steps)):
            start = time.perf_counter()
            raw = self._gather()
            collected = time.perf_counter()
            k = self.k - 1
            self.state, metrics = self._learn(self.state, jax.device_put(raw, self.sharded), self.hyper, jnp.int32(k))
            metrics = jax.device_get(metrics)
            learned = time.perf_counter()
            raw, metrics = jax.tree.map(lambda x: np.asarray(x)[: self.config.seeds], (raw, metrics))
            self.done = i + 1
            yield Iteration(self.done, raw, metrics, collected - start, learned - collected)
