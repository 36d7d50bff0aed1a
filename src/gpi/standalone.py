"""Act with a trained policy: this file needs Python and NumPy and nothing else, so copy it wherever a policy must act.

    import policy                  # this file, as an export leaves it beside policy.json and policy.safetensors
    act = policy.load("directory")
    action = act(observation)      # one observation [O], or many [..., O]

A damaged file, or an observation with NaN, raises ValueError; it never becomes an action.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

FORMAT = "gpi-policy-2"
CLIP = 10.0  # normalised observations are clipped to [-CLIP, CLIP], as in training
TYPES = {"F32": "<f4", "I64": "<i8"}  # by their names in safetensors

Layers = Sequence[tuple[np.ndarray, np.ndarray]]  # kernel [in, out] and bias [out] of each
Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]  # what JSON can hold
Numbers = Any  # an array of NumPy or jax.numpy, or a number


def clip(x: Numbers, low: Numbers, high: Numbers, xp: Any = np) -> Numbers:
    """Clip to [low, high]; NaN stays NaN. `np.clip` does the same and takes twice as long."""
    return xp.minimum(xp.maximum(x, low), high)


def normalise(obs: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Normalise observations, and clip them to [-CLIP, CLIP]."""
    return clip((obs - mean) / std, -CLIP, CLIP)


def network(layers: Layers, x: np.ndarray) -> np.ndarray:
    """Evaluate a network: tanh between the layers, nothing after the last.

    Leading axes broadcast: kernels `[P, in, out]` with biases `[P, 1, out]` are P networks for inputs `[P, E, in]`.
    """
    for kernel, bias in layers[:-1]:
        x = np.tanh(x @ kernel + bias)
    kernel, bias = layers[-1]
    return x @ kernel + bias


def centre_and_half(low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """Return the centre of [low, high], and half of its width."""
    return 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low  # halves first: `high - low` may overflow


def scale_action(action: Numbers, low: Numbers, high: Numbers, xp: Any = np) -> Numbers:
    """Clip an agent's action to [-1, 1] and scale it to [low, high]; NaN becomes 0, as in MuJoCo.

    The result reaches the bounds and never leaves them. `xp` is NumPy or `jax.numpy`.
    """
    unit = clip(xp.where(xp.isnan(action), 0.0, action), -1.0, 1.0, xp)
    centre, half = centre_and_half(low, high)
    # Rounding may put the result outside by a bit or, between bounds of very different size, well inside.
    scaled = clip(centre + half * unit, low, high, xp)
    return xp.where(unit == 1.0, high, xp.where(unit == -1.0, low, scaled))


class Policy:
    """A policy with its observation normaliser: `policy(obs)` is the most likely action, as the environment takes it.

    `GaussianPolicy` and `CategoricalPolicy` are the two kinds; `load` and `assemble` return the right one.
    """

    kind: ClassVar[str]
    discrete: ClassVar[bool]
    start: int
    """The number of the first action where actions are discrete, otherwise 0."""

    def __init__(self, layers: Layers, obs_mean: np.ndarray, obs_std: np.ndarray, about: Facts):
        """Prefer `assemble`, which checks that arrays fit together; `about` holds facts about the training."""
        self.layers, self.obs_mean, self.obs_std, self.about = layers, obs_mean, obs_std, about

    def __repr__(self) -> str:
        """Return what the policy is: GaussianPolicy(cheetah-run, seed 0, 200,000 steps, 17 observations, 6 actions)."""
        task, seed, steps = (str(self.about[name]) if name in self.about else "" for name in ("task", "seed", "steps"))
        known = [task.removeprefix("dmc/"), seed and f"seed {seed}"]
        known.append(f"{int(steps):,} steps" if steps.isdecimal() else "")
        counts = {"observation": self.obs_mean.size, "action": self.action_size}
        sizes = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
        return f"{type(self).__name__}({', '.join([word for word in known if word] + sizes)})"

    @property
    def action_size(self) -> int:
        """Number of entries of an action or, where actions are discrete, of actions to choose from."""
        return self.layers[-1][1].size

    def __call__(self, obs: object) -> Any:
        """Return the most likely action for one observation `[O]`, or the actions for many `[..., O]`."""
        return self._action(self._evaluate(obs))

    def sample(self, obs: object, rng: np.random.Generator) -> Any:
        """Return a random action, as in training."""
        return self._action(self._perturb(self._evaluate(obs), rng))

    def unscaled(self, obs: object) -> np.ndarray:
        """Return the output that decides the action: the mean clipped to [-1, 1], or the logits."""
        return self._evaluate(obs)

    def arrays(self) -> Arrays:
        """Return the arrays by the names they have in a policy's file."""
        arrays = {"obs/mean": self.obs_mean, "obs/std": self.obs_std}
        for i, (kernel, bias) in enumerate(self.layers):
            arrays |= {f"policy/layer{i}/kernel": kernel, f"policy/layer{i}/bias": bias}
        return arrays

    def describe(self) -> Facts:
        """Return the facts that a person or a program needs before using the policy."""
        sizes = [self.obs_mean.size, *(bias.size for _, bias in self.layers)]
        return {"format": FORMAT, "kind": self.kind, "sizes": sizes, **self._action_facts(), "training": self.about}

    def _action(self, out: np.ndarray) -> Any:
        """Turn the network's output into an action, as the environment takes it."""
        raise NotImplementedError

    def _perturb(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Add the noise that makes `_action` a random action."""
        raise NotImplementedError

    def _action_facts(self) -> Facts:
        """Describe the actions."""
        raise NotImplementedError

    def _evaluate(self, obs: object) -> np.ndarray:
        with np.errstate(over="ignore"):  # numbers beyond float32 are refused, or clipped
            x = normalise(self._require_observation(obs), self.obs_mean, self.obs_std)
        return network(self.layers, x)

    def _require_observation(self, obs: object) -> np.ndarray:
        """Return the observation as float32; raise ValueError if it is not one that the policy can act on."""
        try:
            found = np.asarray(obs)
        except (TypeError, ValueError) as error:
            raise ValueError(f"observation is not an array ({error}); give {self.obs_mean.size} numbers") from error
        if found.dtype.kind not in "fiub":  # float, int, unsigned, bool
            raise ValueError(f"observation has dtype {found.dtype}, not numbers; give {self.obs_mean.size} numbers")
        if found.shape[-1:] != self.obs_mean.shape:
            raise ValueError(f"observation has shape {found.shape}; the policy reads [..., {self.obs_mean.size}]")
        found = found.astype(np.float32, copy=False)
        if not np.isfinite(found).all():
            raise ValueError("observation has entries that are NaN or infinite in float32; check where they come from")
        return found


@final
class GaussianPolicy(Policy):
    """Continuous actions: the mean, clipped to [-1, 1] and scaled to [low, high], as float32."""

    kind, discrete = "gaussian", False
    start = 0

    def __init__(
        self, layers: Layers, obs_mean: np.ndarray, obs_std: np.ndarray, log_std: np.ndarray,
        low: np.ndarray, high: np.ndarray, about: Facts,
    ):  # fmt: skip
        """`low` and `high` are the bounds of the environment's actions."""
        super().__init__(layers, obs_mean, obs_std, about)
        self.log_std, self.low, self.high = log_std, low, high
        self.centre, self.half = centre_and_half(low, high)
        self._unit = bool(np.all(low == -1.0) and np.all(high == 1.0))

    def unscaled(self, obs: object) -> np.ndarray:
        """Return the mean clipped to [-1, 1]."""
        return clip(self._evaluate(obs), -1.0, 1.0)

    def arrays(self) -> Arrays:
        """Return the arrays by the names they have in a policy's file."""
        return super().arrays() | {"policy/log_std": self.log_std, "action/low": self.low, "action/high": self.high}

    def _action(self, out: np.ndarray) -> np.ndarray:
        unit = clip(out, -1.0, 1.0)
        if self._unit:  # no scaling: the action is the clipped mean, bit for bit
            return unit
        return clip(self.centre + self.half * unit, self.low, self.high)  # rounding must not pass a bound

    def _perturb(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return out + np.exp(self.log_std) * rng.standard_normal(out.shape, np.float32)

    def _action_facts(self) -> Facts:
        return {"low": self.low.tolist(), "high": self.high.tolist()}


@final
class CategoricalPolicy(Policy):
    """Discrete actions: the number of the largest logit, counted from `start`, as int (one) or int64 (many)."""

    kind, discrete = "categorical", True
    log_std = low = high = None  # `GaussianPolicy` has them

    def __init__(self, layers: Layers, obs_mean: np.ndarray, obs_std: np.ndarray, start: int, about: Facts):
        """`start` is the number of the first action."""
        super().__init__(layers, obs_mean, obs_std, about)
        self.start = start

    def arrays(self) -> Arrays:
        """Return the arrays by the names they have in a policy's file."""
        return super().arrays() | {"action/start": np.array(self.start, np.int64)}

    def _action(self, out: np.ndarray) -> int | np.ndarray:
        return int(out.argmax()) + self.start if out.ndim == 1 else out.argmax(-1).astype(np.int64) + self.start

    def _perturb(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return out + rng.gumbel(size=out.shape)  # the largest is distributed as the softmax says

    def _action_facts(self) -> Facts:
        return {"start": self.start}


def load(directory: str | Path) -> Policy:
    """Load the policy in a directory that an export made; raise ValueError if it is damaged or of another version."""
    path = Path(directory)
    try:
        described = dict(json.loads((path / "policy.json").read_bytes()))
        if described.get("format") != FORMAT:
            raise ValueError(f"its format is {str(described.get('format'))[:80]!r}, this code reads {FORMAT!r}")
        if described.pop("sha256", None) != seal(described)["sha256"]:
            raise ValueError("policy.json is damaged: it has another hash than it says")
        data = (path / "policy.safetensors").read_bytes()
        if described["file"] != {"size": len(data), "sha256": sha256(data)}:
            raise ValueError("policy.safetensors is damaged: it has another size or hash than policy.json says")
        arrays = parse(data)
        if described["arrays"] != {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()}:
            raise ValueError("policy.safetensors has other arrays than policy.json says")
        return assemble(arrays, described["training"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no policy can be loaded from {str(path)!r}: {error}; export it again") from error


def sha256(data: bytes) -> str:
    """Return the SHA-256 of bytes as text."""
    return hashlib.sha256(data).hexdigest()


def canonical(content: Facts) -> bytes:
    """Return JSON in one form, for any spaces and any order of keys in a file."""
    return json.dumps(content, sort_keys=True).encode()


def seal(content: Facts, encode: Callable[[Facts], bytes] = canonical) -> Facts:
    """Return the content with the hash of its bytes, as `encode` writes them, so that damage is noticed."""
    return content | {"sha256": sha256(encode(content))}


def parse(data: bytes) -> Arrays:
    """Read the arrays of a safetensors file: the header's length, the header as JSON, then the arrays' bytes."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(data[start + begin : start + end], TYPES[entry["dtype"]])
        arrays[name] = flat.reshape(entry["shape"]).copy()
    return arrays


def assemble(arrays: Arrays, about: Facts) -> Policy:
    """Build a policy from named arrays; raise ValueError or KeyError unless names, types, shapes and values fit."""
    depth = sum(name.endswith("/kernel") for name in arrays)
    sizes = [arrays["obs/mean"].size, *(arrays[f"policy/layer{i}/bias"].size for i in range(depth))]
    shapes = {"obs/mean": sizes[:1], "obs/std": sizes[:1]}
    for i in range(depth):
        shapes |= {f"policy/layer{i}/kernel": sizes[i : i + 2], f"policy/layer{i}/bias": sizes[i + 1 : i + 2]}
    discrete = "action/start" in arrays
    gaussian = dict.fromkeys(("policy/log_std", "action/low", "action/high"), sizes[-1:])
    shapes |= {"action/start": []} if discrete else gaussian
    found = {name: list(x.shape) for name, x in arrays.items()}
    if depth == 0 or found != shapes:
        raise ValueError(f"names or shapes of arrays do not fit together (found {str(found)[:200]})")
    for name, x in arrays.items():
        kind = "int64" if name == "action/start" else "float32"
        if x.dtype != kind or not np.isfinite(x).all():
            raise ValueError(f"array {name!r} is not usable (expected finite {kind}, found {x.dtype})")
    layers = tuple((arrays[f"policy/layer{i}/kernel"], arrays[f"policy/layer{i}/bias"]) for i in range(depth))
    require_sane(layers, arrays)
    mean, std = arrays["obs/mean"], arrays["obs/std"]
    if discrete:
        return CategoricalPolicy(layers, mean, std, int(arrays["action/start"]), about)
    log_std, low, high = (arrays[name] for name in gaussian)
    return GaussianPolicy(layers, mean, std, log_std, low, high, about)


def require_sane(layers: Layers, arrays: Arrays) -> None:
    """Raise ValueError if numbers are too large to act with, or contradict each other."""
    nothing = np.zeros(1, np.float32)
    low, high = arrays.get("action/low", nothing), arrays.get("action/high", nothing)
    with np.errstate(over="ignore"):
        largest = [CLIP * np.abs(kernel).sum(0) + np.abs(bias) for kernel, bias in layers]
        width, total = high - low, high + low
    if not np.isfinite(np.concatenate([*largest, width, total])).all():
        raise ValueError("weights or bounds are so large that an action could be NaN")
    if (width < 0.0).any() or (arrays["obs/std"] <= 0.0).any():
        raise ValueError("a lower bound is above its upper bound, or a standard deviation is not positive")
