"""A trained policy on its own: one file, NumPy in, NumPy out, normaliser and action clipping inside."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpi import files
from gpi.errors import FileError, UsageError

FORMAT = "gpi-policy-1"
SIZE_LIMIT = 1 << 30
CLIP = 10.0


@dataclass(frozen=True)
class Policy:
    """A Gaussian policy with its observation normaliser; `policy(obs)` is the mean action, clipped to [-1, 1]."""

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    log_std: np.ndarray
    obs_mean: np.ndarray
    obs_std: np.ndarray
    about: dict[str, str]

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """The action for one observation `[O]` or many `[..., O]`."""
        return np.clip(self.mean(obs), -1.0, 1.0)

    def sample(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A random action, as in training."""
        mean = self.mean(obs)
        noise = rng.standard_normal(mean.shape, np.float32)
        return np.clip(mean + np.exp(self.log_std) * noise, -1.0, 1.0)

    def mean(self, obs: np.ndarray) -> np.ndarray:
        """The mean of pi(.|s), before clipping."""
        obs = np.asarray(obs, np.float32)
        if obs.shape[-1:] != self.obs_mean.shape:
            raise UsageError(f"observation has shape {obs.shape}, the policy reads [..., {self.obs_mean.size}]")
        if not np.isfinite(obs).all():
            raise UsageError("observation has NaN or infinite entries; a policy must not act on them")
        x = np.clip((obs - self.obs_mean) / self.obs_std, -CLIP, CLIP)
        for kernel, bias in self.layers[:-1]:
            x = np.tanh(x @ kernel + bias)
        kernel, bias = self.layers[-1]
        return x @ kernel + bias


def save(path: Path, theta: Any, normaliser: Any, about: dict[str, str]) -> None:
    """Write a policy: safetensors, which cannot carry code, with facts about its training in the header."""
    from gpi.core.normalize import lens, std

    eye = lens(normaliser.obs)
    arrays = {"policy/log_std": theta.log_std, "obs/mean": eye.centre, "obs/std": eye.scale}
    for i, layer in enumerate(theta.net):
        arrays |= {f"policy/layer{i}/kernel": layer.kernel, f"policy/layer{i}/bias": layer.bias}
    arrays["returns/std"] = std(normaliser.returns)
    text = json.dumps({"format": FORMAT, **about})
    files.write(path, sealed({name: np.asarray(x) for name, x in arrays.items()}, text))


def sealed(arrays: dict[str, np.ndarray], text: str) -> bytes:
    """A policy's file with the hash of all it says: no other bytes say the same, so damage does not go unseen."""
    digest = hashlib.sha256(files.encode(arrays, {"gpi": text})).hexdigest()
    return files.encode(arrays, {"gpi": text, "sha256": digest})


def load(path: str | Path, seed: int | None = None) -> Policy:
    """The policy in a file, or of a run directory: the one of `seed`, by default the first.

    Nothing in the file is run or believed: one that is damaged or not a policy raises `gpi.errors.FileError`.
    """
    path = Path(path)
    if path.is_dir():
        path = policy_file(path, seed)
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a policy file or a run directory")
    try:
        data = files.read(path.parent, path.name, SIZE_LIMIT)
        arrays, metadata = files.decode(data, finite=True)
        text = metadata.get("gpi", "{}")
        about = files.parse_json(text.encode(), "the description")
        if about.get("format") != FORMAT or not all(isinstance(fact, str) for fact in about.values()):
            raise FileError(f"not a policy of this version (expected {FORMAT}, found {files.shown(about)})")
        if data != sealed(arrays, text):
            raise FileError("damaged (expected the hash of its own content, found another)")
        return assemble(arrays, about)
    except FileError as error:
        raise FileError(f"policy {path}: {error}") from error


def assemble(arrays: dict[str, np.ndarray], about: dict[str, str]) -> Policy:
    """A policy of arrays whose names, types and shapes fit together."""
    depth = sum(name.endswith("/kernel") for name in arrays)
    names = [f"policy/layer{i}/{part}" for i in range(depth) for part in ("kernel", "bias")]
    given = {name: x.dtype for name, x in arrays.items()}
    wanted = dict.fromkeys([*names, "policy/log_std", "obs/mean", "obs/std"], np.dtype(np.float32))
    if not depth or given != wanted | {"returns/std": np.dtype(np.float64)}:
        raise FileError(f"other arrays than a policy's (found {files.shown(list(arrays))})")
    layers = tuple((arrays[names[2 * i]], arrays[names[2 * i + 1]]) for i in range(depth))
    size = arrays["obs/mean"].shape
    fits = len(size) == 1 and arrays["obs/std"].shape == size and (arrays["obs/std"] > 0.0).all()
    for kernel, bias in layers:
        fits = fits and kernel.ndim == 2 and kernel.shape[:1] == size and bias.shape == kernel.shape[1:]
        size = bias.shape
    if not fits or arrays["policy/log_std"].shape != size:
        raise FileError(
            f"shapes that do not fit together (found {files.shown({n: x.shape for n, x in arrays.items()})})"
        )
    return Policy(layers, arrays["policy/log_std"], arrays["obs/mean"], arrays["obs/std"], about)


def policy_file(run: Path, seed: int | None) -> Path:
    """The file of one seed's policy in a run directory."""
    names = [(re.fullmatch(r"policy-(\d{1,9})\.safetensors", file.name), file) for file in run.iterdir()]
    found = {int(match[1]): file for match, file in names if match}
    if not found:
        raise UsageError(f"{run} holds no policy; train first, or let the run finish")
    if seed is not None and seed not in found:
        raise UsageError(f"{run} has no policy of seed {seed}; it has {sorted(found)}")
    return found[min(found) if seed is None else seed]
