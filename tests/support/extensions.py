"""Extensions of gpi that need no change in it: two policies, a rule, mixture plans, critics."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from gpi.core import objectives
from gpi.core.agent import Agent, Hyper, Static
from gpi.core.critic import MlpCritic, Regression, regression
from gpi.core.gaussian import HALF_LOG_2PI, GaussianTheta
from gpi.core.network import Change, Net, forward, init_net, reading
from gpi.core.normaliser import Normaliser, normalise
from gpi.core.plan import Plan
from gpi.core.policy import Theta, log_pi
from gpi.core.ring import Replay
from gpi.core.rules import Proposal, standardised
from gpi.core.sample import Buffer, Sample
from gpi.core.solvers import Adam, Direction, adam_step, gradient, init_adam
from gpi.onnx_export import Graph, add_scaled
from gpi.standalone import ContinuousPolicy, GaussianPolicy, clip
from gpi.theory.mixture import uniform_mixture


class Laplace(NamedTuple):
    """A distribution: independent Laplace distributions with a common scale."""

    mean: Array
    log_scale: Array

    def act(self, noise: Array) -> Array:
        return self.mean + jnp.exp(self.log_scale)[None] * noise

    def log_prob(self, action: Array) -> Array:
        z = jnp.abs(action - self.mean) * jnp.exp(-self.log_scale)[None]
        return -jnp.sum(z + self.log_scale[None] + jnp.log(2.0), axis=-1)

    def entropy(self) -> Array:
        return jnp.broadcast_to(jnp.sum(1.0 + self.log_scale + jnp.log(2.0)), self.mean.shape[:1])

    def kl(self, other: Laplace) -> Array:
        gap = (other.log_scale - self.log_scale)[None]
        z = jnp.abs(self.mean - other.mean)
        inside = jnp.exp(-gap) * jnp.exp(-z * jnp.exp(-self.log_scale)[None])
        return jnp.sum(gap - 1.0 + z * jnp.exp(-other.log_scale)[None] + inside, axis=-1)

    def tv(self, other: Laplace) -> Array:
        return jnp.sqrt(-jnp.expm1(-self.kl(other)))  # the bound of Bretagnolle and Huber


class LaplaceTheta(GaussianTheta):
    """The same parameters, and the same most likely action, as a Gaussian policy."""

    kind = "laplace"

    def distribution(self, obs: Array) -> Laplace:  # type: ignore[override]
        return Laplace(forward(self.net, obs), self.log_std)

    @staticmethod
    def draw_noise(key: Array, rows: tuple[int, ...], action_size: int) -> Array:
        return jax.random.laplace(key, (*rows, action_size), jnp.float32)


class LaplacePolicy(GaussianPolicy):
    """How it acts without JAX."""

    kind = "laplace"

    def _perturb(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return out + np.exp(self.log_std) * rng.laplace(size=out.shape).astype(np.float32)


class Squashed(NamedTuple):
    """A distribution: Gaussians of the action before tanh, each state with its deviation.

    tanh is one to one, so ratios, KL and TV are those of the action after it.
    """

    mean: Array
    log_std: Array

    def act(self, noise: Array) -> Array:
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: Array) -> Array:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * z * z + self.log_std + HALF_LOG_2PI, axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(self.log_std + HALF_LOG_2PI + 0.5, axis=-1)

    def kl(self, other: Squashed) -> Array:
        z, gap = (self.mean - other.mean) * jnp.exp(-other.log_std), other.log_std - self.log_std
        return jnp.sum(0.5 * z * z + gap + 0.5 * jnp.expm1(-2.0 * gap), axis=-1)

    def tv(self, other: Squashed) -> Array:
        return jnp.sqrt(-jnp.expm1(-self.kl(other)))


class SquashedTheta(NamedTuple):
    """A policy: one network gives mean and deviation of the action before tanh."""

    net: Net
    kind = "squashed"

    @classmethod
    def init(cls, rng: np.random.Generator, observation_size: int, action_size: int, hidden: tuple[int, ...]):
        return cls(init_net(rng, (observation_size, *hidden, 2 * action_size), 0.01))

    def distribution(self, obs: Array) -> Squashed:
        mean, log_std = jnp.split(forward(self.net, obs), 2, axis=-1)
        return Squashed(mean, jnp.clip(log_std, -5.0, 2.0))

    def project(self) -> SquashedTheta:
        return self

    def under(self, change: Change) -> SquashedTheta:
        return SquashedTheta(reading(self.net, change))

    @staticmethod
    def draw_noise(key: Array, rows: tuple[int, ...], action_size: int) -> Array:
        return jax.random.normal(key, (*rows, action_size), jnp.float32)

    @staticmethod
    def empty_action(action_size: int) -> Array:
        return jnp.zeros(action_size, jnp.float32)

    @staticmethod
    def squash(action: Any) -> Any:
        return np.tanh(action) if isinstance(action, np.ndarray) else jnp.tanh(action)

    def act_on_host(self, out: np.ndarray, noise: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(out, 2, axis=-1)
        return mean + np.exp(np.clip(log_std, -5.0, 2.0)) * noise

    def at_floor(self) -> bool:
        return False

    def deployed(self) -> dict[str, np.ndarray]:
        return {}


class SquashedPolicy(ContinuousPolicy):
    """How it acts without JAX; an export carries this class."""

    kind = "squashed"

    @classmethod
    def shapes(cls, outputs: int) -> dict[str, list[int]]:
        return {"action/low": [outputs // 2], "action/high": [outputs // 2]}

    def _bounded(self, out: np.ndarray) -> np.ndarray:
        return np.tanh(out[..., : self.action_size])

    def _perturb(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mean, log_std = np.split(out, 2, axis=-1)
        return mean + np.exp(clip(log_std, -5.0, 2.0)) * rng.standard_normal(mean.shape, np.float32)


def add_squashed(graph: Graph, policy: ContinuousPolicy, out: str) -> None:
    """Its nodes in ONNX."""
    mean = graph.add("Gather", out, graph.constant(range(policy.action_size), np.int64), axis=1)
    graph.add("Tanh", mean, name="unscaled")
    add_scaled(graph, policy)


def plain_gradient(agent: Agent, s: Sample, key: Array, hyper: Hyper, static: Static) -> Proposal:
    """A rule: one step up the surrogate, unclipped, and one step of the value fit."""
    batch = standardised(s)

    def surrogate(theta: Theta) -> Array:
        return objectives.surrogate(log_pi(theta, s.obs, s.action), batch)

    policy = adam_step(agent.policy, gradient(surrogate, agent.policy.params), agent.lr)
    new = agent._replace(policy=policy, value=agent.value.fit(s, hyper))
    step = ravel_pytree(policy.params)[0] - ravel_pytree(agent.policy.params)[0]
    return Proposal(new, Direction(step, jnp.bool_(True), jnp.bool_(True)), None)


def uniform(B: int, n: int, eps: float, kappa: float) -> Plan:
    """A mixture plan: the last M policies have equal weights."""
    best = uniform_mixture(B, kappa, eps, n)
    return Plan(best.nu, n, best.eps_gpi)


def distances(theta_k: Theta, seen: Buffer) -> Array:
    """Return the measured TV distance of pi_k to the policy of every slot, ½ E|ratio - 1|."""
    obs, action = (x.reshape(-1, *x.shape[3:]) for x in (seen.rollout.obs, seen.rollout.action))
    ratio = jnp.exp(log_pi(theta_k, obs, action) - seen.logp_i.reshape(-1)).reshape(seen.logp_i.shape)
    valid = seen.rollout.valid.astype(ratio.dtype)
    return 0.5 * jnp.sum(valid * jnp.abs(ratio - 1.0), (1, 2)) / jnp.maximum(jnp.sum(valid, (1, 2)), 1.0)


def nearest_first(theta_k: Theta, seen: Buffer, hyper: Hyper) -> Hyper:
    """The less weight, the further a policy has been left behind."""
    return hyper._replace(nu=hyper.nu * jnp.exp(-100.0 * distances(theta_k, seen)))


def measured(B: int, n: int, eps: float, kappa: float) -> Plan:
    """A mixture plan that changes with the data: solved anew at every update."""
    return dataclasses.replace(uniform(B, n, eps, kappa), solve=nearest_first)


class LinearCritic(NamedTuple):
    """A critic: linear in the observation."""

    kernel: Array
    bias: Array

    @classmethod
    def init(cls, rng: np.random.Generator, observation_size: int, hidden: tuple[int, ...]) -> LinearCritic:
        return cls(jnp.zeros(observation_size, jnp.float32), jnp.zeros((), jnp.float32))

    def value(self, obs: Array) -> Array:
        return obs @ self.kernel + self.bias

    def under(self, change: Change) -> LinearCritic:
        bias = self.bias + change.shift @ self.kernel
        return LinearCritic(change.factor * change.stretch * self.kernel, change.factor * bias)


class QCritic(NamedTuple):
    """A critic that learns Q from a replay, beside the V that V-trace reads: its own optimiser, target and draws."""

    v: Regression
    q: Adam[Net]
    target: Net

    @classmethod
    def init(
        cls, rng: np.random.Generator, observation_size: int, action_size: int, hidden: tuple[int, ...]
    ) -> QCritic:
        q = init_net(rng, (observation_size + action_size, *hidden, 1), 1.0)
        v = regression(MlpCritic.init)(rng, observation_size, action_size, hidden)
        assert isinstance(v, Regression)
        return cls(v, init_adam(q), q)

    def value(self, obs: Array) -> Array:
        return self.v.value(obs)

    def fit(self, s: Sample, hyper: Hyper) -> QCritic:
        return self._replace(v=self.v.fit(s, hyper))

    def fit_replay(self, replay: Replay, theta_k: Theta, normaliser: Normaliser, key: Array, hyper: Hyper) -> QCritic:
        """Take one step towards r + gamma Q(s', a'), with a' of pi_k, on 64 transitions of all that is kept."""
        [ring], keys = replay, jax.random.split(key)
        slots, *shape = ring.rows.reward.shape
        held = jnp.minimum(ring.count, slots) * int(np.prod(shape))
        drawn = jax.random.randint(keys[0], (64,), 0, held)
        rows = jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[3:])[drawn], ring.rows)
        seen = jax.tree.map(lambda x: x[:, 0], normalise(normaliser, rows))
        pi: Any = theta_k.distribution(seen.next_obs)
        noise = theta_k.draw_noise(keys[1], seen.action.shape[:-1], seen.action.shape[-1])
        ahead = q_of(self.target, seen.next_obs, pi.act(noise))
        goal = seen.reward + hyper.gamma * jnp.where(seen.terminated, 0.0, ahead)

        def objective(q: Net) -> Array:
            return -0.5 * jnp.mean(jnp.where(seen.valid, goal - q_of(q, seen.obs, seen.action), 0.0) ** 2)

        q = adam_step(self.q, gradient(objective, self.q.params), hyper.value_lr)
        target = jax.tree.map(lambda old, new: 0.98 * old + 0.02 * new, self.target, q.params)
        return self._replace(q=q, target=target)


def q_of(net: Net, obs: Array, action: Array) -> Array:
    """Return Q(s, a)."""
    return forward(net, jnp.concatenate([obs, action], axis=1))[:, 0]
