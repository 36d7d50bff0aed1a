"""Training: a population of agents in lockstep, each iteration Algorithm 2 in two compiled programs.

`collect` steps the pool on a CPU device. `learn` is everything else, `vmap`ped over the population and sharded over the
devices that learn. They are two programs because the pool's address is compiled into the first, so that only the
second, which is the slow one to compile, can be kept for the next start; and because a GPU cannot step the pool.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from gpi.core import faults
from gpi.core import normaliser as normalize
from gpi.core.algorithms import Agent, Hyper, Metrics, Static, estimate_from, improve, read_values
from gpi.core.audit import Audit, audit, normaliser_tv
from gpi.core.normaliser import Normaliser
from gpi.core.plan import ALGORITHMS, TRUST
from gpi.core.policy import Net, Theta, distribution, init_phi, init_theta, log_prob
from gpi.core.sample import Buffer, Rollout, init_buffer, push
from gpi.core.solvers import init_climber
from gpi.envs.pool import Place, Pool, Seekable
from gpi.envs.replay import actions_limit, after_batch, after_reset, first_place
from gpi.errors import EnvironmentFault
from gpi.training.collect import Feed, Shape, actor_of, collect, collect_on_host, draw, shape_of
from gpi.training.config import Config, plan_of

COLLECTING, LEARNING = 0, 1  # the two uses of an iteration's randomness


class State(NamedTuple):
    """Everything an agent carries from one iteration to the next."""

    agent: Agent
    buffer: Buffer
    normaliser: Normaliser
    key: Array  # the member's own; an iteration's randomness is folded in from its number
    fault: Array  # int32, 0 or 1 + the stage of `faults.STAGES` at which the agent was frozen


class Iteration(NamedTuple):
    """What one iteration leaves for the host, arrays with leading axis P."""

    k: int
    raw: Rollout  # the new samples, raw
    metrics: Metrics
    audit: Audit
    fault: np.ndarray  # of each member: 0, or 1 + the stage that froze it
    collect_seconds: float
    learn_seconds: float


def init_state(theta: Theta, phi: Net, key: Array, config: Config, shape: Shape) -> State:
    """One agent before its first sample, from its initial networks."""
    observation_size = phi[0].kernel.shape[0]
    rows = (shape.T, shape.E)
    obs = jnp.zeros((*rows, observation_size), jnp.float32)
    one = jnp.int32(0) if theta.log_std is None else jnp.zeros_like(theta.log_std)
    action = jnp.broadcast_to(one, (*rows, *one.shape))
    scalar, flag = jnp.zeros(rows, jnp.float32), jnp.zeros(rows, jnp.bool_)
    rollout = Rollout(obs, action, scalar, obs, flag, flag, flag)
    return State(
        Agent(init_climber(theta), init_climber(phi), jnp.asarray(config.lr, jnp.float32)),
        init_buffer(rollout, len(plan_of(config).nu)),
        normalize.init_normaliser(observation_size),
        key,
        jnp.int32(faults.NONE),
    )


def learn(state: State, raw: Rollout, hyper: Hyper, k: Array, static: Static) -> tuple[State, Metrics, Audit]:
    """Algorithm 2, lines 4 and 5, for one agent: reuse the last M policies' samples for one policy improvement."""
    agent = state.agent
    theta_k = agent.policy.params
    rollout = normalize.normalise(state.normaliser, raw)
    buffer = push(state.buffer, rollout, logp_of(theta_k, rollout))
    values = read_values(agent.value.params, buffer)
    sample = estimate_from(theta_k, values, buffer, hyper)
    agent, metrics = improve(agent, sample, use_of(state.key, k, LEARNING), hyper, static)
    # After the update, or ratio would not start at rho.
    updated = normalize.update(state.normaliser, raw, hyper.gamma)
    normaliser = jax.tree.map(lambda new, old: jnp.where(k < hyper.freeze, new, old), updated, state.normaliser)
    theta = agent.policy.params
    moved = normaliser_tv(theta, raw, buffer, state.normaliser, normaliser)
    scale = normalize.lens(state.normaliser.returns).scale
    report = audit(theta_k, theta, sample, metrics, hyper, moved, scale)
    new = State(agent, buffer, normaliser, state.key, state.fault)
    fault = faults.first_fault({
        faults.OBSERVATION: (raw.obs, raw.next_obs),
        faults.REWARD: raw.reward,
        faults.VALUE: values,
        faults.RATIO: sample.rho,
        faults.ADVANTAGE: (sample.adv, sample.target),
        faults.GRADIENT: (agent, metrics.fraction),
        faults.NORMALISER: normaliser,
    })  # fmt: skip
    return keep_good(state, new, fault), metrics, report


def keep_good(old: State, new: State, fault: Array) -> State:
    """The new state, or for ever the last one whose numbers were all finite."""
    fault = jnp.where(old.fault == faults.NONE, fault, old.fault)
    good = fault == faults.NONE
    agent, buffer, normaliser = jax.tree.map(lambda new, old: jnp.where(good, new, old), new[:3], old[:3])
    return State(agent, buffer, normaliser, old.key, fault)


def observe(state: State, raw: Rollout, hyper: Hyper) -> State:
    """The warm-up: a batch of the initial policy only starts the normaliser."""
    new = state._replace(normaliser=normalize.update(state.normaliser, raw, hyper.gamma))
    fault = faults.first_fault({faults.OBSERVATION: (raw.obs, raw.next_obs), faults.REWARD: raw.reward})
    return keep_good(state, new, fault)


def logp_of(theta: Any, rollout: Rollout) -> Array:
    """log pi(a|s) of a rollout's actions, `[T, E]`."""
    obs = rollout.obs.reshape(-1, rollout.obs.shape[-1])
    action = rollout.action.reshape(-1, *rollout.action.shape[2:])
    return log_prob(distribution(theta, obs), action).reshape(rollout.reward.shape)


def use_of(key: Array, k: Array, use: int) -> Array:
    """The key of one use in one iteration."""
    return jax.random.fold_in(jax.random.fold_in(key, k), use)


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their path, `state/agent/policy/params/net/0/kernel`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(str(getattr(k, "name", getattr(k, "key", getattr(k, "idx", k)))) for k in path): x
            for path, x in leaves}  # fmt: skip


class Origin(NamedTuple):
    """Where a member's randomness comes from."""

    rng: np.random.Generator  # of its initial networks
    key: Array  # of everything after


def origin(config: Config, seed: int) -> Origin:
    """A seed's randomness, hashed with task and algorithm so that no two runs of a study share it."""
    name = f"{config.task.removeprefix('dmc/')}/{config.algorithm}/{seed}"
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words[:2]), impl="threefry2x32")
    return Origin(np.random.default_rng(words[2:]), key)


def hyper_of(config: Config) -> Hyper:
    """The traced settings of one member."""
    plan = plan_of(config)
    numbers = (plan.nu, config.eps, plan.eps, config.gamma, config.gae_lambda, config.value_lr)
    warm_up = config.B * config.n // plan.steps
    freeze = warm_up + -(-config.freeze_normaliser // plan.steps) if config.freeze_normaliser else 2**31 - 1
    traced = (jnp.asarray(number, jnp.float32) for number in numbers)
    return Hyper(*traced, freeze=jnp.int32(freeze))


def static_of(config: Config) -> Static:
    """The settings that shape the compiled program."""
    rule, _ = ALGORITHMS[config.algorithm]
    return Static(rule, config.epochs, config.minibatches, config.max_grad_norm, config.kl_slack, TRUST[config.trust])


class Trainer:
    """A population on its pool: owns the devices and the compiled programs, and steps through iterations."""

    def __init__(self, config: Config, pool: Pool, devices: list[Any]):
        """Lay out the population over `devices`, and compile."""
        started = time.perf_counter()
        self.config, self.pool, self.plan = config, pool, plan_of(config)
        self.seeds = range(config.seed, config.seed + config.seeds)
        self.shape = shape_of(
            config.seeds, config.num_envs, self.plan.steps // config.num_envs, pool.spec.horizon,
            reset_each_batch=config.reset_each_batch,
        )  # fmt: skip
        self.mesh = Mesh(np.array(devices), ("P",))
        self.sharded = NamedSharding(self.mesh, PartitionSpec("P"))
        self.host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        self.padding = -config.seeds % len(devices)
        self.state, self.hyper = jax.device_put(self._first_state(), self.sharded)
        self.handle = pool.handle
        self.place = first_place(pool)
        self.feed = self._reset()
        self.batches = 0  # collected, warm-up included
        self.done = 0  # iterations
        self.taken = np.zeros(config.seeds, np.int64)  # steps of each member, warm-up not included
        self._collect, self._learn, self._observe = self._compile()
        self.compile_seconds = time.perf_counter() - started

    def _first_state(self) -> tuple[State, Hyper]:
        """State and settings of all members; a population that does not fill its devices repeats its last there."""
        config, spec = self.config, self.pool.spec

        def member(seed: int) -> tuple[Theta, Net, Array]:
            rng, key = origin(config, seed)
            theta = init_theta(rng, spec.observation_size, spec.action_size, config.hidden, discrete=spec.discrete)
            return theta, init_phi(rng, spec.observation_size, config.hidden), key

        members = [member(seed) for seed in self.seeds]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *members, *members[-1:] * self.padding)
        init = jax.vmap(lambda theta, phi, key: (init_state(theta, phi, key, config, self.shape), hyper_of(config)))
        return jax.jit(init)(*stacked)

    def _compile(self) -> list[Any]:
        """Compile every program once, side by side, ahead of the run: collect, learn and observe."""

        def ready(acting: Any, k: Array) -> tuple[Array, normalize.Lens]:
            _, normaliser, key = jax.tree.map(lambda x: x[: self.config.seeds], acting)
            return draw(self.pool.spec, self.shape, self._keys(key, k)), jax.vmap(normalize.lens)(normaliser.obs)

        def gather(handle: Any, feed: Feed, acting: Any, k: Array) -> Any:
            theta, normaliser, key = jax.tree.map(lambda x: x[: self.config.seeds], acting)
            handle, feed, raw = collect(self.pool, self.shape, handle, feed, theta, normaliser, self._keys(key, k))
            return handle, feed, jax.tree.map(lambda x: jnp.concatenate([x, *[x[-1:]] * self.padding]), raw)

        handle, feed, acting, k = self._collect_arguments()
        collecting = (
            jax.jit(gather).lower(handle, feed, acting, k) if self.pool.compiled else jax.jit(ready).lower(acting, k)
        )
        # A batch is what a slot of the buffer holds.
        raw = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype, sharding=self.sharded),
            self.state.buffer.rollout,
        )
        with ThreadPoolExecutor() as compilers:
            return list(compilers.map(lambda program: program.compile(), [collecting, *self._learning(raw)]))

    def _learning(self, raw: Any) -> list[Any]:
        """The programs that learn from a raw batch, `vmap`ped over the population and sharded over the devices."""
        static, members, everyone = static_of(self.config), PartitionSpec("P"), PartitionSpec()

        def population(one: Callable[..., Any], *specs: PartitionSpec) -> Any:
            axes = tuple(None if spec == everyone else 0 for spec in specs)
            spread = jax.shard_map(
                jax.vmap(one, in_axes=axes), mesh=self.mesh, in_specs=specs, out_specs=members, check_vma=False
            )
            return jax.jit(spread, donate_argnums=0)

        step = population(lambda s, r, h, k: learn(s, r, h, k, static), members, members, members, everyone)
        return [
            step.lower(self.state, raw, self.hyper, jnp.int32(0)),
            population(observe, members, members, members).lower(self.state, raw, self.hyper),
        ]

    def _keys(self, key: Array, k: Array) -> Array:
        """The members' randomness of one batch."""
        return jax.vmap(lambda key: use_of(key, k, COLLECTING))(key)

    def _collect_arguments(self) -> tuple[Any, ...]:
        """What acting needs, where the pool is."""
        acting = (self.state.agent.policy.params, self.state.normaliser, self.state.key)
        return jax.device_put((self.handle, self.feed, acting, np.int32(self.batches)), self.host)

    def _reset(self) -> Feed:
        """Start a new episode everywhere."""
        self.handle, obs = self.pool.reset(self.handle)
        self.place = after_reset(self.place, np.asarray(obs))
        return Feed(jnp.asarray(obs), jnp.zeros(self.pool.num_envs, jnp.bool_))

    def gather(self) -> Rollout:
        """The next batch of every member, raw, `[P, T, E]`."""
        handle, feed, acting, k = self._collect_arguments()
        if self.pool.compiled:
            self.handle, self.feed, raw = jax.block_until_ready(self._collect(handle, feed, acting, k))
        else:
            noise, eye = self._collect(acting, k)
            theta = jax.tree.map(lambda x: np.asarray(x)[: self.config.seeds], acting[0])
            self.feed, raw = collect_on_host(self.pool, self.shape, feed, actor_of(theta, eye), np.asarray(noise))
            raw = jax.tree.map(lambda x: np.concatenate([x, *[x[-1:]] * self.padding]), raw)
        self.batches += 1
        real = jax.tree.map(lambda x: x[: self.config.seeds], raw)
        # Where the next batch begins with a reset, whatever was done since the last does not matter.
        self.place = after_batch(self.place, real, keep=not self.config.reset_each_batch)
        self.place = self.place._replace(resets=self.place.resets + len(self.shape.drop))
        return raw

    def _prepare(self) -> None:
        """Ready the pool for the next batch."""
        if self.config.reset_each_batch:
            self.feed = self._reset()

    def warm_up(self) -> None:
        """B batches of n, or one of B n on-policy, to start the normalisers; not counted as steps."""
        for _ in range(self.config.B * self.config.n // self.plan.steps):
            self.state = self._observe(self.state, jax.device_put(self.gather(), self.sharded), self.hyper)
            self._prepare()

    def iterations(self, steps: int) -> Iterator[Iteration]:
        """Collect and learn until every agent has taken `steps` steps, from wherever it is."""
        while self.taken.min() < steps:
            start = time.perf_counter()
            raw = self.gather()
            collected = time.perf_counter()
            k = jnp.int32(self.batches - 1)
            self.state, *reports = self._learn(self.state, jax.device_put(raw, self.sharded), self.hyper, k)
            broken = None
            try:
                self._prepare()  # while the devices learn
            except EnvironmentFault as error:  # this iteration is whole; only the next cannot begin
                broken = error
            reports = jax.device_get((*reports, self.state.fault))
            learned = time.perf_counter()
            real = jax.tree.map(lambda x: np.asarray(x)[: self.config.seeds], (raw, *reports))
            raw, metrics, audit, fault = real
            self.done += 1
            self.taken = self.taken + raw.valid.sum(axis=(1, 2))
            yield Iteration(self.done, raw, metrics, audit, fault, collected - start, learned - collected)
            if broken is not None:
                raise broken

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything the next iteration depends on, as arrays by name; without the members that only fill devices."""
        everything = jax.device_get(self._everything())
        return named(everything | {"state": jax.tree.map(lambda x: x[: self.config.seeds], everything["state"])})

    def layout(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and type of every array of a snapshot; the devices have no say in it."""

        def shape(name: str, x: Any) -> tuple[int, ...]:
            if name == "place/actions":
                return (-actions_limit(x.shape), *x.shape[1:])
            return (self.config.seeds, *x.shape[1:]) if name.startswith("state/") else x.shape

        return {name: (shape(name, x), np.dtype(x.dtype)) for name, x in named(self._everything()).items()}

    def _everything(self) -> Any:
        state = self.state._replace(key=jax.random.key_data(self.state.key))
        counters = {"batches": np.int64(self.batches), "done": np.int64(self.done), "taken": self.taken}
        return {"state": state, "feed": self.feed, "place": self.place, "counters": counters}

    def restore(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """Continue from a snapshot: returns which of the replayed environments `[P, E]` show what they had shown."""
        now = self._everything()
        saved = jax.tree.unflatten(jax.tree.structure(now), [arrays[name] for name in named(now)])
        state = jax.tree.map(lambda x: np.concatenate([x, *[x[-1:]] * self.padding]), saved["state"])
        key = jax.random.wrap_key_data(jnp.asarray(state.key), impl="threefry2x32")
        self.state = jax.device_put(state._replace(key=key), self.sharded)
        self.batches, self.done = int(saved["counters"]["batches"]), int(saved["counters"]["done"])
        self.taken, self.feed = saved["counters"]["taken"], jax.tree.map(jnp.asarray, saved["feed"])
        return self._replay(saved["place"])

    def _replay(self, place: Place) -> np.ndarray:
        """Bring a new pool to where another was: its resets, then the actions of the running episodes."""
        kept = np.where(place.calls <= len(place.actions), place.calls, 0)  # too long to be repeated: begin anew
        _, digest = cast(Seekable, self.pool).seek(place._replace(calls=kept))
        self.place = place
        return (digest == place.digest).reshape(self.shape.P, self.shape.E)

    def start_over(self) -> None:
        """New episodes everywhere, because the environments cannot be brought back to where they were."""
        self.feed = self._reset()
