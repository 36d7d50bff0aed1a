"""Act with a trained policy: this file needs Python and NumPy and nothing else, so copy it wherever one must act.

    import policy                  # this file, as an export leaves it beside policy.json and policy.safetensors
    act = policy.load("directory")
    action = act(observation)      # one observation [O], or many [..., O]

Whatever is not right, a damaged file or an observation with NaN, is a ValueError and never an action.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "gpi-policy-2"
CLIP = 10.0  # where normalised observations are cut, as in training
TYPES = {"F32": "<f4", "I64": "<i8"}  # safetensors' names of them

Layers = tuple[tuple[np.ndarray, np.ndarray], ...]  # kernel [in, out] and bias [out]; tanh between layers


class Policy:
    """A policy with its observation normaliser; `policy(obs)` is the most likely action, as the environment takes it.

    Gaussian, with `log_std`: the mean, clipped to [-1, 1] and scaled to [low, high], as float32. Categorical, without:
    the number of the largest logit, counted from `start`, as int (one observation) or int64 (many).
    """

    def __init__(
        self, layers: Layers, log_std: np.ndarray | None, obs_mean: np.ndarray, obs_std: np.ndarray,
        low: np.ndarray | None, high: np.ndarray | None, start: int, about: dict[str, Any],
    ):  # fmt: skip
        """`assemble` makes one from arrays and checks that they fit together; `about` has facts of its training."""
        self.layers, self.log_std, self.obs_mean, self.obs_std = layers, log_std, obs_mean, obs_std
        self.low, self.high, self.start, self.about = low, high, start, about
        # Bounds of -1 and 1 need no scaling: the action is the clipped mean to the bit.
        self._scale = None
        if low is not None and high is not None and not (np.all(low == -1.0) and np.all(high == 1.0)):
            self._scale = (low + high) / 2, (high - low) / 2, low, high

    def __call__(self, obs: Any) -> Any:
        """The action for one observation `[O]`, or the actions for many `[..., O]`."""
        return self._action(self._network(obs))

    def sample(self, obs: Any, rng: np.random.Generator) -> Any:
        """A random action, as in training."""
        out = self._network(obs)
        if self.log_std is None:
            return self._action(out + rng.gumbel(size=out.shape))  # the largest is distributed as the softmax says
        return self._action(out + np.exp(self.log_std) * rng.standard_normal(out.shape, np.float32))

    def unscaled(self, obs: Any) -> np.ndarray:
        """What decides the action: the mean clipped to [-1, 1], or the logits."""
        out = self._network(obs)
        return out if self.log_std is None else np.minimum(np.maximum(out, -1.0), 1.0)

    def _action(self, out: np.ndarray) -> Any:
        if self.log_std is None:
            return int(out.argmax()) + self.start if out.ndim == 1 else out.argmax(-1).astype(np.int64) + self.start
        action = np.minimum(np.maximum(out, -1.0), 1.0)  # np.clip does the same and takes twice as long
        if self._scale is None:
            return action
        centre, half, low, high = self._scale
        return np.minimum(np.maximum(centre + half * action, low), high)  # rounding must not pass a bound

    def _network(self, obs: Any) -> np.ndarray:
        with np.errstate(over="ignore"):  # what is beyond float32 is refused, or cut at CLIP
            x = (self._checked(obs) - self.obs_mean) / self.obs_std
        x = np.minimum(np.maximum(x, -CLIP), CLIP)
        for kernel, bias in self.layers[:-1]:
            x = np.tanh(x @ kernel + bias)
        kernel, bias = self.layers[-1]
        return x @ kernel + bias

    def _checked(self, obs: Any) -> np.ndarray:
        """The observation as float32, or ValueError: a policy must not act on what it cannot have seen."""
        try:
            found = np.asarray(obs)
        except (TypeError, ValueError) as error:
            raise ValueError(f"observation is no array ({error}); give {self.obs_mean.size} numbers") from error
        if found.dtype.kind not in "fiub":  # float, int, unsigned, bool
            raise ValueError(f"observation has dtype {found.dtype}, not numbers; give {self.obs_mean.size} numbers")
        if found.shape[-1:] != self.obs_mean.shape:
            raise ValueError(f"observation has shape {found.shape}; the policy reads [..., {self.obs_mean.size}]")
        found = found.astype(np.float32, copy=False)
        if not np.isfinite(found).all():
            raise ValueError("observation has entries that are NaN or infinite in float32; check where they come from")
        return found


def scale_action(action: Any, low: Any, high: Any, xp: Any = np) -> Any:
    """Clip an agent's action to [-1, 1] and scale it to [low, high]; NaN becomes 0, as in MuJoCo.

    The result reaches the bounds and never leaves them. `xp` is NumPy or `jax.numpy`.
    """
    unit = xp.minimum(xp.maximum(xp.where(xp.isnan(action), 0.0, action), -1.0), 1.0)
    # Halves first: `high - low` may overflow. Rounding may put the result outside by a bit or, between bounds of very
    # different size, well inside.
    scaled = xp.minimum(xp.maximum((0.5 * low + 0.5 * high) + (0.5 * high - 0.5 * low) * unit, low), high)
    return xp.where(unit == 1.0, high, xp.where(unit == -1.0, low, scaled))


def load(directory: str | Path) -> Policy:
    """The policy in a directory that an export made; ValueError if it is damaged or of another version."""
    place = Path(directory)
    try:
        described = dict(json.loads((place / "policy.json").read_bytes()))
        if described.get("format") != FORMAT:
            raise ValueError(f"its format is {str(described.get('format'))[:80]!r}, this code reads {FORMAT!r}")
        if described.pop("sha256", None) != digest(described):
            raise ValueError("policy.json is damaged: it has another hash than it says")
        data = (place / "policy.safetensors").read_bytes()
        if described["file"] != {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}:
            raise ValueError("policy.safetensors is damaged: it has another size or hash than policy.json says")
        arrays = parse(data)
        if described["arrays"] != {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()}:
            raise ValueError("policy.safetensors has other arrays than policy.json says")
        return assemble(arrays, described["training"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no policy can be loaded from {str(place)!r}: {error}; export it again") from error


def digest(described: dict[str, Any]) -> str:
    """The hash of a description, whatever its spaces and order."""
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def parse(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file: the header's length, the header as JSON, then the arrays' bytes."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(data[start + begin : start + end], TYPES[entry["dtype"]])
        arrays[name] = flat.reshape(entry["shape"]).copy()
    return arrays


def assemble(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Policy:
    """The policy of named arrays; ValueError or KeyError unless names, types, shapes and numbers fit together."""
    depth = sum(name.endswith("/kernel") for name in arrays)
    sizes = [arrays["obs/mean"].size, *(arrays[f"policy/layer{i}/bias"].size for i in range(depth))]
    shapes = {"obs/mean": sizes[:1], "obs/std": sizes[:1]}
    for i in range(depth):
        shapes |= {f"policy/layer{i}/kernel": sizes[i : i + 2], f"policy/layer{i}/bias": sizes[i + 1 : i + 2]}
    gaussian = dict.fromkeys(("policy/log_std", "action/low", "action/high"), sizes[-1:])
    shapes |= {"action/start": []} if "action/start" in arrays else gaussian
    found = {name: list(x.shape) for name, x in arrays.items()}
    if depth == 0 or found != shapes:
        raise ValueError(f"names or shapes of arrays do not fit together (found {str(found)[:200]})")
    for name, x in arrays.items():
        kind = "int64" if name == "action/start" else "float32"
        if x.dtype != kind or not np.isfinite(x).all():
            raise ValueError(f"array {name!r} is not usable (expected finite {kind}, found {x.dtype})")
    layers = tuple((arrays[f"policy/layer{i}/kernel"], arrays[f"policy/layer{i}/bias"]) for i in range(depth))
    log_std, low, high = (arrays.get(name) for name in gaussian)
    with np.errstate(over="ignore"):
        largest = [CLIP * np.abs(kernel).sum(0) + np.abs(bias) for kernel, bias in layers]
        width, total = (np.zeros(1),) * 2 if low is None or high is None else (high - low, high + low)
    if not np.isfinite(np.concatenate([*largest, width, total])).all():
        raise ValueError("weights or bounds are so large that an action could be NaN")
    if (width < 0.0).any() or (arrays["obs/std"] <= 0.0).any():
        raise ValueError("a lower bound is above its upper bound, or a standard deviation is not positive")
    start = int(arrays.get("action/start", 0))
    return Policy(layers, log_std, arrays["obs/mean"], arrays["obs/std"], low, high, start, about)
