"""Gymnasium's spaces as the numbers an agent sees: observations flattened, actions scaled to [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

NAMED = 4096
"""Most numbers of an observation that have names."""
Write = Callable[[Any, np.ndarray], None]
MOST = 2**22
"""Numbers in one observation; more are a mistake, such as the one-hot numbers of a huge Discrete."""


class Broken(Exception):  # noqa: N818 (what is broken is not in us)
    """A broken contract: the problem and its remedy, without the environment's name or the step."""


class Observations(NamedTuple):
    """How observations of a space become rows of float32."""

    size: int
    names: tuple[str, ...]  # of every entry, where the space names its parts
    write: Write  # an observation into a row `[size]`; raises Broken where it does not belong to the space
    low: np.ndarray  # [size] float32
    high: np.ndarray


class Actions(NamedTuple):
    """How an agent's actions become those of a space."""

    discrete: bool
    size: int
    low: np.ndarray  # [size] float64; nothing where discrete
    high: np.ndarray
    start: int
    read: Callable[[np.ndarray], Any]  # a row of the agent's actions as the environment expects it


def brief(value: Any, most: int = 60) -> str:
    """A value in one short printable line, whatever it is."""
    try:
        text = " ".join(str(value).split())
    except Exception:  # it is the user's, and may fail even in this
        text = f"a {type(value).__name__}"
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"


# --- observations -------------------------------------------------------------------------------------------------


def observations(space: Any) -> Observations:
    """The observations of a space: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them."""
    parts = _parts(space, "")
    size = sum(part.low.size for part in parts)
    if size == 0:
        raise Broken(f"observation space {brief(space)} is empty; give the agent something to see")
    low, high = (np.concatenate(bounds) for bounds in zip(*((p.low, p.high) for p in parts), strict=True))
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return Observations(size, (), parts[0].write, low, high)
    ends = np.cumsum([part.low.size for part in parts]).tolist()
    places = [(part.write, end - part.low.size, end) for part, end in zip(parts, ends, strict=True)]
    take = _taker(space, "")

    def write(obs: Any, row: np.ndarray) -> None:
        leaves: list[Any] = []
        take(obs, leaves)
        for leaf, (one, begin, end) in zip(leaves, places, strict=True):
            one(leaf, row[begin:end])

    few = size <= NAMED  # the names go with the policy, whose header must stay short
    names = tuple(f"{p.name}[{i}]" for p in parts for i in range(p.low.size)) if few else ()
    return Observations(size, names, write, low, high)


class _Part(NamedTuple):
    """One leaf of an observation space."""

    name: str
    write: Write
    low: np.ndarray
    high: np.ndarray


def _parts(space: Any, name: str) -> list[_Part]:
    """The leaves of a space, in its order."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [leaf for key, one in _inner(space) for leaf in _parts(one, f"{name}.{key}".strip("."))]
    where = f"observation {name!r}" if name else "observation"
    if isinstance(space, spaces.Box):
        _small(math.prod(space.shape), space, where)
        if not (space.low <= space.high).all():
            raise Broken(f"{where} space {brief(space)} has low > high or NaN bounds; order them")
        return [_Part(name, _box(space, where), _single(space.low), _single(space.high))]
    if isinstance(space, spaces.Discrete):
        choices, first, shape = (int(space.n),), np.array([int(space.start)]), ()
    elif isinstance(space, spaces.MultiDiscrete):
        choices, first, shape = tuple(int(n) for n in space.nvec.ravel()), space.start.ravel(), space.nvec.shape
    elif isinstance(space, spaces.MultiBinary):
        size = _small(math.prod(space.shape), space, where)
        return [_Part(name, _binary(space.shape, where), np.zeros(size, np.float32), np.ones(size, np.float32))]
    else:
        raise Broken(_unusable(space, where, "has no fixed size; use Box, Discrete, MultiDiscrete, MultiBinary, "
                                             "Dict or Tuple"))  # fmt: skip
    size = _small(sum(choices), space, where)
    one_hot = _one_hot(np.array(choices), first, shape, where)
    return [_Part(name, one_hot, np.zeros(size, np.float32), np.ones(size, np.float32))]


def _inner(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, Any]]:
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def _unusable(space: Any, where: str, why: str) -> str:
    """What is wrong with a space that is none of those we know."""
    if space is None:
        return f"{where} space is missing (None); set it in __init__"
    kind = type(space)
    if not isinstance(space, spaces.Space):
        return f"{where} space is a {kind.__module__}.{kind.__qualname__}; use one of gymnasium.spaces"
    return f"{where} space {kind.__name__} {why}"


def _small(size: int, space: Any, where: str) -> int:
    if size > MOST:
        raise Broken(f"{where} space {brief(space)} has {size} numbers, at most {MOST} are possible; make it smaller")
    return size


def _single(bound: np.ndarray) -> np.ndarray:
    """A bound in float32: rounded as observations are, it stays on their side."""
    with np.errstate(over="ignore"):
        return bound.ravel().astype(np.float32)


def _taker(space: Any, name: str) -> Callable[[Any, list[Any]], None]:
    """What appends the leaves of an observation to a list, and holds it to the keys and lengths of its space."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda obs, leaves: leaves.append(obs)
    inner = [(key, _taker(one, f"{name}.{key}".strip("."))) for key, one in _inner(space)]
    where = f"observation {name!r}" if name else "observation"
    keys = [key for key, _ in inner]
    kinds, wanted = (Mapping, "a dict") if isinstance(space, spaces.Dict) else ((tuple, list, np.ndarray), "a tuple")

    def take(obs: Any, leaves: list[Any]) -> None:
        if not isinstance(obs, kinds):
            raise Broken(f"{where} is a {type(obs).__name__}, its space needs {wanted}; return {wanted}")
        if len(obs) != len(keys) or (isinstance(obs, Mapping) and obs.keys() != set(keys)):
            raise Broken(f"{where} {_uneven(obs, keys)}; return exactly those of the space")
        for key, one in inner:
            one(obs[key], leaves)

    return take


def _uneven(obs: Any, keys: list[Any]) -> str:
    """How a container differs from its space."""
    if not isinstance(obs, Mapping):
        return f"has {len(obs)} entries, its space has {len(keys)}"
    missing = [key for key in keys if key not in obs]
    if missing:
        return f"lacks the key {missing[0]!r} of its space"
    return f"has the key {brief(next(key for key in obs if key not in keys))!r}, which its space lacks"


def _box(space: spaces.Box, where: str) -> Write:
    shape, dtype = space.shape, space.dtype
    accepted: set[np.dtype] = set()
    narrow = np.can_cast(dtype, np.float32)

    def write(obs: Any, row: np.ndarray) -> None:
        if not isinstance(obs, np.ndarray | np.generic):
            raise Broken(f"{where} is a {type(obs).__name__}, its space needs an array of {dtype}; {remedy(dtype)}")
        if obs.shape != shape:
            raise Broken(f"{where} has shape {obs.shape}, its space has {shape}; return the shape of the space")
        if obs.dtype not in accepted:
            if not np.can_cast(obs.dtype, dtype):
                raise Broken(f"{where} has dtype {obs.dtype}, its space has {dtype}; {remedy(dtype)}")
            accepted.add(obs.dtype)
        if narrow:
            row[:] = obs.ravel()
        else:
            with np.errstate(all="ignore"):  # 1e300 is infinite in float32, which is for others to judge
                row[:] = obs.ravel()

    return write


def remedy(dtype: Any) -> str:
    """How to return the right dtype."""
    return f"return np.asarray(obs, dtype=np.{np.dtype(dtype).name})"


def _numbers(obs: Any, shape: tuple[int, ...], kinds: str, where: str) -> np.ndarray:
    """Numbers of a shape; whole ones, where `kinds` of dtypes has no "f"."""
    try:
        numbers = np.asarray(obs)
    except ValueError as error:
        raise Broken(f"{where} is {brief(obs)!r}, not an array; return the shape of the space") from error
    if numbers.dtype.kind not in kinds:
        raise Broken(f"{where} is {brief(obs)!r}, its space has whole numbers; return integers")
    if numbers.shape != shape:
        raise Broken(f"{where} has shape {numbers.shape}, its space has {shape}; return the shape of the space")
    return numbers.ravel()


def _one_hot(choices: np.ndarray, first: np.ndarray, shape: tuple[int, ...], where: str) -> Write:
    begin = np.concatenate([[0], np.cumsum(choices)[:-1]])

    def write(obs: Any, row: np.ndarray) -> None:
        index = _numbers(obs, shape, "iub", where).astype(np.int64) - first
        if (index < 0).any() or (index >= choices).any():
            raise Broken(f"{where} is {brief(obs)}, outside its space; return a number of the space")
        row[:] = 0.0
        row[begin + index] = 1.0

    return write


def _binary(shape: tuple[int, ...], where: str) -> Write:
    def write(obs: Any, row: np.ndarray) -> None:
        bits = _numbers(obs, shape, "iubf", where)  # Gymnasium takes 0.0 and 1.0 too
        if not ((bits == 0) | (bits == 1)).all():
            raise Broken(f"{where} is {brief(obs)}, outside its space; return zeros and ones")
        row[:] = bits

    return write


# --- actions ------------------------------------------------------------------------------------------------------


def actions(space: Any) -> Actions:
    """The actions of a space: Box with finite bounds, or Discrete."""
    if isinstance(space, spaces.Discrete):
        start, dtype = int(space.start), space.dtype
        none = np.zeros(0)
        return Actions(True, int(space.n), none, none, start, lambda index: dtype.type(start + int(index)))
    if not isinstance(space, spaces.Box):
        raise Broken(_unusable(space, "action", "is not supported; wrap it into Box or Discrete"))
    if space.dtype.kind != "f":
        raise Broken(f"action space {brief(space)} has whole numbers; wrap it into Discrete, or use a floating dtype")
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    if low.size == 0:
        raise Broken(f"action space {brief(space)} is empty; give the agent something to do")
    for j, bounds in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if not all(map(math.isfinite, bounds)):
            raise Broken(f"action space Box has infinite or NaN bounds {bounds} of action {j}; give it finite ones")
        if bounds[0] >= bounds[1]:
            raise Broken(f"action space Box has low >= high {bounds} of action {j}; leave out what cannot vary")
        with np.errstate(over="ignore"):
            width = np.float32(bounds[1]) - np.float32(bounds[0])
        if not 0.0 < width < np.inf:  # policies act in float32
            raise Broken(
                f"action space Box has bounds {bounds} of action {j} that float32 cannot tell apart or hold; rescale it"
            )
    return Actions(False, low.size, low, high, 0, _scaler(low, high, space.shape, space.dtype))


def _scaler(low: np.ndarray, high: np.ndarray, shape: tuple[int, ...], dtype: Any) -> Callable[[np.ndarray], Any]:
    """What scales an action from [-1, 1] to bounds that `dtype` can hold: it reaches them and never leaves them."""
    centre, half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low  # halves first: `high - low` may overflow

    def read(action: np.ndarray) -> np.ndarray:
        unit = scale(action)
        # Rounding may put the scaled action outside by a bit, which environments that check their actions refuse; or,
        # between bounds of very different size, well inside.
        scaled = np.minimum(np.maximum(centre + half * unit, low), high)
        scaled = np.where(unit == 1.0, high, np.where(unit == -1.0, low, scaled))
        return scaled.astype(dtype).reshape(shape)

    return read


def scale(action: np.ndarray) -> np.ndarray:
    """An agent's action within [-1, 1]; one that is no number is zero, as in MuJoCo."""
    return np.minimum(np.maximum(np.where(np.isnan(action), 0.0, action), -1.0), 1.0)
