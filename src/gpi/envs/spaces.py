"""Gymnasium's spaces as agents see them: observations flattened, actions scaled from [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sized
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from gpi.envs.faults import ContractError, brief
from gpi.standalone import scale_action

MAX_NAMED = 4096
"""Largest observation whose entries have names."""
MAX_SIZE = 2**22
"""Largest observation; a larger one is a mistake, such as the one-hot encoding of a huge Discrete."""
IMAGE_SIZE = 32 * 32
"""Smallest picture, in numbers: a smaller array may be a board or a map, which dense networks can learn from."""
WriteRow = Callable[[object, np.ndarray], None]
Tell = Callable[[str, str], None]
"""Takes a note about a departure from the space that training can live with: its kind, and the words."""


class ObservationSpace(NamedTuple):
    """An observation space, and how its observations are flattened into rows of float32."""

    size: int
    names: tuple[str, ...]  # of every entry, where the space names its parts
    write: WriteRow  # an observation into a row `[size]`; raises ContractError if it does not belong to the space
    low: np.ndarray  # [size] float32
    high: np.ndarray


class ActionSpace(NamedTuple):
    """An action space, and how an agent's actions become its own."""

    discrete: bool
    size: int
    low: np.ndarray  # [size] float64; empty where discrete
    high: np.ndarray
    start: int
    scale: Callable[[np.ndarray], np.ndarray]  # agents' actions, of one environment or many, in the space's units
    cast: Callable[[np.ndarray], Any]  # one scaled action with the dtype and shape that the environment expects


def observations(space: object, tell: Tell = lambda kind, words: None) -> ObservationSpace:
    """Return how to flatten a space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them."""
    parts = _parts(space, "", tell)
    size = sum(part.low.size for part in parts)
    if size == 0:
        raise ContractError(f"observation space {brief(space)} is empty; give the agent something to see")
    low, high = (np.concatenate(bounds) for bounds in zip(*((p.low, p.high) for p in parts), strict=True))
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return ObservationSpace(size, (), parts[0].write, low, high)
    ends = np.cumsum([part.low.size for part in parts]).tolist()
    writes = [(part.write, end - part.low.size, end) for part, end in zip(parts, ends, strict=True)]
    take = _taker(space, "")

    def write(obs: object, row: np.ndarray) -> None:
        leaves: list[object] = []
        take(obs, leaves)
        for leaf, (write_part, begin, end) in zip(leaves, writes, strict=True):
            write_part(leaf, row[begin:end])

    few = size <= MAX_NAMED  # the names go into the policy file, whose header must stay short
    names = tuple(f"{p.name}[{i}]" for p in parts for i in range(p.low.size)) if few else ()
    return ObservationSpace(size, names, write, low, high)


def image_in(space: object, name: str = "") -> str | None:
    """Return where a space holds an image, `observation 'camera'`, or None: uint8, two dimensions or more, not tiny."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = (image_in(one, f"{name}.{key}".strip(".")) for key, one in _inner(space))
        return next((found for found in inner if found), None)
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) < 2:
        return None
    where = f"observation {name!r}" if name else "observation"
    return f"{where} of shape {space.shape}" if math.prod(space.shape) >= IMAGE_SIZE else None


class _Part(NamedTuple):
    """One leaf of an observation space."""

    name: str
    write: WriteRow
    low: np.ndarray
    high: np.ndarray


NUMBERS = "fiub"
"""Kinds of dtypes that float32 can stand for."""
FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def _has_size(space: object) -> bool:
    """Return whether a space, or a part of it, has a fixed size."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(_has_size(one) for _, one in _inner(space))
    return isinstance(space, FIXED)


def _parts(space: object, name: str, tell: Tell) -> list[_Part]:
    """Return the leaves of a space that have a fixed size, in its order."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        leaves: list[_Part] = []
        for key, one in _inner(space):
            inner = f"{name}.{key}".strip(".")
            if _has_size(one) or not _has_size(space):
                leaves += _parts(one, inner, tell)
            else:
                tell(f"size of {inner}", f"observation {inner!r} space {type(one).__name__} has no fixed size; "
                     "it is left out, and the policy does not see it")  # fmt: skip
        return leaves
    where = f"observation {name!r}" if name else "observation"
    if isinstance(space, spaces.Box):
        _small(math.prod(space.shape), space, where)
        if not (space.low <= space.high).all():
            raise ContractError(f"{where} space {brief(space)} has low > high or NaN bounds; order them")
        return [_Part(name, _box(space, where, tell), _single(space.low), _single(space.high))]
    if isinstance(space, spaces.Discrete):
        choices, first, shape = (int(space.n),), np.array([int(space.start)]), ()
    elif isinstance(space, spaces.MultiDiscrete):
        choices, first, shape = tuple(int(n) for n in space.nvec.ravel()), space.start.ravel(), space.nvec.shape
    elif isinstance(space, spaces.MultiBinary):
        size = _small(math.prod(space.shape), space, where)
        return [_Part(name, _binary(space.shape, where), np.zeros(size, np.float32), np.ones(size, np.float32))]
    else:
        raise ContractError(_unusable(space, where, "has no fixed size; use Box, Discrete, MultiDiscrete, MultiBinary, "
                                      "Dict or Tuple: gymnasium.wrappers.TransformObservation makes one"))  # fmt: skip
    size = _small(sum(choices), space, where)
    one_hot = _one_hot(np.array(choices), first, shape, where)
    return [_Part(name, one_hot, np.zeros(size, np.float32), np.ones(size, np.float32))]


def _inner(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, Any]]:
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def _unusable(space: object, where: str, why: str) -> str:
    """Return the message about a space of an unusable kind."""
    if space is None:
        return f"{where} space is missing (None); set it in __init__"
    kind = type(space)
    if not isinstance(space, spaces.Space):
        return f"{where} space is a {kind.__module__}.{kind.__qualname__}; use one of gymnasium.spaces"
    return f"{where} space {kind.__name__} {why}"


def _small(size: int, space: object, where: str) -> int:
    """Return a size; raise ContractError if it is too large."""
    if size > MAX_SIZE:
        raise ContractError(
            f"{where} space {brief(space)} has {size} numbers, at most {MAX_SIZE} are possible; make it smaller"
        )
    return size


def _single(bound: np.ndarray) -> np.ndarray:
    """Round a bound to float32, as observations are rounded, so that none ends up outside."""
    with np.errstate(over="ignore"):
        return bound.ravel().astype(np.float32)


def _taker(space: object, name: str) -> Callable[[object, list[object]], None]:
    """Return a function that appends the leaves of an observation to a list, checking its keys and lengths."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda obs, leaves: leaves.append(obs)
    inner = [(key, _taker(one, f"{name}.{key}".strip("."))) for key, one in _inner(space) if _has_size(one)]
    where = f"observation {name!r}" if name else "observation"
    keys = [key for key, _ in _inner(space)]
    kinds, kind = (Mapping, "a dict") if isinstance(space, spaces.Dict) else ((tuple, list, np.ndarray), "a tuple")

    def take(obs: object, leaves: list[object]) -> None:
        if not isinstance(obs, kinds):
            raise ContractError(f"{where} is a {type(obs).__name__}, its space needs {kind}; return {kind}")
        if len(obs) != len(keys) or (isinstance(obs, Mapping) and obs.keys() != set(keys)):
            raise ContractError(f"{where} {_uneven(obs, keys)}; return exactly those of the space")
        for key, one in inner:
            one(obs[key], leaves)

    return take


def _uneven(obs: Sized, keys: list[Any]) -> str:
    """Say how a container differs from its space."""
    if not isinstance(obs, Mapping):
        return f"has {len(obs)} entries, its space has {len(keys)}"
    missing = [key for key in keys if key not in obs]
    if missing:
        return f"lacks the key {missing[0]!r} of its space"
    return f"has the key {brief(next(key for key in obs if key not in keys))!r}, which its space lacks"


def _box(space: spaces.Box, where: str, tell: Tell) -> WriteRow:
    shape, dtype = space.shape, space.dtype
    accepted: set[np.dtype] = set()
    narrow = np.can_cast(dtype, np.float32)

    def write(obs: object, row: np.ndarray) -> None:
        if not isinstance(obs, np.ndarray | np.generic):
            words = f"{where} is a {type(obs).__name__}, its space needs an array of {dtype}; {remedy(dtype)}"
            obs = _array(obs, words)
            tell("list", f"{words}: until then it is converted at every step")
            accepted.add(obs.dtype)
        if obs.shape != shape:
            raise ContractError(f"{where} has shape {obs.shape}, its space has {shape}; return the shape of the space")
        if obs.dtype not in accepted:
            if not np.can_cast(obs.dtype, dtype):
                words = f"{where} has dtype {obs.dtype}, its space has {dtype}; {remedy(dtype)}"
                if obs.dtype.kind not in NUMBERS:
                    raise ContractError(words)
                tell("dtype", f"{words}: the policy sees float32 all the same")
            accepted.add(obs.dtype)
        with np.errstate(all="ignore") if not narrow or obs.dtype.itemsize > 4 else nullcontext():
            row[:] = obs.ravel()  # 1e300 is infinite in float32, which is judged elsewhere

    return write


def _array(obs: object, words: str) -> np.ndarray:
    """Return the array of numbers that a list, or another library's array, stands for; else raise with these words."""
    try:
        found = np.asarray(obs)
    except Exception as error:  # of ragged lists, and of other libraries
        raise ContractError(words) from error
    if found.dtype.kind not in NUMBERS:
        raise ContractError(words)
    return found


def remedy(dtype: np.dtype) -> str:
    """Say how to return the right dtype."""
    return f"return np.asarray(obs, dtype=np.{np.dtype(dtype).name})"


def _numbers(obs: object, shape: tuple[int, ...], kinds: str, where: str) -> np.ndarray:
    """Return the numbers of an array of the right shape; integers, unless the `kinds` of dtypes include "f"."""
    try:
        numbers = np.asarray(obs)
    except ValueError as error:
        raise ContractError(f"{where} is {brief(obs)!r}, not an array; return the shape of the space") from error
    if numbers.dtype.kind not in kinds:
        raise ContractError(f"{where} is {brief(obs)!r}, its space has whole numbers; return integers")
    if numbers.shape != shape:
        raise ContractError(f"{where} has shape {numbers.shape}, its space has {shape}; return the shape of the space")
    return numbers.ravel()


def _one_hot(choices: np.ndarray, first: np.ndarray, shape: tuple[int, ...], where: str) -> WriteRow:
    begin = np.concatenate([[0], np.cumsum(choices)[:-1]])

    def write(obs: object, row: np.ndarray) -> None:
        index = _numbers(obs, shape, "iub", where).astype(np.int64) - first
        if (index < 0).any() or (index >= choices).any():
            raise ContractError(f"{where} is {brief(obs)}, outside its space; return a number of the space")
        row[:] = 0.0
        row[begin + index] = 1.0

    return write


def _binary(shape: tuple[int, ...], where: str) -> WriteRow:
    def write(obs: object, row: np.ndarray) -> None:
        bits = _numbers(obs, shape, "iubf", where)  # Gymnasium takes 0.0 and 1.0 too
        if not ((bits == 0) | (bits == 1)).all():
            raise ContractError(f"{where} is {brief(obs)}, outside its space; return zeros and ones")
        row[:] = bits

    return write


def actions(space: object) -> ActionSpace:
    """Return how to scale actions to a space: Box with finite bounds, or Discrete."""
    if isinstance(space, spaces.Discrete):
        start, dtype = int(space.start), space.dtype
        none = np.zeros(0)
        return ActionSpace(
            True, int(space.n), none, none, start, lambda index: np.asarray(index, np.int64) + start,
            lambda action: dtype.type(int(action)),
        )  # fmt: skip
    if not isinstance(space, spaces.Box):
        raise ContractError(_unusable(space, "action", "is not supported; wrap it in Box or Discrete"))
    if space.dtype.kind != "f":
        raise ContractError(
            f"action space {brief(space)} has whole numbers; wrap it in Discrete, or use a floating dtype"
        )
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    if low.size == 0:
        raise ContractError(f"action space {brief(space)} is empty; give the agent something to do")
    for j, bounds in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if not all(map(math.isfinite, bounds)):
            raise ContractError(
                f"action space Box has infinite or NaN bounds {bounds} of action {j}; give it finite ones"
            )
        if bounds[0] >= bounds[1]:
            raise ContractError(f"action space Box has low >= high {bounds} of action {j}; leave out what cannot vary")
        with np.errstate(over="ignore"):
            width = np.float32(bounds[1]) - np.float32(bounds[0])
        if not 0.0 < width < np.inf:  # policies act in float32
            raise ContractError(
                f"action space Box has bounds {bounds} of action {j} that float32 cannot tell apart or hold; rescale it"
            )
    shape, dtype = space.shape, space.dtype
    return ActionSpace(
        False, low.size, low, high, 0, lambda action: scale_action(action, low, high),
        lambda action: action.astype(dtype).reshape(shape),
    )  # fmt: skip
