"""The policy pi (Gaussian or categorical) and the value network V, as parameters and pure functions.

Functions take observations `[S, O]`: one row per sample.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

MIN_LOG_STD = math.log(1e-3)
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Layer(NamedTuple):
    """One dense layer."""

    kernel: Array  # [in, out]
    bias: Array  # [out]


Net = tuple[Layer, ...]  # tanh between layers, none after the last


class Theta(NamedTuple):
    """Parameters theta of the policy; without `log_std` the policy is categorical."""

    net: Net
    log_std: Array | None  # [A], state-independent


class Gaussian(NamedTuple):
    """pi(.|s): a multivariate Gaussian with diagonal covariance."""

    mean: Array  # [S, A]
    log_std: Array  # [A]


class Categorical(NamedTuple):
    """pi(.|s) over finitely many actions."""

    logits: Array  # [S, A], not normalised: the KL divergence is then at a minimum in them, as the Fisher matrix needs


Distribution = Gaussian | Categorical


def init_net(rng: np.random.Generator, sizes: tuple[int, ...], last_gain: float) -> Net:
    """A network with orthogonal kernels of gain sqrt 2 (`last_gain` in the last layer) and zero biases.

    In NumPy: compiling a QR decomposition would cost every run three seconds.
    """
    gains = [math.sqrt(2.0)] * (len(sizes) - 2) + [last_gain]

    def orthogonal(rows: int, columns: int) -> np.ndarray:
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))[None]  # uniform over orthogonal matrices
        return q if rows >= columns else q.T

    return tuple(
        Layer(jnp.asarray(gain * orthogonal(m, n), jnp.float32), jnp.zeros(n, jnp.float32))
        for gain, m, n in zip(gains, sizes[:-1], sizes[1:], strict=True)
    )


def init_theta(
    rng: np.random.Generator, observation_size: int, action_size: int, hidden: tuple[int, ...], *, discrete: bool
) -> Theta:
    """The initial policy pi_0: last layer of gain 0.01, standard deviation 1."""
    net = init_net(rng, (observation_size, *hidden, action_size), 0.01)
    return Theta(net, None if discrete else jnp.zeros(action_size, jnp.float32))


def init_phi(rng: np.random.Generator, observation_size: int, hidden: tuple[int, ...]) -> Net:
    """The initial value network: last layer of gain 1."""
    return init_net(rng, (observation_size, *hidden, 1), 1.0)


def forward(net: Net, obs: Array) -> Array:
    """Output of a tanh network."""
    x = obs
    for layer in net[:-1]:
        x = jnp.tanh(x @ layer.kernel + layer.bias[None])
    return x @ net[-1].kernel + net[-1].bias[None]


def value(phi: Net, obs: Array) -> Array:
    """V(s), the value function's estimate."""
    return forward(phi, obs)[:, 0]


def distribution(theta: Theta, obs: Array) -> Distribution:
    """pi(.|s) for every row of observations."""
    out = forward(theta.net, obs)
    if theta.log_std is None:
        return Categorical(out)
    # Below the floor the gradient is zero on purpose: ratios of a collapsed policy overflow.
    return Gaussian(out, jnp.maximum(theta.log_std, MIN_LOG_STD))


def project(theta: Theta) -> Theta:
    """The nearest parameters whose standard deviation is at its floor or above (docs/deviations.md)."""
    return theta if theta.log_std is None else theta._replace(log_std=jnp.maximum(theta.log_std, MIN_LOG_STD))


def draw_noise(key: Array, shape: tuple[int, ...], *, discrete: bool) -> Array:
    """The randomness of an action, drawn ahead of it: one number per action dimension."""
    draw = jax.random.gumbel if discrete else jax.random.normal
    return draw(key, shape, jnp.float32)


def act(dist: Distribution, noise: Array) -> Array:
    """a ~ pi(.|s) from its noise; zero noise gives the mode."""
    if isinstance(dist, Categorical):
        return jnp.argmax(dist.logits + noise, axis=-1).astype(jnp.int32)
    return dist.mean + jnp.exp(dist.log_std)[None] * noise


def log_prob(dist: Distribution, action: Array) -> Array:
    """log pi(a|s), of the action before any clipping by the environment."""
    if isinstance(dist, Categorical):
        return jnp.take_along_axis(jax.nn.log_softmax(dist.logits), action[:, None], axis=-1)[:, 0]
    z = (action - dist.mean) * jnp.exp(-dist.log_std)[None]
    return -0.5 * jnp.sum(z * z, axis=-1) - jnp.sum(dist.log_std + HALF_LOG_2PI)


def entropy(dist: Distribution) -> Array:
    """Entropy of pi(.|s)."""
    if isinstance(dist, Categorical):
        logp = jax.nn.log_softmax(dist.logits)
        return -jnp.sum(jnp.exp(logp) * logp, axis=-1)
    per_state = jnp.sum(dist.log_std + HALF_LOG_2PI + 0.5)
    return jnp.broadcast_to(per_state, dist.mean.shape[:1])


def kl(p: Distribution, q: Distribution) -> Array:
    """KL(p‖q)(s), the forward KL divergence of q from p, as in eq (15): kl(pi_k, pi)."""
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        logp, logq = jax.nn.log_softmax(p.logits), jax.nn.log_softmax(q.logits)
        return jnp.sum(jnp.exp(logp) * (logp - logq), axis=-1)
    assert isinstance(p, Gaussian) and isinstance(q, Gaussian)
    z = (p.mean - q.mean) * jnp.exp(-q.log_std)[None]
    gap = q.log_std - p.log_std  # log of the ratio of standard deviations
    return 0.5 * jnp.sum(z * z, axis=-1) + jnp.sum(gap + 0.5 * jnp.expm1(-2.0 * gap))
