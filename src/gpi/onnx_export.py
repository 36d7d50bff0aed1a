"""A policy as an ONNX graph, built node by node, and acting with it in ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gpi import standalone
from gpi.errors import UsageError
from gpi.standalone import LAYER_NORM_EPS, CategoricalPolicy, ContinuousPolicy, GaussianPolicy, Policy

OPSET, IR_VERSION = 13, 7  # of 2021: every runtime since then reads them, and nothing here needs a newer one


class Graph:
    """An ONNX graph that grows node by node."""

    def __init__(self, onnx: Any):
        """Start with no node; `onnx` is the module."""
        self.onnx, self.nodes, self.constants = onnx, [], []

    def constant(self, value: object, dtype: type = np.float32) -> str:
        """Add a constant; return its name."""
        name = f"constant{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        """Add a node; return the name of its output."""
        name = name or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name


def require_onnx() -> tuple[ModuleType, ModuleType]:
    """Return the modules onnx and onnxruntime, which are optional; raise UsageError where one is missing."""
    try:
        import onnx
        import onnx.checker
        import onnx.numpy_helper
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            f'module {error.name!r} is missing, but ONNX needs it; run `pip install "gpi-rl[onnx]"`'
        ) from error
    return onnx, onnxruntime


def encode_onnx(policy: Policy) -> bytes:
    """Write a policy as an ONNX file: `observation` [N, O] to `action` ([N, A], or int64 [N]) and `unscaled`."""
    onnx, _ = require_onnx()
    graph = Graph(onnx)
    ADD_ACTIONS[policy.kind](graph, policy, add_network(graph, policy, add_guard(graph, "observation")))
    number, size = onnx.TensorProto.FLOAT, policy.action_size
    action = (onnx.TensorProto.INT64, ["N"]) if policy.discrete else (number, ["N", size])
    shape = onnx.helper.make_tensor_value_info
    inputs = [shape("observation", number, ["N", policy.obs_mean.size])]
    outputs = [shape("action", *action), shape("unscaled", number, ["N", size])]
    made = onnx.helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    opset = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(made, producer_name="gpi", ir_version=IR_VERSION, opset_imports=opset)
    facts = {key: value for key, value in policy.about.items() if isinstance(value, str)}
    described = json.dumps(policy.describe(), allow_nan=False)
    onnx.helper.set_model_props(model, facts | {"format": policy.describe()["format"], "description": described})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def add_guard(graph: Graph, obs: str) -> str:
    """Add nodes that pass observations on, and fail where one is NaN or infinite.

    ONNX cannot raise. So bad values are counted, and the count is an index into a table whose only index is 0: with
    one bad value or more, the lookup fails in ONNX Runtime. Its result is added to the observations, so that it is
    never left out.
    """
    bad = graph.add("Or", graph.add("IsNaN", obs), graph.add("IsInf", obs))
    count = graph.add("ReduceSum", graph.add("Cast", bad, to=graph.onnx.TensorProto.INT64), keepdims=0)
    return graph.add("Add", obs, graph.add("Gather", graph.constant([0.0]), count, name="observation_must_be_finite"))


def add_network(graph: Graph, policy: Policy, obs: str) -> str:
    """Add the normaliser and the layers."""
    centred = graph.add("Sub", obs, graph.constant(policy.obs_mean))
    x = graph.add("Div", centred, graph.constant(policy.obs_std))
    x = graph.add("Clip", x, graph.constant(-standalone.CLIP), graph.constant(standalone.CLIP))
    for i, (kernel, bias) in enumerate(policy.layers):
        x = add_between(graph, policy, x) if i else x
        x = graph.add("Gemm", x, graph.constant(kernel), graph.constant(bias))
    return x


def add_between(graph: Graph, policy: Policy, x: str) -> str:
    """Add the activation of a layer, after LayerNorm where the policy has it."""
    if policy.layer_norm:
        x = graph.add("Sub", x, graph.add("ReduceMean", x, axes=[-1]))
        variance = graph.add("ReduceMean", graph.add("Mul", x, x), axes=[-1])
        x = graph.add("Div", x, graph.add("Sqrt", graph.add("Add", variance, graph.constant(LAYER_NORM_EPS))))
    return ACTIVATE[policy.activation](graph, x)


ACTIVATE: dict[str, Callable[[Graph, str], str]] = {
    "tanh": lambda graph, x: graph.add("Tanh", x),
    "relu": lambda graph, x: graph.add("Relu", x),
    "silu": lambda graph, x: graph.add("Mul", x, graph.add("Sigmoid", x)),
}


def add_gaussian(graph: Graph, policy: GaussianPolicy, out: str) -> None:
    """Add the nodes that clip means to `unscaled`, and scale them to the `action` that the environment takes."""
    graph.add("Clip", out, graph.constant(-1.0), graph.constant(1.0), name="unscaled")
    add_scaled(graph, policy)


def add_scaled(graph: Graph, policy: ContinuousPolicy) -> None:
    """Add the nodes that scale `unscaled` to the `action` that the environment takes."""
    scaled = graph.add("Mul", "unscaled", graph.constant(policy.half))
    scaled = graph.add("Add", scaled, graph.constant(policy.centre))
    scaled = graph.add("Max", scaled, graph.constant(policy.low))  # rounding must not pass a bound
    graph.add("Min", scaled, graph.constant(policy.high), name="action")


def add_categorical(graph: Graph, policy: CategoricalPolicy, out: str) -> None:
    """Add the nodes that name the logits `unscaled`, and turn them into the `action` that the environment takes."""
    graph.add("Identity", out, name="unscaled")
    best = graph.add("ArgMax", "unscaled", axis=1, keepdims=0)
    graph.add("Add", best, graph.constant(policy.start, np.int64), name="action")


ADD_ACTIONS: dict[str, Callable[[Graph, Any, str], None]] = {"gaussian": add_gaussian, "categorical": add_categorical}
"""The nodes of each kind of policy, from the outputs of its network to `unscaled` and `action`."""


def load_onnx(path: Path) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return a function that acts with the exported file in ONNX Runtime: observations to `action` and `unscaled`."""
    _, runtime = require_onnx()
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def act(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        action, unscaled = session.run(["action", "unscaled"], {"observation": obs})
        return action, unscaled

    return act
