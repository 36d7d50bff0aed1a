"""Pools of Gymnasium environments: seeds decide everything, in this process, in workers, and after a resume."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

import zoo
from gpi.envs import tasks
from gpi.envs.faults import ContractError, brief
from gpi.envs.gym import CheckedEnv, GymPool
from gpi.envs.importing import maker
from gpi.envs.replay import Position, digest_of
from gpi.envs.seeds import reset_seed
from gpi.envs.spaces import actions, observations
from gpi.envs.workers import WorkerPool
from gpi.errors import EnvironmentFault, UsageError

SEEDS = [11, 22, 33, 44, 55]
Either = GymPool | WorkerPool


def in_process(name: str) -> GymPool:
    return GymPool(name, maker(name), SEEDS)


def in_workers(name: str, processes: int = 2) -> WorkerPool:
    return WorkerPool(name, None, SEEDS, processes)


KINDS: dict[str, Callable[[str], Either]] = {"process": in_process, "workers": in_workers}


def random_actions(pool: Either, steps: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    if pool.spec.discrete:
        return rng.integers(pool.spec.action_size, size=(steps, pool.num_envs)).astype(np.int32)
    return rng.uniform(-1.2, 1.2, (steps, pool.num_envs, pool.spec.action_size)).astype(np.float32)


def play(pool: Either, steps: int = 60) -> list[np.ndarray]:
    """Return everything that a pool shows, and close it."""
    try:
        shown = [pool.reset()]
        for action in random_actions(pool, steps):
            shown.extend(pool.step(action))
        return shown
    finally:
        pool.close()


# --- seeds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zoo:Wanders", "zoo:WandersByNumber"])
def test_workers_show_what_this_process_shows(name: str):
    expected = play(in_process(name))
    assert any(x.any() for x in expected[3::5]) and any(x.any() for x in expected[4::5]), "both kinds of ends"
    for processes in (1, 2, 9):
        shown = play(in_workers(name, processes))
        for x, y in zip(expected, shown, strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape
            assert x.tobytes() == y.tobytes()


def test_workers_share_the_spec():
    for name in ("zoo:WandersByNumber", "zoo:SeesDict"):
        pools = in_process(name), in_workers(name, 1)
        assert pools[0].spec == pools[1].spec
        for pool in pools:
            pool.close()


def test_no_more_workers_than_environments():
    pool = in_workers("zoo:Sound", 9)
    assert len(pool.workers) == len(SEEDS)
    pool.close()


def test_a_pool_shows_what_its_environments_show_alone():
    """Every reset is seeded from the environment's seed and its number, and happens on the step after the end."""
    pool = in_process("zoo:Wanders")
    chosen = random_actions(pool, 80)
    first, steps = pool.reset(), [pool.step(action) for action in chosen]
    pool.close()
    ends = 0
    for i, seed in enumerate(SEEDS):
        env, count, over = zoo.Wanders(), 1, False
        np.testing.assert_array_equal(first[i], env.reset(seed=reset_seed(seed, 1))[0])
        for action, out in zip(chosen, steps, strict=True):
            assert out.valid[i] == (not over)
            if over:
                count += 1
                again, _ = env.reset(seed=reset_seed(seed, count))
                np.testing.assert_array_equal(out.obs[i], again)
                assert not (out.terminated[i] or out.truncated[i]) and out.reward[i] == 0.0
                over = False
                continue
            unit = np.clip(action[i].astype(np.float64), -1.0, 1.0)
            seen, reward, terminated, truncated, _ = env.step((0.5 + 2.5 * unit).astype(np.float32))
            np.testing.assert_array_equal(out.obs[i], seen)  # even at an end: the true last observation
            assert out.reward[i] == np.float32(reward)
            assert (out.terminated[i], out.truncated[i]) == (terminated, truncated)
            over = terminated or truncated
            ends += over
    assert ends > 10


def test_resetting_the_pool_counts_as_a_reset():
    pool = in_process("zoo:Sound")
    firsts = [pool.reset() for _ in range(2)]
    pool.close()
    assert (firsts[0] != firsts[1]).all()
    env = zoo.Sound()
    np.testing.assert_array_equal(firsts[1][2], env.reset(seed=reset_seed(SEEDS[2], 2))[0])


def test_environments_of_other_seeds_differ():
    pool = in_process("zoo:Sound")
    obs = pool.reset()
    pool.close()
    assert len({row.tobytes() for row in obs}) == len(SEEDS)


def test_an_array_that_changes_later_corrupts_nothing():
    shown = play(in_process("zoo:SeesInPlace"))
    plain = play(GymPool("x", zoo.Endless, SEEDS))
    assert all(x.tobytes() == y.tobytes() for x, y in zip(shown, plain, strict=True))


def test_nan_is_the_action_zero():
    pool = GymPool("x", zoo.Sound, [1, 1])
    pool.reset()
    out = pool.step(np.array([[np.nan, np.nan], [0.0, 0.0]], np.float32))
    pool.close()
    np.testing.assert_array_equal(out.obs[0], out.obs[1])


# --- resuming -----------------------------------------------------------------------------------------------------


class Tracker:
    """Keeps track of the position of a pool, as training does."""

    def __init__(self, pool: Either):
        self.pool, n = pool, pool.num_envs
        self.obs = pool.reset()
        self.resets, self.over = np.ones(n, np.int64), np.zeros(n, np.bool_)
        self.actions: list[list[np.ndarray]] = [[] for _ in range(n)]
        self.digest = [digest_of(0, row[None], np.zeros(1, np.float32)) for row in self.obs]

    def play(self, action: np.ndarray) -> None:
        out = self.pool.step(action)
        self.obs = out.obs
        np.testing.assert_array_equal(out.valid, ~self.over)
        for i, row in enumerate(self.obs):
            if self.over[i]:
                self.resets[i] += 1
                self.actions[i], before, reward = [], 0, np.zeros(1, np.float32)
            else:
                self.actions[i].append(action[i])
                before, reward = self.digest[i], out.reward[i : i + 1]
            self.digest[i] = digest_of(before, row[None], reward)
        self.over = out.terminated | out.truncated

    def position(self) -> Position:
        calls = np.array([len(taken) for taken in self.actions])
        shape = (max(calls), self.pool.num_envs, *([] if self.pool.spec.discrete else [self.pool.spec.action_size]))
        actions = np.zeros(shape, np.int32 if self.pool.spec.discrete else np.float32)
        for i, taken in enumerate(self.actions):
            for t, action in enumerate(taken):
                actions[t, i] = action
        return Position(self.resets.copy(), calls, np.array(self.digest, np.int64), actions)


@pytest.mark.parametrize("name", ["zoo:Wanders", "zoo:WandersByNumber"])
@pytest.mark.parametrize("kind", KINDS)
def test_seek_brings_a_new_pool_to_the_same_position(kind: str, name: str):
    pool, new = KINDS[kind](name), KINDS[kind](name)
    try:
        tracker = Tracker(pool)
        chosen = random_actions(pool, 90)
        for action in chosen[:50]:
            tracker.play(action)
        while not (tracker.over.any() and not tracker.over.all()):  # also where some have just ended
            tracker.play(chosen[0])
        position = tracker.position()
        assert len(set(position.calls)) > 1 and len(set(position.resets)) > 1, "episodes of different lengths"
        obs, digest = new.seek(position)
        assert obs.tobytes() == tracker.obs.tobytes()
        np.testing.assert_array_equal(digest, position.digest)
        for action in chosen[50:]:
            one, other = pool.step(action), new.step(action)
            assert all(x.tobytes() == y.tobytes() for x, y in zip(one, other, strict=True))
    finally:
        pool.close()
        new.close()


@pytest.mark.parametrize("kind", KINDS)
def test_seek_right_after_the_first_reset(kind: str):
    pool, new = KINDS[kind]("zoo:Wanders"), KINDS[kind]("zoo:Wanders")
    try:
        tracker = Tracker(pool)
        obs, digest = new.seek(tracker.position())
        assert obs.tobytes() == tracker.obs.tobytes() and digest.tolist() == tracker.digest
    finally:
        pool.close()
        new.close()


def test_an_environment_that_does_not_repeat_itself_has_another_digest():
    pool, new = in_process("zoo:Shaky"), in_process("zoo:Shaky")
    tracker = Tracker(pool)
    for action in random_actions(pool, 5):
        tracker.play(action)
    position = tracker.position()
    assert (new.seek(position)[1] != position.digest).all()


def test_a_reward_alone_changes_the_digest():
    class Pays(zoo.Sound):
        luck = 0.0

        def pay(self) -> float:
            return self.luck

    class PaysMore(Pays):
        luck = 0.5

    tracker = Tracker(GymPool("x", Pays, SEEDS))
    tracker.play(np.zeros((5, 2), np.float32))
    obs, digest = GymPool("x", PaysMore, SEEDS).seek(tracker.position())
    assert obs.tobytes() == tracker.obs.tobytes() and (digest != tracker.digest).all()


# --- actions ------------------------------------------------------------------------------------------------------


def bounds(dtype: type[np.floating]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Return two numbers of a dtype, of any size, that float32 can hold and tell apart."""
    width = np.finfo(dtype).bits
    largest = min(float(np.finfo(dtype).max), 2.0**126)
    number = st.floats(-largest, largest, width=width)  # type: ignore[arg-type]
    return st.tuples(number, number).filter(lambda pair: np.float32(pair[0]) < np.float32(pair[1]))


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([np.float16, np.float32, np.float64]))
def test_actions_reach_their_bounds_and_never_leave_them(data: st.DataObject, dtype: type[np.floating]):
    low, high = data.draw(bounds(dtype))
    unit = np.float32(data.draw(st.floats(-1.0, 1.0, width=32)))
    check_scaling(low, high, unit, dtype)


@given(st.floats(-1.0, 1.0, width=32))
@example(1.0)
@example(-0.9)
def test_actions_between_bounds_of_very_different_size(unit: float):
    check_scaling(-1e30, 1.0, np.float32(unit), np.float32)
    check_scaling(np.float32(0.1), np.float32(0.3), np.float32(unit), np.float32)
    near = np.nextafter(np.float32(2.0), np.float32(3.0))
    check_scaling(2.0, near, np.float32(unit), np.float32)  # nothing between: rounds past the lower
    check_scaling(0.0, 1e-45, np.float32(unit), np.float32)


@pytest.mark.parametrize("pair", [(2.0, np.nextafter(2.0, 3.0)), (-3e38, 3e38), (-1e40, 1e40), (0.0, 5e-324)])
def test_bounds_that_float32_cannot_hold_or_tell_apart_are_refused(pair: tuple[float, float]):
    space = spaces.Box(np.array(pair[:1]), np.array(pair[1:]), dtype=np.float64)
    with pytest.raises(ContractError, match="float32 cannot tell apart or hold"):
        actions(space)


def check_scaling(low: Any, high: Any, unit: np.float32, dtype: type[np.floating]) -> None:
    space = spaces.Box(np.array([low], dtype), np.array([high], dtype), dtype=dtype)
    do = actions(space)
    lowest, highest, scaled = (do.cast(do.scale(np.array([x], np.float32))) for x in (-1.0, 1.0, unit))
    assert lowest == space.low and highest == space.high
    assert scaled.dtype == dtype and space.contains(scaled)
    exact = (
        Fraction(float(low)) * (1 - Fraction(float(unit))) + Fraction(float(high)) * (1 + Fraction(float(unit)))
    ) / 2
    size = max(abs(float(low)), abs(float(high)))
    tolerance = 2 * Fraction(size) * Fraction(float(np.finfo(dtype).eps)) + Fraction(float(np.finfo(dtype).tiny))
    assert abs(Fraction(float(scaled[0])) - exact) <= tolerance


def test_actions_beyond_the_bounds_are_clipped():
    do = actions(spaces.Box(-2.0, 3.0, (2, 1), np.float32))
    taken = do.cast(do.scale(np.array([-7.0, np.inf], np.float32)))
    np.testing.assert_array_equal(taken, np.array([[-2.0], [3.0]], np.float32))
    assert (do.low == -2.0).all() and (do.high == 3.0).all() and do.size == 2 and not do.discrete


def test_discrete_actions_begin_at_their_start():
    space = spaces.Discrete(4, start=-1)
    do = actions(space)
    taken = [do.cast(one) for one in do.scale(np.arange(do.size, dtype=np.int32))]
    assert taken == [-1, 0, 1, 2] and all(space.contains(one) for one in taken) and do.start == -1


# --- observations -------------------------------------------------------------------------------------------------

SPACES = [
    spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Box(0, 255, (2, 2, 3), np.uint8),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-7),
    spaces.MultiDiscrete([2, 5, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, -1], [0, 9]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 2)),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2))),
    spaces.Dict({"z": spaces.Discrete(3), "a": spaces.Box(-1.0, 1.0, (2,)), "m": spaces.MultiBinary(2)}),
    spaces.Dict({"b": spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.MultiDiscrete([2, 2])})))}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_observations_are_flattened_as_gymnasium_does(space: gymnasium.Space):
    see = observations(space)
    space.seed(3)
    assert see.size == spaces.flatdim(space) == see.low.size == see.high.size
    for _ in range(20):
        sample = space.sample()
        row = np.full(see.size, np.nan, np.float32)
        see.write(sample, row)
        np.testing.assert_array_equal(row, np.asarray(spaces.flatten(space, sample), np.float32))
        assert (see.low <= row).all() and (row <= see.high).all()


def test_entries_of_containers_have_names():
    see = observations(spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Tuple((spaces.Box(0.0, 1.0, (2,)),))}))
    assert see.names == ("a.0[0]", "a.0[1]", "z[0]", "z[1]")
    assert observations(spaces.Discrete(2)).names == ()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_never_puts_an_observation_outside(bound: float):
    see = observations(spaces.Box(bound, bound, (1,), np.float64))
    row = np.empty(1, np.float32)
    see.write(np.array([bound]), row)
    assert see.low[0] <= row[0] <= see.high[0]


def test_a_note_on_a_container_names_the_entry():
    class Outside(zoo.SeesDict):
        def see(self) -> Any:
            return super().see() | {"z": np.array([0.0, 0.0, 99.0])}

    pool = GymPool("x", Outside, [1])
    pool.reset()
    assert "observation z[2] is 99, outside its space [-10, 10]" in pool.notes["outside"]


def test_notes_find_their_way_out_of_workers():
    pool = WorkerPool("zoo:PaysArray", None, SEEDS, 2)
    try:
        pool.reset()
        assert pool.notes == {}
        for _ in range(5):
            pool.step(np.zeros((5, 2), np.float32))
        assert list(pool.notes) == ["reward"] and "step 3 of episode 1: reward is '[1.]'" in pool.notes["reward"]
    finally:
        pool.close()


def test_any_value_is_brief():
    assert brief("a\n b\x1b[0m") == "a b?[0m"
    assert brief(zoo.Unspeakable()) == "a Unspeakable"
    assert len(brief("x" * 1000)) == 60


# --- pools and their environments ---------------------------------------------------------------------------------


def test_environments_of_a_pool_must_be_alike():
    made = iter([zoo.Sound(), zoo.Sound(), zoo.SeesScalar()])
    with pytest.raises(EnvironmentFault, match="x: observation space differs between instances"):
        GymPool("x", lambda: next(made), [1, 2, 3])


def test_environments_of_a_pool_must_be_distinct():
    inner = zoo.Sound()
    with pytest.raises(EnvironmentFault, match="gave the same environment again"):
        GymPool("x", lambda: gymnasium.wrappers.TimeLimit(inner, 5), [1, 2])


def test_a_pool_that_cannot_be_made_closes_the_environments_it_made():
    closed = []

    class Closes(zoo.Sound):
        def close(self) -> None:
            closed.append(self)

    made = []

    def make() -> Any:
        if len(made) == 2:
            raise RuntimeError("no more")
        made.append(Closes())
        return made[-1]

    with pytest.raises(EnvironmentFault, match="making another raised RuntimeError: no more"):
        GymPool("x", make, [1, 2, 3])
    assert closed == made


def test_interrupts_are_not_faults():
    class Interrupted(zoo.Sound):
        def pay(self) -> Any:
            raise KeyboardInterrupt

    env, row = CheckedEnv("x", Interrupted, 1, 0), np.empty(3, np.float32)
    env.reset(row)
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(2, np.float32), row)


def test_pools_by_name():
    for backend, kind in (("gymnasium", GymPool), ("processes", WorkerPool)):
        pool = tasks.make_pool(tasks.find("CartPole-v1", backend), [1, 2], 1)
        pool.close()
        assert isinstance(pool, kind) and pool.spec.id == "CartPole-v1" and pool.spec.discrete


# --- processes ----------------------------------------------------------------------------------------------------


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(running, pids))


def test_workers_end_with_the_pool():
    pool = in_workers("zoo:Sound")
    pids = [process.pid for process, _ in pool.workers]
    assert len(pids) == 2 and all(map(running, pids))
    pool.close()
    assert not any(map(running, pids)), "close waits for them"
    pool.close()  # a second time does nothing


def test_workers_that_hang_are_killed_together():
    pool = in_workers("zoo:Hangs", 5)
    pids = [process.pid for process, _ in pool.workers]
    for _, pipe in pool.workers:
        pipe.send_bytes(b"reset")
    time.sleep(0.2)
    pool.close()
    assert not any(map(running, pids))


def test_workers_end_when_their_parent_is_killed():
    script = (
        "import time; from gpi.envs.workers import WorkerPool; pool = WorkerPool('zoo:Sound', None, [1, 2], 2); "
        "print(*(process.pid for process, _ in pool.workers), flush=True); time.sleep(60)"
    )
    path = os.pathsep.join([str(Path(zoo.__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(running, pids))
        parent.send_signal(signal.SIGKILL)
    assert gone(pids)


def top_level() -> Any:
    return zoo.Sound()


def test_callables_that_workers_cannot_import_are_refused():
    def inner() -> Any:
        return zoo.Sound()

    for make in (inner, lambda: zoo.Sound(), zoo.Sound().reset):
        with pytest.raises(UsageError, match="cannot be imported by worker processes; define it at the top level"):
            WorkerPool(tasks.name_of(make), make, [1], 1)
    with pytest.raises(UsageError, match="my task cannot be imported"):
        WorkerPool("my task", top_level, [1], 1)
    pool = WorkerPool(tasks.name_of(top_level), top_level, [1], 1)
    assert pool.spec.id == f"{__name__}:top_level"
    pool.close()


def test_a_name_that_workers_do_not_find_is_a_usage_error():
    with pytest.raises(UsageError, match="'zoo:nothing' is not found"):
        WorkerPool("zoo:nothing", None, [1], 1)


@pytest.fixture
def keyboard():
    """Put a line on standard input, waiting to be read."""
    ours, other = os.pipe()
    os.write(other, b"5.0\n")
    before = os.dup(0)
    os.dup2(ours, 0)
    yield
    os.dup2(before, 0)
    for file in (ours, other, before):
        os.close(file)


@pytest.mark.usefixtures("keyboard")
def test_workers_leave_the_keyboard_alone():
    pool = WorkerPool("zoo:Asks", None, [1], 1)
    try:
        pool.reset()
        with pytest.raises(EnvironmentFault, match="step raised EOFError"):
            pool.step(np.zeros((1, 2), np.float32))
    finally:
        pool.close()


def test_workers_do_not_begin_with_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "socket.py").write_text("raise RuntimeError('not the socket module')\n")
    monkeypatch.chdir(tmp_path)
    WorkerPool("zoo:Sound", None, [1], 1).close()


def test_workers_that_see_different_spaces_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("ZOO_FIRST", str(tmp_path / "first"))
    with pytest.raises(EnvironmentFault, match="zoo:DependsOnProcess: spaces differ between worker processes"):
        WorkerPool("zoo:DependsOnProcess", None, [1, 2], 2)
