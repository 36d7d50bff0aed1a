"""A zoo of environments: faulty ones, each with the words that must name its fault, and odd but sound ones.

Every faulty one differs from `Sound` in one thing.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from gpi.errors import EnvironmentFault, GpiError, UsageError


class Faulty(NamedTuple):
    """A faulty environment: its name, the words that the line about it must contain, and the kind of error."""

    name: str
    words: tuple[str, ...]
    kind: type[GpiError] = EnvironmentFault


ZOO: list[Faulty] = []
NOTED: list[Faulty] = []
"""Training can live with them: a note says what is wrong."""
SOUND: list[str] = []


def faulty(*words: str) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        ZOO.append(Faulty(f"{__name__}:{make.__name__}", words))
        return make

    return add


def noted(*words: str) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        NOTED.append(Faulty(f"{__name__}:{make.__name__}", words))
        return make

    return add


def sound(make: Any) -> Any:
    SOUND.append(f"{__name__}:{make.__name__}")
    return make


@sound
class Sound(gymnasium.Env):
    """Moves three numbers about for 20 steps."""

    length = 20
    observation: spaces.Space[Any] | None = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action: spaces.Space[Any] | None = spaces.Box(-2.0, 3.0, (2,), np.float32)

    def __init__(self):
        self.observation_space: Any = self.observation
        self.action_space: Any = self.action
        self.t = 0
        self.state = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.state = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.state = np.float32(0.9) * self.state + np.float32(0.1) * np.float32(np.mean(action))
        return self.see(), self.pay(), self.over(), self.cut(), {}

    def see(self) -> Any:
        return self.state

    def pay(self) -> Any:
        return float(-abs(self.state[0]))

    def over(self) -> Any:
        return False

    def cut(self) -> Any:
        return self.t >= self.length


# --- making it ----------------------------------------------------------------------------------------------------


@faulty("making it raised FileNotFoundError: no level 3; fix")
class ConstructorRaises(Sound):
    def __init__(self):
        raise FileNotFoundError("no level 3")


@faulty("making it raised ImportError", "install its dependencies")
class ConstructorLacksLibrary(Sound):
    def __init__(self):
        raise ImportError("libphysics.so is missing")


@faulty("a dict is not an environment", "return a gymnasium.Env")
def makes_a_dict() -> Any:
    return {}


@faulty("a NoneType is not an environment", "return a gymnasium.Env")
def makes_none() -> Any:
    Sound()


@faulty("observation space is missing (None)")
def makes_a_class() -> Any:
    return Sound


@faulty("making it raised TypeError", "level")
def needs_an_argument(level: int) -> Any:
    return Sound()


@faulty("making another raised RuntimeError: port 7000 is taken; training needs several")
class SecondFails(Sound):
    alive = 0

    def __init__(self):
        super().__init__()
        if SecondFails.alive:
            raise RuntimeError("port 7000 is taken")
        SecondFails.alive += 1

    def close(self) -> None:
        SecondFails.alive = 0


ONLY = Sound()


@faulty("making another gave the same environment again")
def makes_one_twice() -> Any:
    return ONLY


COUNTED: dict[str, int] = {}


def nth(name: str) -> int:
    """Return how many environments have been made under a name, this one included."""
    COUNTED[name] = COUNTED.get(name, 0) + 1
    return COUNTED[name]


@faulty("observation space differs between instances: Box(-10.0, 10.0, (3,), float32) and Box(-10.0, 10.0, (4,)")
class ObservationsDiffer(Sound):
    def __init__(self):
        super().__init__()
        if nth("observations") % 2 == 0:
            self.observation_space = spaces.Box(-10.0, 10.0, (4,), np.float32)


@faulty("observation space differs between instances")
class ObservationBoundsDiffer(Sound):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-10.0, 10.0 + nth("bounds"), (3,), np.float32)


@faulty("action space differs between instances: Discrete(2) and Discrete(3)")
class ActionsDiffer(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Discrete(2 + (nth("actions") + 1) % 2)


# --- spaces -------------------------------------------------------------------------------------------------------


@faulty("observation space Text has no fixed size; use Box")
class SeesText(Sound):
    observation = spaces.Text(5)


@faulty("observation space Graph has no fixed size; use Box")
class SeesGraph(Sound):
    observation = spaces.Graph(spaces.Discrete(2), None)


@faulty("observation space Sequence has no fixed size; use Box")
class SeesSequence(Sound):
    observation = spaces.Sequence(spaces.Discrete(2))


@noted("observation 'a.words' space Text has no fixed size; it is left out")
class SeesTextInside(Sound):
    observation = spaces.Dict(
        {"a": spaces.Dict({"words": spaces.Text(5), "n": spaces.Discrete(2)}), "x": spaces.Box(-10.0, 10.0, (3,))}
    )

    def see(self) -> Any:
        return {"x": self.state, "a": {"words": "go", "n": 1}}


@faulty("observation 'words' space Text has no fixed size; use Box", "gymnasium.wrappers.TransformObservation")
class SeesTextOnly(Sound):
    observation = spaces.Dict({"words": spaces.Text(5)})


@faulty("observation space is missing (None); set it in __init__")
class SeesNothing(Sound):
    observation = None


@faulty("observation space is a builtins.tuple; use one of gymnasium.spaces")
class SeesTuple(Sound):
    observation: Any = (3,)


@faulty("observation space Box", "is empty")
class SeesEmptyBox(Sound):
    observation = spaces.Box(-1.0, 1.0, (0,))


@faulty("observation space Discrete(5000000) has 5000000 numbers, at most")
class SeesTooMuch(Sound):
    observation = spaces.Discrete(5_000_000)


@faulty("its observation_space raised KeyError: 'size'")
class SpaceRaises(Sound):
    def __init__(self):
        self.action_space = self.action

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        return {}["size"]


@faulty("observation space Box", "low > high or NaN bounds")
class SeesNanBounds(Sound):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.observation_space.high[1] = np.nan


@faulty("action space MultiDiscrete is not supported; wrap it in Box or Discrete")
class ActsMultiDiscrete(Sound):
    action = spaces.MultiDiscrete([2, 3])


@faulty("action space MultiBinary is not supported; wrap it in Box or Discrete")
class ActsMultiBinary(Sound):
    action = spaces.MultiBinary(3)


@faulty("action space Dict is not supported; wrap it in Box or Discrete")
class ActsDict(Sound):
    action = spaces.Dict({"a": spaces.Discrete(2)})


@faulty("action space Tuple is not supported; wrap it in Box or Discrete")
class ActsTuple(Sound):
    action = spaces.Tuple((spaces.Discrete(2),))


@faulty("action space is missing (None); set it in __init__")
class ActsNone(Sound):
    action = None


@faulty("action space Box(0, 5, (2,), int64) has whole numbers; wrap it in Discrete, or use a floating dtype")
class ActsIntegers(Sound):
    action = spaces.Box(0, 5, (2,), np.int64)


@faulty("action space Box has infinite or NaN bounds (-1.0, inf) of action 0; give it finite ones")
class ActsInfinite(Sound):
    action = spaces.Box(-1.0, np.inf, (2,), np.float32)


@faulty("action space Box has infinite or NaN bounds (nan, 1.0) of action 0; give it finite ones")
class ActsNan(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space.low[0] = np.nan


@faulty("action space Box has low >= high (0.5, 0.5) of action 1; leave out what cannot vary")
class ActsConstant(Sound):
    action = spaces.Box(np.array([[-1.0, 0.5], [-1.0, 0.5]]), np.array([[1.0, 0.5], [1.0, 0.6]]), (2, 2), np.float64)


@faulty("action space Box has low >= high (2.0, 1.0) of action 0")
class ActsCrossed(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space.low[0] = 2.0


@faulty("making it raised ValueError", "low")
class ActsRefused(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(1.0, -1.0, (2,), np.float32)


@faulty("action space Box", "is empty; give the agent something to do")
class ActsEmpty(Sound):
    action = spaces.Box(-1.0, 1.0, (0,), np.float32)


# --- reset --------------------------------------------------------------------------------------------------------


@faulty("reset 1: reset returned one ndarray; return (observation, info)")
class ResetsToObservation(Sound):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


@faulty("reset 1: reset returned one NoneType; return (observation, info)")
class ResetsToNone(Sound):
    def reset(self, **options: Any) -> Any:
        super().reset(**options)


@faulty("reset 1: reset returned 3 values; return (observation, info)")
class ResetsToThree(Sound):
    def reset(self, **options: Any) -> Any:
        return (*super().reset(**options), False)


@noted("reset 1: info is 'ready' of type str; return a dict")
class ResetInfoIsText(Sound):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], "ready"


@faulty("reset 1: reset raised TypeError", "'seed'; define reset(self, *, seed=None, options=None)")
class ResetWithoutSeed(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


@noted("reset 1: reset ignores its seed", "self.np_random")
class ResetIgnoresSeed(Sound):
    def reset(self, **options: Any) -> Any:
        self.t, self.state = 0, np.random.rand(3).astype(np.float32)  # noqa: NPY002
        return self.state, {}


@noted("reset 1: reset ignores its seed", "self.np_random")
class ResetFromConstructor(Sound):
    """Agrees between instances, as both draw the same; not between resets."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(3)

    def reset(self, **options: Any) -> Any:
        self.t, self.state = 0, self.rng.random(3).astype(np.float32)
        return self.state, {}


@noted("reset 1: reset ignores its seed", "self.np_random")
class ResetSeedsOnce(Sound):
    rng: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.rng is None:
            self.rng = np.random.default_rng(seed)
        self.t, self.state = 0, self.rng.random(3).astype(np.float32)
        return self.state, {}


@noted("reset 1: reset ignores its seed", "self.np_random")
class ResetByInstance(Sound):
    """Agrees with itself, but not with another instance."""

    def __init__(self):
        super().__init__()
        self.number = nth("instances")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.state = 0, np.random.default_rng((seed or 0, self.number)).random(3).astype(np.float32)
        return self.state, {}


@noted("reset 1: reset ignores its seed", "self.np_random")
class ResetKeepsSeed(Sound):
    """Goes on drawing random numbers if it is given the seed that it has already."""

    rng: Any = None
    last: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed != self.last:
            self.rng, self.last = np.random.default_rng(seed), seed
        self.t, self.state = 0, self.rng.random(3).astype(np.float32)
        return self.state, {}


@noted("reset ignores its seed")
class ResetCoin(Sound):
    """Starts in one of two states, so that a single comparison may agree."""

    observation = spaces.Discrete(2)
    toss = 0

    def reset(self, **options: Any) -> Any:
        self.t, self.toss = 0, int(np.random.default_rng().integers(2))
        return self.toss, {}

    def see(self) -> Any:
        return self.toss


@faulty("reset 2: reset raised RuntimeError: still open; fix the environment")
class SecondResetRaises(Sound):
    used = False

    def reset(self, **options: Any) -> Any:
        if self.used:
            raise RuntimeError("still open")
        self.used = True
        return super().reset(**options)


@faulty("reset 1: reset raised AssertionError; fix the environment")
class ResetAsserts(Sound):
    def reset(self, **options: Any) -> Any:
        raise AssertionError


# --- observations -------------------------------------------------------------------------------------------------


@noted("reset 1: observation is a list, its space needs an array of float32; return np.asarray(obs, dtype=np.float32)")
class SeesList(Sound):
    def see(self) -> Any:
        return self.state.tolist()


@noted("reset 1: observation has dtype float64, its space has float32; return np.asarray(obs, dtype=np.float32)")
class SeesDoubles(Sound):
    def see(self) -> Any:
        return self.state.astype(np.float64)


@noted("step 1 of episode 1: observation has dtype int64, its space has float32")
class SeesIntegersInSteps(Sound):
    def see(self) -> Any:
        return self.state if self.t == 0 else np.zeros(3, np.int64)


@faulty("reset 1: observation has shape (1, 3), its space has (3,)")
class SeesWrongShape(Sound):
    def see(self) -> Any:
        return self.state[None]


@faulty("step 7 of episode 1: observation has shape (2,), its space has (3,)")
class SeesWrongShapeInStep(Sound):
    def see(self) -> Any:
        return self.state[:2] if self.t == 7 else self.state


@faulty("step 20 of episode 1: observation has shape (0,), its space has (3,)")
class SeesWrongShapeAtEnd(Sound):
    def see(self) -> Any:
        return self.state[:0] if self.t == self.length else self.state


@faulty("step 20 of episode 1: observation is a NoneType")
class SeesNoneAtEnd(Sound):
    def see(self) -> Any:
        return None if self.t == self.length else self.state


@faulty("reset 1: observation 2 is nan, which is not finite")
class SeesNanAtReset(Sound):
    def see(self) -> Any:
        return np.array([0.0, 0.0, np.nan], np.float32)


@faulty("step 5 of episode 1: observation 1 is nan, which is not finite")
class SeesNan(Sound):
    def see(self) -> Any:
        return np.array([0.0, np.nan if self.t == 5 else 0.0, 0.0], np.float32)


@faulty("step 3 of episode 1: observation 0 is -inf, which is not finite")
class SeesInfinity(Sound):
    observation = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def see(self) -> Any:
        return np.array([-np.inf if self.t == 3 else 0.0, 0.0, 0.0], np.float32)


@faulty("step 3 of episode 1: observation 0 is inf, which is not finite in float32")
class SeesHuge(Sound):
    observation = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def see(self) -> Any:
        return np.array([1e300 if self.t == 3 else 0.0, 0.0, 0.0])


@noted("reset 1: observation 0 is 11, outside its space [-10, 10]; widen the space, or clip")
class SeesOutsideAtReset(Sound):
    def see(self) -> Any:
        return np.array([11.0, 0.0, 0.0], np.float32)


@noted("step 19 of episode 3: observation 2 is -10.5, outside its space [-10, 10]")
class SeesOutsideLate(Sound):
    begun = 0

    def reset(self, **options: Any) -> Any:
        self.begun += 1
        return super().reset(**options)

    def see(self) -> Any:
        return np.array([0.0, 0.0, -10.5 if self.begun == 3 and self.t == 19 else 0.0], np.float32)


@noted("of episode 1: observation 0 is", "outside its space [-10, 10]")
class SeesOutsideWhenPushed(Sound):
    """Leaves its space only where the action stays at a bound."""

    length = 200

    def step(self, action: Any) -> Any:
        out = super().step(action)
        self.state = np.float32(0.9) * self.state + np.float32(4.0) * (np.abs(action - 0.5).min() > 2.4)
        return out


@faulty("reset 1: observation lacks the key 'b' of its space")
class SeesTooFewKeys(Sound):
    observation = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})

    def see(self) -> Any:
        return {"a": 1}


@faulty("reset 1: observation lacks the key 'b' of its space")
class SeesWrongKey(Sound):
    observation = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})

    def see(self) -> Any:
        return {"a": 1, "c": 0}


@faulty("step 4 of episode 1: observation has the key 'c', which its space lacks")
class SeesTooManyKeys(Sound):
    observation = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})

    def see(self) -> Any:
        return {"a": 1, "b": 0} | ({"c": 1} if self.t == 4 else {})


@faulty("reset 1: observation is a ndarray, its space needs a dict")
class SeesNoDict(Sound):
    observation = spaces.Dict({"a": spaces.Box(-10.0, 10.0, (3,))})


@faulty("reset 1: observation has 3 entries, its space has 2")
class SeesLongTuple(Sound):
    observation = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))

    def see(self) -> Any:
        return (0, 1, 1)


@faulty("reset 1: observation 'a.1' has shape (3,), its space has (2,)")
class SeesWrongShapeInside(Sound):
    observation = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Box(-10.0, 10.0, (2,))))})

    def see(self) -> Any:
        return {"a": (0, self.state)}


@faulty("step 2 of episode 1: observation is 4, outside its space")
class SeesWrongNumber(Sound):
    observation = spaces.Discrete(4)

    def see(self) -> Any:
        return 4 if self.t == 2 else 3


@faulty("reset 1: observation is '1.0', its space has whole numbers")
class SeesFloatNumber(Sound):
    observation = spaces.Discrete(4)

    def see(self) -> Any:
        return 1.0


@faulty("reset 1: observation is [0 3], outside its space")
class SeesWrongNumbers(Sound):
    observation = spaces.MultiDiscrete([2, 3])

    def see(self) -> Any:
        return np.array([0, 3])


@faulty("reset 1: observation is [0 2], outside its space; return zeros and ones")
class SeesWrongBits(Sound):
    observation = spaces.MultiBinary(2)

    def see(self) -> Any:
        return np.array([0, 2], np.int8)


@faulty("reset 1: observation is '[1, [2]]', not an array")
class SeesRagged(Sound):
    observation = spaces.MultiDiscrete([2, 3])

    def see(self) -> Any:
        return [1, [2]]


# --- rewards, flags, info -----------------------------------------------------------------------------------------


def pays(name: str, reward: Any, *words: str, add: Any = faulty) -> None:
    """Add a faulty environment whose third reward is wrong."""
    cls = type(name, (Sound,), {"pay": lambda self: reward if self.t == 3 else 0.5, "__module__": __name__})
    globals()[name] = add("step 3 of episode 1: reward is ", *words)(cls)


pays("PaysInfinity", np.inf, "reward is inf, which is not finite")
pays("PaysNan", np.float32(np.nan), "reward is nan, which is not finite")
pays("PaysHuge", 1e300, "reward is inf, which is not finite in float32")
pays("PaysHugeInteger", 10**400, "of type int; return one number")
pays("PaysArray", np.array([1.0]), "reward is '[1.]' of type ndarray; return one number: the only one", add=noted)
pays("PaysMatrix", np.eye(2), "reward is '[[1. 0.] [0. 1.]]' of type ndarray; return one number")
pays("PaysNothing", None, "reward is 'None' of type NoneType; return one number")
pays("PaysText", "1.0", "reward is '1.0' of type str; return one number")
pays("PaysComplex", 1 + 2j, "reward is '(1+2j)' of type complex; return one number")
pays("PaysRagged", [1, [2, 3]], "of type list; return one number")


def flags(name: str, what: str, value: Any, *words: str, add: Any = faulty) -> None:
    """Add a faulty environment with a wrong flag in step 2."""
    body = {what: lambda self: value if self.t == 2 else False, "__module__": __name__}
    globals()[name] = add("step 2 of episode 1: ", *words)(type(name, (Sound,), body))


flags("EndsWithInteger", "over", 1, "terminated is '1' of type int; return a bool: it is taken as True", add=noted)
flags("EndsWithNone", "over", None, "terminated is 'None' of type NoneType; return a bool")
flags(
    "EndsWithArray",
    "over",
    np.array([True]),
    "terminated is '[ True]' of type ndarray; return a bool: it is",
    add=noted,
)
flags("EndsWithLongArray", "over", np.zeros((2, 2)), "terminated is", "return a bool")
flags("CutWithText", "cut", "no", "truncated is 'no' of type str; return a bool")


@faulty("step 1 of episode 1: step returned 4 values; return (observation, reward, terminated, truncated, info)")
class StepsToFour(Sound):
    def step(self, action: Any) -> Any:
        obs, reward, over, cut, info = super().step(action)
        return obs, reward, over or cut, info


@faulty("step 1 of episode 1: step returned one NoneType")
class StepsToNone(Sound):
    def step(self, action: Any) -> Any:
        super().step(action)


@noted("step 1 of episode 1: info is 'None' of type NoneType; return a dict")
class StepInfoIsNone(Sound):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], None)


# --- after an end -------------------------------------------------------------------------------------------------


@faulty("step 1 of episode", "every episode after the first ends at its first step", "let reset clear")
class StaysOver(Sound):
    done = False

    def over(self) -> Any:
        self.done = self.done or self.t == 5
        return self.done


@faulty("step 1 of episode", "every episode after the first ends at its first step", "let reset clear")
class StaysCut(Sound):
    count = 0

    def cut(self) -> Any:
        self.count += 1
        return self.count >= 100


@faulty("step 1 of episode 2: step raised RuntimeError: the episode is over; let reset clear")
class RaisesAfterEnd(Sound):
    done = False

    def step(self, action: Any) -> Any:
        if self.done:
            raise RuntimeError("the episode is over")
        out = super().step(action)
        self.done = out[3]
        return out


# --- crashes ------------------------------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def crashes(name: str, error: BaseException, *words: str, step: int = 9) -> None:
    """Add a faulty environment that raises in some step."""

    def pay(self: Any) -> float:
        if self.t == step:
            raise error
        return 0.0

    body = {"pay": pay, "length": 1000, "__module__": __name__}
    line = f"step {step} of episode 1: step raised {type(error).__name__}"
    globals()[name] = faulty(line, *words)(type(name, (Sound,), body))


crashes("CrashesWithValue", ValueError("bad joint"), "ValueError: bad joint; fix the environment")
crashes("CrashesWithLines", ValueError("one\n  two\r\n\tthree"), "ValueError: one two three; fix")
crashes("CrashesWithColour", ValueError("\x1b[31mred\x07"), "ValueError: ?[31mred?; fix")
crashes("CrashesWithNothing", ValueError(), "raised ValueError; fix")
crashes("CrashesUnspeakably", Unspeakable(), "raised Unspeakable: a Unspeakable; fix")
crashes("CrashesWithAssertion", AssertionError("x > 0"), "AssertionError: x > 0")
crashes("CrashesLate", KeyError("wheel"), "KeyError: 'wheel'", step=400)
crashes("Exits", SystemExit(0), "SystemExit: 0")
crashes("CrashesFromBelow", OSError(5, "disk"), "OSError: [Errno 5] disk")
crashes("CrashesWithNovel", ValueError("x" * 5000), "xxx…; fix the environment")


@faulty("step 1 of episode 1: step raised ZeroDivisionError: ", "fix the environment")
class Divides(Sound):
    def pay(self) -> Any:
        return 1 / (self.t - 1)


@faulty("step 1 of episode 1: step raised RecursionError: maximum recursion depth")
class Recurses(Sound):
    def pay(self) -> Any:
        return self.pay()


@faulty("of episode", "step raised KeyError: 199; fix the environment")
class CrashesForOneAction(Sound):
    action = spaces.Discrete(200)

    def step(self, action: Any) -> Any:
        {i: i for i in range(199)}[int(action)]
        return super().step(np.zeros(2))


@faulty("of episode 1: step raised IndexError")
class CrashesAtBound(Sound):
    """Looks actions up in a table that is one entry too short."""

    def step(self, action: Any) -> Any:
        np.zeros(10)[int(10 * (action[0] + 2.0) / 5.0)]
        return super().step(action)


# --- names --------------------------------------------------------------------------------------------------------

MODULES = {
    "zoo_raises": "table = {}\ntable['size']\n",
    "zoo_lacks": "import a_module_that_nobody_has\n",
    "zoo_unreadable": "def make(:\n",
    "zoo_exits": "import sys\nsys.exit(3)\n",
}
"""Modules that cannot be imported, and their content."""

ZOO += [
    Faulty("zoo_raises:make", ("importing zoo_raises failed: KeyError: 'size'; fix the module",)),
    Faulty("zoo_lacks:make", ("importing zoo_lacks failed: No module named 'a_module_that_nobody_has'; install",)),
    Faulty("zoo_unreadable:make", ("importing zoo_unreadable failed: SyntaxError",)),
    Faulty("zoo_exits:make", ("importing zoo_exits failed: SystemExit: 3",)),
    Faulty("a_module_that_nobody_has:make", ("is not found", "install it"), UsageError),
    Faulty("zoo.inner.most:make", ("is not found", "install it"), UsageError),
    Faulty("zoo:no_such_function", ("is not found", "register it with gymnasium.register"), UsageError),
    Faulty("zoo:MODULES", ("is not found", "name a function that returns the environment"), UsageError),
    Faulty("CartPole-v99", ("unknown task 'CartPole-v99'", "the nearest is 'CartPole-v"), UsageError),
]


# --- odd, but sound -----------------------------------------------------------------------------------------------


@sound
class SeesDict(Sound):
    """Returns keys in any order, and parts in any allowed form."""

    observation = spaces.Dict(
        {
            "z": spaces.Box(-10.0, 10.0, (3,), np.float64),
            "a": spaces.Dict({"bits": spaces.MultiBinary(2), "many": spaces.MultiDiscrete([2, 3], start=[1, -1])}),
            "pair": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(0, 255, (2, 2), np.uint8))),
        }
    )

    def see(self) -> Any:
        pair = (np.int64(-1), np.full((2, 2), 255, np.uint8))
        return {"pair": pair, "a": {"many": [2, 1], "bits": np.array([0.0, 1.0])}, "z": self.state}


@sound
class SeesBlackjack(Sound):
    observation = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(2)))

    def see(self) -> Any:
        return (self.t, self.t % 2 == 0)


@sound
class SeesScalar(Sound):
    observation = spaces.Box(-10.0, 10.0, (), np.float32)

    def see(self) -> Any:
        return self.state[0]


@sound
class SeesBounds(Sound):
    """Shows values at bounds that float32 cannot hold."""

    observation = spaces.Box(-0.1, 0.1, (3,), np.float64)

    def see(self) -> Any:
        return np.array([0.1, -0.1, 0.1])


@sound
class ActsOddly(Sound):
    """Refuses actions outside its bounds, of another dtype or shape."""

    action = spaces.Box(np.array([[-0.1], [1e-3], [7.0]]), np.array([[0.3], [9.0], [7.1]]), (3, 1), np.float64)

    def step(self, action: Any) -> Any:
        assert action.dtype == np.float64 and self.action_space.contains(action)
        return super().step(action)


@sound
class StartsAtFive(Sound):
    action = spaces.Discrete(3, start=5)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return super().step(np.zeros(2))


@sound
class SeesInPlace(Sound):
    """Returns the same array every time, and overwrites it in the next step."""

    length = 300

    def __init__(self):
        super().__init__()
        self.shown = np.zeros(3, np.float32)

    def step(self, action: Any) -> Any:
        self.shown[:] = np.nan
        return super().step(action)

    def see(self) -> Any:
        self.shown[:] = self.state
        return self.shown


@sound
class EndsAtOnce(Sound):
    def over(self) -> Any:
        return True


@sound
class EndsByCoin(Sound):
    """Most episodes have one step."""

    def over(self) -> Any:
        return bool(self.np_random.random() < 0.8)


@sound
class PaysOddly(Sound):
    """Rewards of every kind that is one number, flags of NumPy's kind."""

    def pay(self) -> Any:
        kinds = (1, True, np.float16(0.5), np.float64(0.5), np.array(0.5, np.float32), np.int8(1), np.bool_(True))
        return kinds[self.t % len(kinds)]

    def over(self) -> Any:
        return np.bool_(False)


@sound
class Talks(Sound):
    """Warns and prints in every step."""

    def see(self) -> Any:
        warnings.warn("deprecated since 2019", DeprecationWarning, stacklevel=1)
        warnings.warn("odd joint", stacklevel=1)
        print("talking")
        return super().see()


@sound
class CannotClose(Sound):
    def close(self) -> None:
        raise RuntimeError("already closed")


# --- sound, with notes --------------------------------------------------------------------------------------------


class Endless(Sound):
    length = sys.maxsize


class Shaky(Sound):
    """Starts from its seed, but steps at random."""

    def see(self) -> Any:
        return self.state + (np.float32(np.random.default_rng().random()) if self.t else np.float32(0.0))


class SharesRandomNumbers(Sound):
    """Seeds a generator that all environments share: alone it repeats itself, in a pool it does not."""

    def reset(self, **options: Any) -> Any:
        np.random.seed(options["seed"])  # noqa: NPY002
        return super().reset(**options)

    def pay(self) -> Any:
        return float(np.random.rand())  # noqa: NPY002


class EndsByLuck(Sound):
    """Ends by chance, often at once, whatever its seed: not because an end survives a reset."""

    def over(self) -> Any:
        return bool(np.random.default_rng().random() < 0.5)


class EndsByAge(Sound):
    """Ends at every third step since it was made, which after 1100 steps is the first of an episode."""

    age = 0

    def over(self) -> Any:
        self.age += 1
        return self.age % 3 == 0


# --- late faults --------------------------------------------------------------------------------------------------


class Wanders(Sound):
    """A sound environment with episodes of 1 to 30 steps."""

    def reset(self, **options: Any) -> Any:
        out = super().reset(**options)
        self.length = int(self.np_random.integers(1, 31))
        return out

    def over(self) -> Any:
        return bool(self.state[0] > 0.6)


class WandersByNumber(Wanders):
    action = spaces.Discrete(5, start=-2)

    def step(self, action: Any) -> Any:
        return super().step(np.full(2, float(action)))


class BreaksLate(Sound):
    length = 1000

    def see(self) -> Any:
        return self.state[:2] if self.t == 200 else self.state


class CrashesDeep(Sound):
    length = 1000

    def pay(self) -> Any:
        return self.compute_the_reward() if self.t == 200 else 0.0

    def compute_the_reward(self) -> float:
        raise ValueError("negative mass")


class Dies(Sound):
    def pay(self) -> Any:
        if self.t == 4:
            os._exit(7)
        return 0.0


class DiesWhenMade(Sound):
    def __init__(self):
        os._exit(9)


class PaysNanLate(Sound):
    length = 1000

    def pay(self) -> Any:
        return np.nan if self.t == 3 else 1e300 if self.t == 4 else 0.0


# --- for worker processes -----------------------------------------------------------------------------------------


class Hangs(Sound):
    def reset(self, **options: Any) -> Any:
        time.sleep(60.0)


class Asks(Sound):
    def pay(self) -> Any:
        return float(input("reward? "))


class DependsOnProcess(Sound):
    """Sees more in the process that is the first to make it."""

    def __init__(self):
        super().__init__()
        try:
            with open(os.environ["ZOO_FIRST"], "x"):
                self.observation_space = spaces.Box(-10.0, 10.0, (4,), np.float32)
        except FileExistsError:
            pass
