"""Dense networks, of which policies and critics are made."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Float

from gpi.core.solvers import Tree
from gpi.standalone import between


class Layer(NamedTuple):
    """One dense layer, and what its outputs go through on their way to the next."""

    kernel: Float[Array, "... _ _"]
    bias: Float[Array, "... _"]
    activation: str = "tanh"  # of `standalone.ACTIVATIONS`
    layer_norm: bool = False


def _with_keys(layer: Layer) -> tuple[Any, tuple[str, bool]]:
    arrays = [(GetAttrKey(name), getattr(layer, name)) for name in Layer._fields[:2]]
    return arrays, (layer.activation, layer.layer_norm)


# The two arrays are a layer's leaves, as in checkpoints; the rest shapes the compiled program.
jax.tree_util.register_pytree_with_keys(Layer, _with_keys, lambda rest, arrays: Layer._make((*arrays, *rest)))

Net = tuple[Layer, ...]  # nothing after the last layer


def shaped(params: Tree, activation: str, *, layer_norm: bool) -> Tree:
    """Return parameters whose networks have this activation, and LayerNorm or not."""

    def shape(node: Any) -> Any:
        return node._replace(activation=activation, layer_norm=layer_norm) if isinstance(node, Layer) else node

    return jax.tree.map(shape, params, is_leaf=lambda node: isinstance(node, Layer))


def init_net(rng: np.random.Generator, sizes: tuple[int, ...], last_gain: float) -> Net:
    """Return a network with orthogonal kernels of gain sqrt 2 (`last_gain` in the last layer) and zero biases.

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


class Change(NamedTuple):
    """Other units for what a network reads and predicts: x = x' stretch + shift, and outputs times `factor`."""

    stretch: Float[Array, " I"]
    shift: Float[Array, " I"]
    factor: Float[Array, ""]


@runtime_checkable
class Convertible(Protocol):
    """Parameters that a change of units leaves the function they were: what a still normaliser needs (`still.py`)."""

    def under(self, change: Change, /) -> Self:
        """Return the parameters of the same function of raw observations, in other units; a policy has no `factor`."""
        ...


def reading(net: Net, change: Change) -> Net:
    """Return the network that gives the same outputs when its inputs are in other units."""
    first, *rest = net
    bias = first.bias + jnp.sum(change.shift[:, None] * first.kernel, axis=0)
    return (first._replace(kernel=change.stretch[:, None] * first.kernel, bias=bias), *rest)


def predicting(net: Net, change: Change) -> Net:
    """Return the network whose outputs are in other units."""
    *rest, last = net
    return (*rest, last._replace(kernel=change.factor * last.kernel, bias=change.factor * last.bias))


def forward(net: Net, x: Float[Array, "S I"]) -> Float[Array, "S O"]:
    """Return the output of a network for every row."""
    for layer in net[:-1]:
        x = between(x @ layer.kernel + layer.bias[None], layer.activation, normed=layer.layer_norm, xp=jnp)
    return x @ net[-1].kernel + net[-1].bias[None]
