"""A trained policy on its own: one file, NumPy in, NumPy out, normaliser and action bounds inside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpi import files, standalone
from gpi.errors import FileError, UsageError
from gpi.standalone import FORMAT, LATER_FORMAT, Facts, Policy

if TYPE_CHECKING:  # acting with a policy must not start JAX
    from gpi.core.normaliser import Normaliser
    from gpi.core.policy import Theta
    from gpi.envs.pool import Spec

SIZE_LIMIT = 1 << 30


def save(path: Path, theta: Theta, normaliser: Normaliser, spec: Spec, about: dict[str, str]) -> None:
    """Write a policy's file."""
    files.write(path, content(theta, normaliser, spec, about))


def content(theta: Theta, normaliser: Normaliser, spec: Spec, about: dict[str, str]) -> bytes:
    """Return a policy's file: safetensors, which cannot carry code, with facts about its training in the header."""
    written = standalone.form_written(form_of(theta))
    text = json.dumps({**written, **about, "observation_names": spec.observation_names})
    return encode(arrays_of(theta, normaliser, spec), text)


def policy_of(theta: Theta, normaliser: Normaliser, spec: Spec, about: dict[str, str]) -> Policy:
    """Return the policy that `save` would write."""
    described = {**about, "observation_names": list(spec.observation_names)}
    return assemble(arrays_of(theta, normaliser, spec), described, form_of(theta))


def form_of(theta: Theta) -> Facts:
    """Return what must be known, besides its arrays, to act with a policy."""
    first = theta.net[0]
    return {"kind": theta.kind, "activation": first.activation, "layer_norm": first.layer_norm}


def arrays_of(theta: Theta, normaliser: Normaliser, spec: Spec) -> dict[str, np.ndarray]:
    """Return a policy's arrays by the names they have in its file."""
    import jax

    from gpi.core.normaliser import std

    with jax.enable_x64(True):  # statistics are in float64
        scale = std(normaliser.returns)
    read = normaliser.in_force
    arrays: dict[str, object] = {"obs/mean": read.centre, "obs/std": read.scale, "returns/std": scale}
    for i, layer in enumerate(theta.net):
        arrays |= {f"policy/layer{i}/kernel": layer.kernel, f"policy/layer{i}/bias": layer.bias}
    arrays |= theta.deployed()
    if spec.discrete:
        arrays["action/start"] = np.array(spec.start, np.int64)
    else:
        low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
        arrays |= {"action/low": low, "action/high": high}
    return {name: np.asarray(x) for name, x in arrays.items()}


def encode(arrays: dict[str, np.ndarray], text: str) -> bytes:
    """Write a policy's file with the hash of its content: no other bytes mean the same, so damage is noticed."""
    return files.seal({"gpi": text}, lambda metadata: files.encode(arrays, metadata))


def load(path: Path) -> Policy:
    """Load the policy in a file, or in a directory that `gpi export` made.

    No code in the file is run, and all of it is checked: if it is damaged or not a policy, `gpi.errors.FileError` is
    raised.
    """
    if (path / "policy.json").is_file():
        try:
            return standalone.load(path)
        except ValueError as error:
            raise FileError(str(error)) from error
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a policy file or a run directory")
    try:
        data = files.read(path.parent, path.name, SIZE_LIMIT)
        require_policy_file(path, data)
        return parse(data)
    except FileError as error:
        raise FileError(f"policy {path}: {error}") from error


def require_policy_file(path: Path, data: bytes) -> None:
    """Raise FileError for a file of another kind, such as a table of the run; a damaged policy file passes."""
    if data[8:9] == b"{" or (data and path.suffix == ".safetensors"):
        return
    run = path.parent if (path.parent / "config.json").is_file() else None
    remedy = f"name the run directory, {run}" if run else "name the run directory, or a .safetensors file in it"
    raise FileError(f"not a policy file; {remedy}")


def parse(data: bytes) -> Policy:
    """Return the policy in a file's bytes, all of them checked."""
    arrays, metadata = files.decode(data, finite=True)
    text = metadata.get("gpi", "{}")
    about = files.parse_json(text.encode(), "the description")
    if "gpi" not in metadata:
        raise FileError("not a policy that gpi trained; of an export name the directory")
    try:
        form = standalone.form_read(about)
    except (ValueError, KeyError):
        form = None
    about = {name: x for name, x in about.items() if name not in ("format", *(form or ()))}
    if form is None or not is_valid_description(about):
        expected = f"{FORMAT} or {LATER_FORMAT}"
        raise FileError(f"not a policy of this version (expected {expected}, found {files.shown(text)})")
    if data != encode(arrays, text):
        raise FileError("damaged (expected the hash of its content, found another)")
    return assemble(arrays, about, form)


def is_valid_description(about: Facts) -> bool:
    """Return whether a description has a task, a seed, a list of the observations' names, and otherwise only text."""
    names, texts = about.get("observation_names"), {name: x for name, x in about.items() if name != "observation_names"}
    return (
        isinstance(names, list)
        and all(isinstance(text, str) for text in (*names, *texts.values()))
        and "task" in texts
        and re.fullmatch(r"[0-9]{1,7}", texts.get("seed", "")) is not None
    )


def assemble(arrays: dict[str, np.ndarray], about: Facts, form: Facts) -> Policy:
    """Build a policy from a file's arrays; raise FileError unless names, types and shapes fit together."""
    returns = arrays.get("returns/std")
    if returns is None or returns.shape != () or returns.dtype != np.float64:
        raise FileError(f"other arrays than a policy's (expected a number returns/std, found {files.shown(returns)})")
    try:
        return standalone.assemble({name: x for name, x in arrays.items() if name != "returns/std"}, about, form)
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"other arrays than a policy's ({error})") from error


def list_policy_files(run: Path, kind: str = "policy") -> dict[int, Path]:
    """Return the files of a run's policies by seed; `kind` is policy, those of its end, or best."""
    names = [(re.fullmatch(rf"{kind}-([0-9]{{1,9}})\.safetensors", file.name), file) for file in sorted(run.iterdir())]
    return dict(sorted((int(match[1]), file) for match, file in names if match))


def number_in(about: Facts, name: str) -> float:
    """Return a number that a description holds as text; NaN where there is none."""
    try:
        return float(about.get(name, "nan"))
    except (TypeError, ValueError):
        return float("nan")
