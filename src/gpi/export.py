"""A trained policy for machines without gpi: as one NumPy file, or as ONNX, compared with the original once written.

    from gpi.export import export
    export("runs/spin", "spin")                         # spin/policy.py, policy.json, policy.safetensors
    export("runs/spin", "spin.onnx", format="onnx")     # needs: pip install "gpi-rl[onnx]"

Both forms take observations as the environment gives them and return actions as it takes them. Neither acts on NaN.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpi import files, policy_file, standalone
from gpi.errors import DiskError, GpiError, UsageError
from gpi.standalone import FORMAT, Policy

FORMATS = ("numpy", "onnx")
OBSERVATIONS = 10_000
TOLERANCE = 1e-5  # of actions within [-1, 1], and of logits relative to the largest
OPSET, IR_VERSION = 13, 7  # of 2021: every runtime since then reads them, and nothing here needs a newer one
REFUSED = "nothing was kept; keep the source and report this"


class Exported(NamedTuple):
    """What an export wrote, and how far it was from the original when compared."""

    files: tuple[Path, ...]
    worst: float
    """The largest difference, of actions within [-1, 1], or of logits relative to the largest."""
    observations: int


Outputs = tuple[np.ndarray, np.ndarray]  # actions, and what `Policy.unscaled` gives
Act = Callable[[np.ndarray], Outputs]


def export(source: str | Path | Policy, out: str | Path, format: str = "numpy", seed: int | None = None) -> Exported:
    """Write a policy in another form, and compare it with the original on 10,000 observations.

    `source` is a run directory (then `seed` chooses, by default the first), a policy file or a policy. `numpy` makes
    `out` a directory of three files, `onnx` one file. What does not agree to 1e-5 is removed and raises `GpiError`.
    """
    if format not in FORMATS:
        raise UsageError(f"format {format!r} is not known; it must be one of {', '.join(FORMATS)}")
    policy, path = checked(source) if isinstance(source, Policy) else policy_file.load(source, seed), Path(out)
    if format == "onnx":
        content, act_of, claim = {path: onnx_model(policy)}, onnx_act, claim_file
    else:
        content = {path / name: data for name, data in numpy_files(policy).items()}
        act_of, claim = numpy_act, claim_directory
    made = claim(path)
    try:
        for file, data in content.items():
            files.write(file, data)
        with files.directory(path.parent) as place:
            os.fsync(place)  # a new directory, too, must outlast a power cut
        return Exported(tuple(content), compare(policy, act_of(path)), OBSERVATIONS)
    except BaseException:
        withdraw(content, made)
        raise


def checked(policy: Policy) -> Policy:
    """A policy that somebody may have made by hand, if one could load it from a file."""
    try:
        return standalone.assemble(arrays_of(policy), policy.about)
    except (ValueError, KeyError) as error:
        raise UsageError(f"this policy cannot be exported: {error}; take one that `gpi.load` returned") from error


# --- places -------------------------------------------------------------------------------------------------------


def claim_file(path: Path) -> list[Path]:
    """Make sure that a file can be written without replacing anything; returns the directories made for it."""
    if path.suffix != ".onnx":
        raise UsageError(f"{path} does not end in .onnx; name a file that does")
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already; remove it or name another file")
    return make_directories(path.parent)


def claim_directory(path: Path) -> list[Path]:
    """Make sure that an empty directory is there; returns the directories made for it."""
    if path.exists() or path.is_symlink():
        if not path.is_dir() or any(path.iterdir()):
            raise UsageError(f"{path} exists and is not an empty directory; remove it or name another")
        return []
    return make_directories(path)


def make_directories(path: Path) -> list[Path]:
    """Make a directory and those above it; returns what was made, the innermost first."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"{path} cannot be made: {error.strerror}; name another place") from error
    return missing


def withdraw(content: dict[Path, bytes], made: list[Path]) -> None:
    """Remove what an export wrote and made."""
    for file in content:
        file.unlink(missing_ok=True)
    for place in made:
        with suppress(OSError):  # not empty: somebody else has put something there
            place.rmdir()


# --- NumPy --------------------------------------------------------------------------------------------------------


def arrays_of(policy: Policy) -> dict[str, np.ndarray]:
    """The arrays that acting needs, by the names they have in a policy's file."""
    arrays = {"obs/mean": policy.obs_mean, "obs/std": policy.obs_std}
    for i, (kernel, bias) in enumerate(policy.layers):
        arrays |= {f"policy/layer{i}/kernel": kernel, f"policy/layer{i}/bias": bias}
    if policy.log_std is None or policy.low is None or policy.high is None:
        return arrays | {"action/start": np.array(policy.start, np.int64)}
    return arrays | {"policy/log_std": policy.log_std, "action/low": policy.low, "action/high": policy.high}


def description(policy: Policy) -> dict[str, Any]:
    """What a person or a program wants to know of a policy before using it."""
    sizes = [policy.obs_mean.size, *(bias.size for _, bias in policy.layers)]
    facts = {"format": FORMAT, "kind": "categorical" if policy.log_std is None else "gaussian", "sizes": sizes}
    if policy.low is None or policy.high is None:
        return facts | {"start": policy.start, "training": policy.about}
    return facts | {"low": policy.low.tolist(), "high": policy.high.tolist(), "training": policy.about}


def numpy_files(policy: Policy) -> dict[str, bytes]:
    """The files of the NumPy form; the description comes last, and without it there is no policy."""
    arrays = arrays_of(policy)
    data = files.encode(arrays)
    described = description(policy) | {
        "arrays": {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()},
        "file": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()},
    }
    described["sha256"] = standalone.digest(described)
    code = Path(standalone.__file__).read_bytes()
    return {"policy.safetensors": data, "policy.py": code, "policy.json": files.dump_json(described)}


class Loader(importlib.machinery.SourceFileLoader):
    """Imports a file without leaving __pycache__ beside it."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing."""


def numpy_act(directory: Path) -> Act:
    """How the exported files act, by their own code and not by ours."""
    path = str(directory / "policy.py")
    spec = importlib.util.spec_from_loader("exported_policy", Loader("exported_policy", path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    policy = module.load(directory)
    return lambda obs: (policy(obs), policy.unscaled(obs))


# --- ONNX ---------------------------------------------------------------------------------------------------------


class Graph:
    """An ONNX graph that grows node by node."""

    def __init__(self, onnx: Any):
        """Nothing yet."""
        self.onnx, self.nodes, self.constants = onnx, [], []

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """A new constant's name."""
        name = f"constant{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A new node; returns the name of its output."""
        name = name or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name


def require_onnx() -> tuple[Any, Any]:
    """The modules onnx and onnxruntime."""
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


def onnx_model(policy: Policy) -> bytes:
    """The policy as an ONNX file: `observation` [N, O] to `action` ([N, A], or int64 [N]) and `unscaled`."""
    onnx, _ = require_onnx()
    graph = Graph(onnx)
    actions(graph, policy, network(graph, policy, guarded(graph, "observation")))
    number, size = onnx.TensorProto.FLOAT, policy.layers[-1][1].size
    chosen = (onnx.TensorProto.INT64, ["N"]) if policy.log_std is None else (number, ["N", size])
    shape = onnx.helper.make_tensor_value_info
    inputs = [shape("observation", number, ["N", policy.obs_mean.size])]
    outputs = [shape("action", *chosen), shape("unscaled", number, ["N", size])]
    made = onnx.helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    opset = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(made, producer_name="gpi", ir_version=IR_VERSION, opset_imports=opset)
    facts = {key: value for key, value in policy.about.items() if isinstance(value, str)}
    described = json.dumps(description(policy), allow_nan=False)
    onnx.helper.set_model_props(model, facts | {"format": FORMAT, "description": described})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def guarded(graph: Graph, obs: str) -> str:
    """The observations, but an error where one is NaN or infinite.

    ONNX cannot raise. So bad values are counted, and the count is a place in a table that has only place 0: with one
    bad value or more, ONNX Runtime refuses to look there. What it finds is added, so that it has to look.
    """
    bad = graph.add("Or", graph.add("IsNaN", obs), graph.add("IsInf", obs))
    count = graph.add("ReduceSum", graph.add("Cast", bad, to=graph.onnx.TensorProto.INT64), keepdims=0)
    return graph.add("Add", obs, graph.add("Gather", graph.constant([0.0]), count, name="observation_must_be_finite"))


def network(graph: Graph, policy: Policy, obs: str) -> str:
    """Normalised observations through the layers."""
    centred = graph.add("Sub", obs, graph.constant(policy.obs_mean))
    x = graph.add("Div", centred, graph.constant(policy.obs_std))
    x = graph.add("Clip", x, graph.constant(-standalone.CLIP), graph.constant(standalone.CLIP))
    for i, (kernel, bias) in enumerate(policy.layers):
        x = graph.add("Tanh", x) if i else x
        x = graph.add("Gemm", x, graph.constant(kernel), graph.constant(bias))
    return x


def actions(graph: Graph, policy: Policy, out: str) -> None:
    """The network's output as `unscaled`, and as the `action` that the environment takes."""
    if policy.low is None or policy.high is None:
        graph.add("Identity", out, name="unscaled")
        best = graph.add("ArgMax", "unscaled", axis=1, keepdims=0)
        graph.add("Add", best, graph.constant(policy.start, np.int64), name="action")
        return
    graph.add("Clip", out, graph.constant(-1.0), graph.constant(1.0), name="unscaled")
    scaled = graph.add("Mul", "unscaled", graph.constant((policy.high - policy.low) / 2))
    scaled = graph.add("Add", scaled, graph.constant((policy.low + policy.high) / 2))
    scaled = graph.add("Max", scaled, graph.constant(policy.low))  # rounding must not pass a bound
    graph.add("Min", scaled, graph.constant(policy.high), name="action")


def onnx_act(path: Path) -> Act:
    """How the exported file acts, by ONNX Runtime."""
    _, runtime = require_onnx()
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda obs: tuple(session.run(["action", "unscaled"], {"observation": obs}))


# --- comparing ----------------------------------------------------------------------------------------------------


def observations_around(policy: Policy, count: int = OBSERVATIONS, seed: int = 0) -> np.ndarray:
    """Observations as in training and, row by row, up to a thousand deviations away, where clipping begins."""
    rng = np.random.default_rng(seed)
    spread = np.resize([0.1, 1.0, 1.0, 3.0, 10.0, 1000.0], count)[:, None]
    noise = spread * rng.standard_normal((count, policy.obs_mean.size))
    obs = policy.obs_mean + policy.obs_std * noise
    most = np.finfo(np.float32).max
    return np.clip(obs, -most, most).astype(np.float32)


def compare(policy: Policy, act: Act) -> float:
    """The largest difference between a policy and its export; GpiError if it is too large."""
    obs = observations_around(policy)
    mine, theirs = (policy(obs), policy.unscaled(obs)), act(obs)
    for ours, other in zip(mine, theirs, strict=True):
        if other.shape != ours.shape or other.dtype != ours.dtype or not np.isfinite(other).all():
            wanted = f"finite {ours.dtype}{list(ours.shape)}"
            raise GpiError(f"the export gives {other.dtype}{list(other.shape)} instead of {wanted}; {REFUSED}")
    difference, agree = (apart_discrete if policy.log_std is None else apart_box)(policy, mine, theirs)
    if difference > TOLERANCE:
        raise GpiError(f"the export differs by {difference:.1e}, at most {TOLERANCE:.0e} is allowed; {REFUSED}")
    if not agree:
        raise GpiError(f"the export chooses other actions, where they must be the same; {REFUSED}")
    return difference


def apart_box(policy: Policy, mine: Outputs, theirs: Outputs) -> tuple[float, bool]:
    """How far clipped means are from each other, and whether actions within the bounds are as near."""
    assert policy.low is not None and policy.high is not None
    # Where bounds are far from zero, float32 itself is coarser than the tolerance.
    coarse = np.spacing(np.maximum(np.abs(policy.low), np.abs(policy.high)))
    room = TOLERANCE * (policy.high.astype(np.float64) - policy.low) / 2 + coarse
    agree = np.abs(theirs[0].astype(np.float64) - mine[0]) <= room
    return float(np.abs(theirs[1] - mine[1]).max()), bool(agree.all())


def apart_discrete(policy: Policy, mine: Outputs, theirs: Outputs) -> tuple[float, bool]:
    """How far logits are from each other, relative to the largest, and whether all clear choices are the same."""
    apart = np.abs(theirs[1].astype(np.float64) - mine[1])
    scale = np.maximum(np.abs(mine[1]).max(1, keepdims=True), 1.0)
    ranked = np.sort(mine[1], axis=1)
    clear = ranked[:, -1] - ranked[:, -2:-1].max(1, initial=-np.inf) > 2.0 * apart.max(1)
    return float((apart / scale).max()), bool((mine[0] == theirs[0])[clear].all())
