"""The two ways of taking a step: minibatch gradient ascent, and the natural gradient with a line search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpi.core.sample import Sample

CG_ITERATIONS = 20
CG_TOLERANCE = 1e-10  # of the squared residual, relative to the gradient's: small gradients are solved as well
DAMPING = 0.01
BACKTRACKS = 10
BACKTRACK_FACTOR = 2.0**-0.5
BETA_1, BETA_2, ADAM_EPS = 0.9, 0.999, 1e-7

Tree = TypeVar("Tree")  # a pytree of arrays
Carry = TypeVar("Carry")
Pi = TypeVar("Pi")  # the distributions of a policy


class Adam(NamedTuple, Generic[Tree]):
    """Parameters and the moments of Adam."""

    params: Tree
    first: Tree  # running mean of the gradient
    second: Tree  # running mean of its square
    count: Float[Array, ""]  # steps taken


AnyAdam = TypeVar("AnyAdam", bound=Adam[Any])


def init_adam(params: Tree) -> Adam[Tree]:
    """Return parameters with fresh moments."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Adam(params, zeros, zeros, jnp.zeros((), jnp.float32))


def adam_step(adam: AnyAdam, gradient: Any, lr: Float[Array, ""], max_norm: float | None = None) -> AnyAdam:
    """Take one Adam step up the gradient, whose norm is first clipped at `max_norm`."""
    if max_norm is not None:
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
        scale = max_norm / jnp.maximum(norm, max_norm)
        gradient = jax.tree.map(lambda g: g * scale, gradient)
    count = adam.count + 1.0
    first = jax.tree.map(lambda m, g: BETA_1 * m + (1.0 - BETA_1) * g, adam.first, gradient)
    second = jax.tree.map(lambda m, g: BETA_2 * m + (1.0 - BETA_2) * g * g, adam.second, gradient)
    rate, grow = lr / (1.0 - BETA_1**count), 1.0 / (1.0 - BETA_2**count)
    params = jax.tree.map(lambda x, m, v: x + rate * m / (jnp.sqrt(grow * v) + ADAM_EPS), adam.params, first, second)
    return adam._replace(params=params, first=first, second=second, count=count)


def gradient(objective: Callable[[Tree], Array], at: Tree) -> Tree:
    """Return g, the gradient of an objective."""
    return jax.grad(objective)(at)


def shuffle(key: PRNGKeyArray, total: int) -> Int[Array, " S"]:
    """Return a random order of `total` samples.

    Random high bits over the index in one word, sorted: 20 times faster on a CPU than `jax.random.permutation`, which
    sorts pairs, twice. Samples whose high bits tie (8 pairs of 4,096) keep their order.
    """
    index = (1 << max(1, (total - 1).bit_length())) - 1
    words = jax.random.bits(key, (total,), jnp.uint32) & jnp.uint32(~index & 0xFFFFFFFF)
    order = jnp.sort(words | jnp.arange(total, dtype=jnp.uint32)) & jnp.uint32(index)
    return order.astype(jnp.int32)


def minibatch_ascent(
    step: Callable[[Carry, Sample], Carry],
    carry: Carry,
    sample: Sample,
    key: PRNGKeyArray,
    epochs: int,
    minibatches: int,
) -> Carry:
    """Take a `step` on every minibatch of every epoch, shuffled again each time: minibatch stochastic ascent.

    Weights are not renormalised in a minibatch: its mean stays an unbiased estimate of the batch's. When the batch is
    not a multiple of the minibatches, each epoch leaves out a few samples.
    """
    total = sample.weight.shape[0]
    rows = total // minibatches

    def epoch(carry: Carry, key: Array) -> tuple[Carry, None]:
        order = shuffle(key, total)[: rows * minibatches]
        batches = jax.tree.map(lambda x: x[order].reshape(minibatches, rows, *x.shape[1:]), sample)
        return jax.lax.scan(lambda c, s: (step(c, s), None), carry, batches)

    return jax.lax.scan(epoch, carry, jax.random.split(key, epochs))[0]


def conjugate_gradient(
    matrix: Callable[[Array], Array], g: Float[Array, " D"], iterations: int = CG_ITERATIONS
) -> Float[Array, " D"]:
    """Return v with F v = g, approximately, by conjugate gradient; the last good iterate where F is not positive."""
    squared = g @ g

    def iterate(carry: tuple[Array, Array, Array, Array, Array], _: None) -> tuple[Any, None]:
        v, r, p, rr, going = carry
        q = matrix(p)
        curvature = p @ q
        going = going & (curvature > 0.0) & jnp.isfinite(curvature) & (rr > CG_TOLERANCE * squared)
        alpha = rr / jnp.where(going, curvature, 1.0)
        v_new, r_new = v + alpha * p, r - alpha * q
        rr_new = r_new @ r_new
        going = going & jnp.isfinite(rr_new) & jnp.all(jnp.isfinite(v_new))
        p_new = r_new + rr_new / jnp.where(rr > 0.0, rr, 1.0) * p
        new = (v_new, r_new, p_new, rr_new)
        return (*(jnp.where(going, a, b) for a, b in zip(new, (v, r, p, rr), strict=True)), going), None

    start = (jnp.zeros_like(g), g, g, squared, jnp.isfinite(squared))
    return jax.lax.scan(iterate, start, None, length=iterations)[0][0]


def backtrack(
    theta: Float[Array, " D"], step: Float[Array, " D"], accept: Callable[[Array], Array]
) -> tuple[Float[Array, " D"], Float[Array, ""]]:
    """Return the first accepted theta + step/sqrt(2)^j and its fraction, else theta itself and 0: a line search."""

    def searching(carry: tuple[Array, Array, Array]) -> Array:
        _, j, accepted = carry
        return ~accepted & (j <= BACKTRACKS)

    def attempt(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        fraction, j, _ = carry
        tried = jnp.where(j == 0, 1.0, fraction * BACKTRACK_FACTOR).astype(step.dtype)
        candidate = theta + tried * step
        return tried, j + 1, jnp.all(jnp.isfinite(candidate)) & accept(candidate)

    one = jnp.ones((), step.dtype)
    fraction, _, accepted = jax.lax.while_loop(searching, attempt, (one, jnp.int32(0), jnp.bool_(False)))
    # `where`, not arithmetic: a refused step returns the old parameters bit for bit, even if the step is not finite.
    return jnp.where(accepted, theta + fraction * step, theta), jnp.where(accepted, fraction, 0.0)


def damped_fisher(
    policy: Callable[[Array], Pi], divergence: Callable[[Pi], Array], theta_k: Float[Array, " D"]
) -> Callable[[Array], Array]:
    """Return v -> (F + damping) v, with F = J'HJ the Fisher matrix at theta_k: there, the Hessian of the expected KL.

    J is the derivative of the policy's distributions, H the Hessian of the divergence in them. The divergence is at its
    minimum, so this is its whole Hessian in theta, at half the cost of differentiating the gradient.
    """
    pi_k, forward = jax.linearize(policy, theta_k)
    _, curvature = jax.linearize(jax.grad(divergence), pi_k)
    backward = jax.linear_transpose(forward, theta_k)

    def product(v: Array) -> Array:
        (hv,) = backward(curvature(forward(v)))
        return hv + DAMPING * v

    return product


class Direction(NamedTuple):
    """A proposed step in all parameters, flattened."""

    step: Float[Array, " D"]
    usable: Bool[Array, ""]  # whether there is a step at all
    finite: Bool[Array, ""]  # whether the gradient was finite


def natural_direction(
    objective: Callable[[Tree], Array],
    policy: Callable[[Tree], Pi],
    divergence: Callable[[Pi], Array],
    theta_k: Tree,
    delta: Float[Array, ""],
) -> Direction:
    """Return the trust-region step of TRPO (section VI-B) before its line search: beta v.

    g is the gradient of `objective`, F the Fisher matrix, v = F⁻¹g by conjugate gradient, beta = sqrt(2 delta / v'Fv);
    both with the damped F (docs/deviations.md).
    """
    flat, unravel = ravel_pytree(theta_k)
    g = gradient(lambda x: objective(unravel(x)), flat)
    fisher = damped_fisher(lambda x: policy(unravel(x)), divergence, flat)
    v = conjugate_gradient(fisher, g)
    beta = jnp.sqrt(2.0 * delta / (v @ fisher(v)))
    usable = jnp.isfinite(beta) & (beta > 0.0)  # neither without positive curvature nor where float32 ends
    return Direction(jnp.where(usable, beta * v, 0.0), usable, jnp.all(jnp.isfinite(g)))


class StepResult(NamedTuple, Generic[Tree]):
    """The outcome of a proposed step."""

    theta: Tree  # the new parameters or, bit for bit, the old ones
    accepted: Bool[Array, ""]
    fraction: Float[Array, ""]  # of the proposed step that was taken; 0 when it was refused
    finite: Bool[Array, ""]  # whether the gradient was finite


def take_step(theta_k: Tree, direction: Direction, accept: Callable[[Tree], Array]) -> StepResult[Tree]:
    """Take the longest part of a step, whole or shortened by sqrt(2)^j, that is accepted; otherwise none of it."""
    flat, unravel = ravel_pytree(theta_k)
    new, fraction = backtrack(flat, direction.step, lambda x: direction.usable & accept(unravel(x)))
    return StepResult(unravel(new), fraction > 0.0, fraction, direction.finite)
