"""A trained policy on its own: one file, NumPy in, NumPy out, normaliser and action bounds inside."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpi import files, standalone
from gpi.errors import FileError, UsageError
from gpi.standalone import FORMAT, Policy

SIZE_LIMIT = 1 << 30


class Actions(Protocol):
    """What a policy's file must know of a task; `gpi.envs.pool.Spec` has it."""

    @property
    def discrete(self) -> bool:
        """Whether actions are numbers to choose from."""
        ...

    @property
    def low(self) -> tuple[float, ...]:
        """The least action the environment takes; nothing where discrete."""
        ...

    @property
    def high(self) -> tuple[float, ...]:
        """The greatest action the environment takes; nothing where discrete."""
        ...

    @property
    def start(self) -> int:
        """The first of discrete actions."""
        ...

    @property
    def observation_names(self) -> tuple[str, ...]:
        """What each entry of an observation is, or nothing."""
        ...


def save(path: Path, theta: Any, normaliser: Any, spec: Actions, about: dict[str, str]) -> None:
    """Write a policy: safetensors, which cannot carry code, with facts about its training in the header."""
    text = json.dumps({"format": FORMAT, **about, "observation_names": spec.observation_names})
    files.write(path, sealed(arrays_of(theta, normaliser, spec), text))


def policy_of(theta: Any, normaliser: Any, spec: Actions, about: dict[str, str]) -> Policy:
    """The policy that `save` would write."""
    return assemble(arrays_of(theta, normaliser, spec), {**about, "observation_names": list(spec.observation_names)})


def arrays_of(theta: Any, normaliser: Any, spec: Actions) -> dict[str, np.ndarray]:
    """The arrays of a policy by name."""
    import jax

    from gpi.core.normaliser import lens, std

    with jax.enable_x64(True):  # statistics are in float64
        eye, scale = lens(normaliser.obs), std(normaliser.returns)
    arrays: dict[str, Any] = {"obs/mean": eye.centre, "obs/std": eye.scale, "returns/std": scale}
    for i, layer in enumerate(theta.net):
        arrays |= {f"policy/layer{i}/kernel": layer.kernel, f"policy/layer{i}/bias": layer.bias}
    if spec.discrete:
        arrays["action/start"] = np.array(spec.start, np.int64)
    else:
        low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
        arrays |= {"policy/log_std": theta.log_std, "action/low": low, "action/high": high}
    return {name: np.asarray(x) for name, x in arrays.items()}


def sealed(arrays: dict[str, np.ndarray], text: str) -> bytes:
    """A policy's file with the hash of all it says: no other bytes say the same, so damage does not go unseen."""
    digest = hashlib.sha256(files.encode(arrays, {"gpi": text})).hexdigest()
    return files.encode(arrays, {"gpi": text, "sha256": digest})


def load(path: str | Path, seed: int | None = None) -> Policy:
    """The policy in a file, in a directory that `gpi export` made, or of a run: that of `seed`, by default the first.

    Nothing in the file is run or believed: one that is damaged or not a policy raises `gpi.errors.FileError`.
    """
    path = Path(path)
    if (path / "policy.json").is_file():
        try:
            return standalone.load(path)
        except ValueError as error:
            raise FileError(str(error)) from error
    if path.is_dir():
        path = policy_file(path, seed)
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a policy file or a run directory")
    try:
        data = files.read(path.parent, path.name, SIZE_LIMIT)
        arrays, metadata = files.decode(data, finite=True)
        text = metadata.get("gpi", "{}")
        about = files.parse_json(text.encode(), "the description")
        if about.pop("format", None) != FORMAT or not plain(about):
            raise FileError(f"not a policy of this version (expected {FORMAT}, found {files.shown(text)})")
        if data != sealed(arrays, text):
            raise FileError("damaged (expected the hash of its own content, found another)")
        return assemble(arrays, about)
    except FileError as error:
        raise FileError(f"policy {path}: {error}") from error


def plain(about: dict[str, Any]) -> bool:
    """Whether a description has a task, a seed, a list of the observations' names, and else text only, by name."""
    names, texts = about.get("observation_names"), {name: x for name, x in about.items() if name != "observation_names"}
    return (
        isinstance(names, list)
        and all(isinstance(text, str) for text in (*names, *texts.values()))
        and "task" in texts
        and re.fullmatch(r"[0-9]{1,7}", texts.get("seed", "")) is not None
    )


def assemble(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Policy:
    """A policy of arrays whose names, types and shapes fit together."""
    returns = arrays.get("returns/std")
    if returns is None or returns.shape != () or returns.dtype != np.float64:
        raise FileError(f"other arrays than a policy's (expected a number returns/std, found {files.shown(returns)})")
    try:
        return standalone.assemble({name: x for name, x in arrays.items() if name != "returns/std"}, about)
    except (ValueError, KeyError) as error:
        raise FileError(f"other arrays than a policy's ({error})") from error


def policy_files(run: Path) -> dict[int, Path]:
    """The files of a run's policies by seed."""
    names = [(re.fullmatch(r"policy-(\d{1,9})\.safetensors", file.name), file) for file in sorted(run.iterdir())]
    return {int(match[1]): file for match, file in names if match}


def policy_file(run: Path, seed: int | None) -> Path:
    """The file of one seed's policy in a run directory."""
    found = policy_files(run)
    if not found:
        raise UsageError(f"{run} holds no policy; train first, or let the run finish")
    if seed is not None and seed not in found:
        raise UsageError(f"{run} has no policy of seed {seed}; it has {sorted(found)}")
    return found[min(found) if seed is None else seed]
