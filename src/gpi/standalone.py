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

FORMAT, LATER_FORMAT = "gpi-policy-2", "gpi-policy-3"  # of the second, the form is named in the file
LAYER_NORM_EPS = 1e-5  # keeps a row of equal numbers finite
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


ACTIVATIONS: dict[str, Callable[[Numbers, Any], Numbers]] = {
    "tanh": lambda x, xp: xp.tanh(x),
    "relu": lambda x, xp: xp.maximum(x, 0.0),
    "silu": lambda x, xp: x * (0.5 + 0.5 * xp.tanh(0.5 * x)),  # of x times its sigmoid, the form that never overflows
}
"""What may be between the layers of a network, in NumPy or `jax.numpy`."""


def layer_norm(x: Numbers, xp: Any = np) -> Numbers:
    """Normalise every row to mean 0 and variance 1 (LayerNorm, Ba et al. 2016, without gain and bias)."""
    x = x - x.mean(-1, keepdims=True)
    return x / xp.sqrt((x * x).mean(-1, keepdims=True) + LAYER_NORM_EPS)


def between(x: Numbers, activation: str, *, normed: bool, xp: Any = np) -> Numbers:
    """Return what a layer passes on to the next: its activation, after LayerNorm where it is `normed`."""
    return ACTIVATIONS[activation](layer_norm(x, xp) if normed else x, xp)


def network(layers: Layers, x: np.ndarray, activation: str = "tanh", *, normed: bool = False) -> np.ndarray:
    """Evaluate a network: activations between the layers, nothing after the last.

    Leading axes broadcast: kernels `[P, in, out]` with biases `[P, 1, out]` are P networks for inputs `[P, E, in]`.
    """
    for kernel, bias in layers[:-1]:
        x = between(x @ kernel + bias, activation, normed=normed)
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

    `KINDS` has the kinds; `load` and `assemble` return the right one.
    """

    kind: ClassVar[str]
    discrete: ClassVar[bool]
    activation, layer_norm = "tanh", False
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

    @classmethod
    def shapes(cls, outputs: int) -> dict[str, list[int]]:
        """Return the shapes of the arrays that a policy has besides its network, in the order of its arguments."""
        raise NotImplementedError

    @property
    def form(self) -> Facts:
        """What must be known to assemble the policy from its arrays."""
        return {"kind": self.kind, "activation": self.activation, "layer_norm": self.layer_norm}

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
        for name in self.shapes(self.layers[-1][1].size):
            x = getattr(self, name.rpartition("/")[2])
            arrays[name] = np.array(x, np.int64) if isinstance(x, int) else x
        return arrays

    def describe(self) -> Facts:
        """Return the facts that a person or a program needs before using the policy."""
        sizes = [self.obs_mean.size, *(bias.size for _, bias in self.layers)]
        described = form_written(self.form) | {"kind": self.kind, "sizes": sizes}
        return described | self._action_facts() | {"training": self.about}

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
        return network(self.layers, x, self.activation, normed=self.layer_norm)

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


class ContinuousPolicy(Policy):
    """Continuous actions: within [-1, 1], and scaled to [low, high], as float32."""

    discrete = False
    start = 0

    def __init__(
        self, layers: Layers, obs_mean: np.ndarray, obs_std: np.ndarray, low: np.ndarray, high: np.ndarray, about: Facts
    ):
        """`low` and `high` are the bounds of the environment's actions."""
        super().__init__(layers, obs_mean, obs_std, about)
        self.low, self.high = low, high
        self.centre, self.half = centre_and_half(low, high)
        self._unit = bool(np.all(low == -1.0) and np.all(high == 1.0))

    @property
    def action_size(self) -> int:
        """Number of entries of an action."""
        return self.low.size

    def unscaled(self, obs: object) -> np.ndarray:
        """Return the most likely action within [-1, 1]."""
        return self._bounded(self._evaluate(obs))

    def _bounded(self, out: np.ndarray) -> np.ndarray:
        """Turn the network's output into an action within [-1, 1]."""
        raise NotImplementedError

    def _action(self, out: np.ndarray) -> np.ndarray:
        unit = self._bounded(out)
        if self._unit:  # no scaling: the same action, bit for bit
            return unit
        return clip(self.centre + self.half * unit, self.low, self.high)  # rounding must not pass a bound

    def _action_facts(self) -> Facts:
        return {"low": self.low.tolist(), "high": self.high.tolist()}


class GaussianPolicy(ContinuousPolicy):
    """A mean that is clipped to [-1, 1], and one standard deviation for all observations."""

    kind = "gaussian"

    def __init__(
        self, layers: Layers, obs_mean: np.ndarray, obs_std: np.ndarray, log_std: np.ndarray,
        low: np.ndarray, high: np.ndarray, about: Facts,
    ):  # fmt: skip
        """`low` and `high` are the bounds of the environment's actions."""
        super().__init__(layers, obs_mean, obs_std, low, high, about)
        self.log_std = log_std

    @classmethod
    def shapes(cls, outputs: int) -> dict[str, list[int]]:
        """Return the shapes of the arrays that the policy has besides its network."""
        return {"policy/log_std": [outputs], "action/low": [outputs], "action/high": [outputs]}

    def _bounded(self, out: np.ndarray) -> np.ndarray:
        return clip(out, -1.0, 1.0)

    def _perturb(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return out + np.exp(self.log_std) * rng.standard_normal(out.shape, np.float32)


@final
class CategoricalPolicy(Policy):
    """Discrete actions: the number of the largest logit, counted from `start`, as int (one) or int64 (many)."""

    kind, discrete = "categorical", True
    log_std = low = high = None  # `GaussianPolicy` has them

    def __init__(self, layers: Layers, obs_mean: np.ndarray, obs_std: np.ndarray, start: int, about: Facts):
        """`start` is the number of the first action."""
        super().__init__(layers, obs_mean, obs_std, about)
        self.start = int(start)

    @classmethod
    def shapes(cls, outputs: int) -> dict[str, list[int]]:
        """Return the shapes of the arrays that the policy has besides its network."""
        return {"action/start": []}

    def _action(self, out: np.ndarray) -> int | np.ndarray:
        return int(out.argmax()) + self.start if out.ndim == 1 else out.argmax(-1).astype(np.int64) + self.start

    def _perturb(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return out + rng.gumbel(size=out.shape)  # the largest is distributed as the softmax says

    def _action_facts(self) -> Facts:
        return {"start": self.start}


KINDS: dict[str, type[Policy]] = {"gaussian": GaussianPolicy, "categorical": CategoricalPolicy}
"""Policies by name. An export carries the source of a class from elsewhere, which may use the names here."""
FIRST_FORMS = [{"kind": kind, "activation": "tanh", "layer_norm": False} for kind in ("gaussian", "categorical")]
"""The forms of `FORMAT`, which the arrays tell apart."""


def form_written(form: Facts) -> Facts:
    """Return what a file says about the form of its policy."""
    return {"format": FORMAT} if form in FIRST_FORMS else {"format": LATER_FORMAT, **form}


def form_read(described: Facts) -> Facts:
    """Return the form of a policy as its file says it; raise ValueError for a file of another version."""
    found = described.get("format")
    if found not in (FORMAT, LATER_FORMAT):
        formats = f"{FORMAT!r} and {LATER_FORMAT!r}"
        raise ValueError(f"its format is {str(found)[:80]!r}, this code reads {formats}")
    return {name: described[name] for name in FIRST_FORMS[0]} if found == LATER_FORMAT else {}


def load(directory: str | Path) -> Policy:
    """Load the policy in a directory that an export made; raise ValueError if it is damaged or of another version."""
    path = Path(directory)
    try:
        described = dict(json.loads((path / "policy.json").read_bytes()))
        form = form_read(described)
        if described.pop("sha256", None) != seal(described)["sha256"]:
            raise ValueError("policy.json is damaged: it has another hash than it says")
        data = (path / "policy.safetensors").read_bytes()
        if described["file"] != {"size": len(data), "sha256": sha256(data)}:
            raise ValueError("policy.safetensors is damaged: it has another size or hash than policy.json says")
        arrays = parse(data)
        if described["arrays"] != {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()}:
            raise ValueError("policy.safetensors has other arrays than policy.json says")
        return assemble(arrays, described["training"], form)
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


def assemble(arrays: Arrays, about: Facts, form: Facts | None = None) -> Policy:
    """Build a policy from named arrays; raise ValueError or KeyError unless names, types, shapes and values fit.

    `form` is its kind, activation and LayerNorm, as in `FIRST_FORMS`, which the arrays tell apart without it.
    """
    form = form or FIRST_FORMS["action/start" in arrays]
    kind, activation, normed = (form[name] for name in FIRST_FORMS[0])
    if kind not in KINDS or activation not in ACTIVATIONS or type(normed) is not bool:
        raise ValueError(f"a form of policies that is not known here ({str(form)[:200]})")
    depth = sum(name.endswith("/kernel") for name in arrays)
    sizes = [arrays["obs/mean"].size, *(arrays[f"policy/layer{i}/bias"].size for i in range(depth))]
    shapes = {"obs/mean": sizes[:1], "obs/std": sizes[:1]}
    for i in range(depth):
        shapes |= {f"policy/layer{i}/kernel": sizes[i : i + 2], f"policy/layer{i}/bias": sizes[i + 1 : i + 2]}
    own = KINDS[kind].shapes(sizes[-1])
    shapes |= own
    found = {name: list(x.shape) for name, x in arrays.items()}
    if depth == 0 or found != shapes:
        raise ValueError(f"names or shapes of arrays do not fit together (found {str(found)[:200]})")
    for name, x in arrays.items():
        dtype = "int64" if name == "action/start" else "float32"
        if x.dtype != dtype or not np.isfinite(x).all():
            raise ValueError(f"array {name!r} is not usable (expected finite {dtype}, found {x.dtype})")
    layers = tuple((arrays[f"policy/layer{i}/kernel"], arrays[f"policy/layer{i}/bias"]) for i in range(depth))
    require_sane(layers, arrays, bounded=activation == "tanh")
    made: Any = KINDS[kind]
    policy = made(layers, arrays["obs/mean"], arrays["obs/std"], *(arrays[name] for name in own), about)
    policy.activation, policy.layer_norm = activation, normed
    return policy


def require_sane(layers: Layers, arrays: Arrays, *, bounded: bool = True) -> None:
    """Raise ValueError if numbers are too large to act with, or contradict each other.

    Where activations are not `bounded`, a layer's largest outputs are the next one's inputs.
    """
    nothing = np.zeros(1, np.float32)
    low, high = arrays.get("action/low", nothing), arrays.get("action/high", nothing)
    with np.errstate(over="ignore"):
        largest, most = [], np.float32(CLIP)
        for kernel, bias in layers:
            largest.append(most * np.abs(kernel).sum(0) + np.abs(bias))
            most = most if bounded else np.maximum(most, largest[-1].max(initial=0.0))
        width, total = high - low, high + low
    if not np.isfinite(np.concatenate([*largest, width, total])).all():
        raise ValueError("weights or bounds are so large that an action could be NaN")
    if (width < 0.0).any() or (arrays["obs/std"] <= 0.0).any():
        raise ValueError("a lower bound is above its upper bound, or a standard deviation is not positive")
