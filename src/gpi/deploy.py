"""A trained policy on its own: one file, NumPy in, NumPy out, normaliser and action clipping inside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpi.errors import UsageError

FORMAT = "gpi-policy-1"
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
    from safetensors.numpy import save_file

    from gpi.core.normalize import lens, std

    eye = lens(normaliser.obs)
    arrays = {"policy/log_std": theta.log_std, "obs/mean": eye.centre, "obs/std": eye.scale}
    for i, layer in enumerate(theta.net):
        arrays |= {f"policy/layer{i}/kernel": layer.kernel, f"policy/layer{i}/bias": layer.bias}
    arrays["returns/std"] = std(normaliser.returns)
    # One entry: the order of several is random, and the same run must write the same bytes.
    header = {"gpi": json.dumps({"format": FORMAT, **about})}
    save_file({name: np.ascontiguousarray(x) for name, x in arrays.items()}, path, header)


def load(path: str | Path, seed: int | None = None) -> Policy:
    """The policy in a file, or of a run directory: the one of `seed`, by default the first."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir():
        path = policy_file(path, seed)
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads((file.metadata() or {}).get("gpi", "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UsageError(f"cannot read the policy {path}: {error}") from error
    if about.get("format") != FORMAT:
        raise UsageError(f"{path} is not a policy of this version: format {about.get('format')!r}, not {FORMAT!r}")
    depth = sum(name.endswith("/kernel") for name in arrays)
    layers = tuple((arrays[f"policy/layer{i}/kernel"], arrays[f"policy/layer{i}/bias"]) for i in range(depth))
    return Policy(layers, arrays["policy/log_std"], arrays["obs/mean"], arrays["obs/std"], about)


def policy_file(run: Path, seed: int | None) -> Path:
    """The file of one seed's policy in a run directory."""
    found = {int(file.stem.removeprefix("policy-")): file for file in run.glob("policy-*.safetensors")}
    if not found:
        raise UsageError(f"{run} holds no policy; train first, or let the run finish")
    if seed is not None and seed not in found:
        raise UsageError(f"{run} has no policy of seed {seed}; it has {sorted(found)}")
    return found[min(found) if seed is None else seed]
