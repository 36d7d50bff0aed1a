"""The learner: a population's state, sharded over the devices that learn, and the programs that change it."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled, Lowered

from gpi.config import Config, plan_of
from gpi.core import faults, normaliser
from gpi.core.agent import Agent, Critic, Hyper, Metrics, Static
from gpi.core.audit import Audit
from gpi.core.critic import CRITICS
from gpi.core.iteration import Learned, State, learn, observe
from gpi.core.network import shaped
from gpi.core.plan import ALGORITHMS
from gpi.core.policy import Theta, policy_for
from gpi.core.ring import init_replay
from gpi.core.rules import RULES
from gpi.core.sample import Rollout, init_buffer
from gpi.core.solvers import init_adam
from gpi.core.still import NORMALISING
from gpi.core.trust import TRUST
from gpi.envs.pool import Spec
from gpi.training.collect import Acting, Shape, acting_part
from gpi.training.devices import Device, jax_setting
from gpi.training.job import Job
from gpi.training.population import population_on


class Program:
    """A program that is traced, and compiled once."""

    def __init__(self, lowered: Lowered):
        """`compile` is slow the first time, and may run in a thread."""
        self.compile = functools.cache(lowered.compile)


PROGRAMS: OrderedDict[Hashable, Program] = OrderedDict()
"""Programs that this process compiled lately: runs that learn with the same one share it."""
PROGRAMS_KEPT = 8
PROGRAMS_LOCK = threading.Lock()


def shared_program(key: Hashable, lower: Callable[[], Lowered]) -> Program:
    """Return the program of a key, traced only if it is not in the cache."""
    with PROGRAMS_LOCK:
        program = PROGRAMS.pop(key, None) or Program(lower())
        PROGRAMS[key] = program
        while len(PROGRAMS) > PROGRAMS_KEPT:
            PROGRAMS.popitem(last=False)
    return program


def signature(arguments: tuple[Any, ...]) -> tuple[Hashable, ...]:
    """Return everything that a program depends on besides its code: the arguments' shapes, and JAX's settings."""
    leaves, tree = jax.tree.flatten(arguments)
    kinds = tuple((x.shape, x.dtype, x.sharding) for x in leaves)
    return tree, kinds, jax_setting("jax_enable_x64"), jax_setting("jax_default_matmul_precision")


class Reports(NamedTuple):
    """The reports of one update on the host, as arrays with a leading axis P."""

    metrics: Metrics
    audit: Audit
    fault: np.ndarray  # for each member, 0 or 1 + the stage that froze it


class Origin(NamedTuple):
    """The source of a member's randomness."""

    rng: np.random.Generator  # of its initial networks
    key: Array  # of everything after


def origin(config: Config, seed: int) -> Origin:
    """Return a seed's randomness, hashed with task and algorithm so that no two runs of a study share it."""
    name = f"{config.short_task}/{config.algorithm}/{seed}"
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words[:2]), impl="threefry2x32")
    return Origin(np.random.default_rng(words[2:]), key)


def hyper_of(job: Job) -> Hyper:
    """Return the traced settings of one member."""
    config, plan = job.config, job.plan
    numbers = (plan.nu, config.eps, plan.eps, config.gamma, config.gae_lambda, config.value_lr)
    frozen_after = job.warm_up_batches + -(-config.freeze_normaliser // plan.steps)
    freeze = frozen_after if config.freeze_normaliser else 2**31 - 1
    return Hyper(*(jnp.asarray(number, jnp.float32) for number in numbers), freeze=jnp.int32(freeze))


def static_of(config: Config) -> Static:
    """Return the settings that shape the compiled program."""
    rule, solve = ALGORITHMS[config.algorithm].rule, plan_of(config).solve
    name = TRUST[config.trust].normaliser if config.normaliser == "auto" else config.normaliser
    numbers = config.epochs, config.minibatches, config.max_grad_norm, config.kl_slack
    return Static(rule, *numbers, config.trust, name, solve)


def init_state(theta: Theta, critic: Critic, key: Array, job: Job, spec: Spec, shape: Shape) -> State:
    """Return one agent before its first sample, from its initial policy and critic."""
    rows = (shape.T, shape.E)
    obs = jnp.zeros((*rows, spec.observation_size), jnp.float32)
    one = theta.empty_action(spec.action_size)
    action = jnp.broadcast_to(one, (*rows, *one.shape))
    scalar, flag = jnp.zeros(rows, jnp.float32), jnp.zeros(rows, jnp.bool_)
    rollout = Rollout(obs, action, scalar, obs, flag, flag, flag)
    learned = Learned(
        Agent(init_adam(theta), critic, jnp.asarray(job.config.lr, jnp.float32)),
        init_buffer(rollout, len(job.plan.nu), raw=NORMALISING[static_of(job.config).normaliser].raw),
        normaliser.init_normaliser(spec.observation_size),
    )
    return State(learned, init_replay(rollout, job.config.replayed), key, jnp.int32(faults.NONE))


class Learner:
    """A population on its devices."""

    def __init__(self, job: Job, spec: Spec, shape: Shape, devices: list[Device]):
        """Initialise the members and lay them out over the devices."""
        self.job = job
        self.population = population_on(len(job.seeds), len(devices))
        self.mesh = Mesh(np.array(devices), ("P",))
        self.sharded = NamedSharding(self.mesh, PartitionSpec("P"))
        self.state, self.hyper = jax.device_put(self._first_state(spec, shape), self.sharded)
        self.programs: tuple[Compiled, Compiled] | None = None

    def _first_state(self, spec: Spec, shape: Shape) -> tuple[State, Hyper]:
        """Return state and settings of all members; those that only fill devices repeat the last one."""
        job, config = self.job, self.job.config
        policy, critic = policy_for(config.policy, spec.kind), CRITICS[ALGORITHMS[config.algorithm].critic]

        def member(seed: int) -> tuple[Theta, Critic, Array]:
            rng, key = origin(config, seed)
            theta = policy.init(rng, spec.observation_size, spec.action_size, config.hidden)
            phi = critic(rng, spec.observation_size, spec.action_size, config.value_hidden or config.hidden)
            theta, phi = shaped((theta, phi), config.activation, layer_norm=config.layer_norm)
            return theta, phi, key

        members = [member(seed) for seed in job.seeds]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *members, *members[-1:] * self.population.padding)
        init = jax.vmap(lambda theta, critic, key: (init_state(theta, critic, key, job, spec, shape), hyper_of(job)))
        return jax.jit(init)(*stacked)

    def lower(self) -> list[Program]:
        """Return the programs to compile, learn and observe, `vmap`ped over the population and sharded."""
        static, members, everyone = static_of(self.job.config), PartitionSpec("P"), PartitionSpec()
        # A batch is what a slot of the buffer holds.
        raw = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype, sharding=self.sharded),
            self.state.learned.buffer.rollout,
        )

        def program(one: Callable[..., Any], specs: tuple[PartitionSpec, ...], *arguments: Any) -> Program:
            def lower() -> Lowered:
                axes = tuple(None if spec == everyone else 0 for spec in specs)
                mapped = jax.vmap(one, in_axes=axes)
                sharded = jax.shard_map(mapped, mesh=self.mesh, in_specs=specs, out_specs=members, check_vma=False)
                return jax.jit(sharded, donate_argnums=0).lower(*arguments)

            parts = (RULES[static.rule], TRUST[static.trust]) if one is not observe else ()
            return shared_program((static, parts, self.mesh, *signature(arguments)), lower)

        learning = program(
            lambda s, r, h, k: learn(s, r, h, k, static), (members, members, members, everyone),
            self.state, raw, self.hyper, jnp.int32(0),
        )  # fmt: skip
        return [learning, program(observe, (members, members, members), self.state, raw, self.hyper)]

    def use(self, learning: Compiled, observing: Compiled) -> None:
        """Learn with these compiled programs from now on."""
        self.programs = learning, observing

    @property
    def acting(self) -> Acting:
        """The part of the members' states that acting needs."""
        return acting_part(self.state)

    def observe(self, raw: Rollout) -> None:
        """Start the normalisers with a batch."""
        assert self.programs is not None
        self.state = self.programs[1](self.state, self._sent(raw), self.hyper)

    def learn(self, raw: Rollout, batch: int) -> tuple[Metrics, Audit]:
        """Start an update without waiting for it; `fetch` waits for the returned arrays."""
        assert self.programs is not None
        self.state, metrics, audit = self.programs[0](self.state, self._sent(raw), self.hyper, jnp.int32(batch))
        return metrics, audit

    def fetch(self, metrics: Metrics, audit: Audit) -> Reports:
        """Wait for an update and return its reports."""
        return self.population.real(Reports(*jax.device_get((metrics, audit, self.state.fault))))

    def _sent(self, raw: Rollout) -> Rollout:
        """Return a batch on the devices that learn."""
        return jax.device_put(self.population.padded(raw), self.sharded)

    def snapshot(self, fetch: Callable[[State], State] = jax.device_get) -> State:
        """Return the members' state on the host, without the rows of their rings; keys as plain integers.

        Those that only fill devices are left out.
        """
        replay = tuple(ring._replace(rows=()) for ring in self.state.replay)
        return self.population.real(fetch(self.state._replace(key=jax.random.key_data(self.state.key), replay=replay)))

    @property
    def rows(self) -> tuple[Rollout, ...]:
        """The rows of the members' rings, `[P, R, T, E, ...]`, with those that only fill devices."""
        return tuple(ring.rows for ring in self.state.replay)

    def restore(self, saved: State, rows: tuple[Rollout, ...] = ()) -> None:
        """Continue from a snapshot, and from the rows of its rings."""
        rings = zip(saved.replay, rows, strict=True)
        state = self.population.padded(saved._replace(replay=tuple(ring._replace(rows=x) for ring, x in rings)))
        key = jax.random.wrap_key_data(jnp.asarray(state.key), impl="threefry2x32")
        self.state = jax.device_put(state._replace(key=key), self.sharded)
