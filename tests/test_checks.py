"""A broken environment is named in one line before training, a sound one is left alone; late faults are named too."""

import time
import warnings
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest

import zoo
from gpi.envs import checks, dmc
from gpi.envs.checks import INEXACT, IRREPRODUCIBLE, MOST, STEPS, Checked, Effort, check
from gpi.envs.envpool import EnvPoolOnHost
from gpi.envs.faults import PACKAGE, traceback_of
from gpi.envs.gym import GymPool
from gpi.envs.tasks import Task, find
from gpi.envs.workers import WorkerPool
from gpi.errors import EnvironmentFault, GpiError, UnknownTaskError, UsageError
from zoo import MODULES, NOTED, SOUND, ZOO, Faulty

GYMNASIUM = (
    "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "FrozenLake-v1",
    "FrozenLake8x8-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1",
)  # fmt: skip
MUJOCO = ("Hopper-v5", "InvertedPendulum-v5", "Reacher-v5")
NATIVE = ("cheetah-run", "humanoid-walk", "reacher-easy", "Ant-v5", "CartPole-v1")


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Write modules that cannot be imported."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


def line_of(member: Faulty) -> str:
    """Return the line of the checks about a member of the zoo."""
    with pytest.raises(member.kind) as caught:
        check(find(member.name))
    assert type(caught.value) in (member.kind, UnknownTaskError)
    return str(caught.value)


# --- faulty environments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ZOO, ids=[member.name for member in ZOO])
@pytest.mark.usefixtures("modules")
def test_every_member_of_the_zoo_is_named_in_one_line(member: Faulty):
    line = line_of(member)
    assert len(line.splitlines()) == 1 and line.isprintable() and len(line) < 500
    assert member.name in line
    assert ": " in line.replace(member.name, "", 1) or member.kind is UsageError
    assert "; " in line, "no remedy"
    for words in member.words:
        assert words in line


def test_a_function_is_checked_under_its_name():
    def make() -> gymnasium.Env:
        return zoo.SeesNan()  # type: ignore[abstract]

    with pytest.raises(EnvironmentFault, match=r"^my task: step 5 of episode 1: observation 1 is nan"):
        check(find("my task", make=make), make)


@pytest.mark.parametrize("member", NOTED, ids=[member.name for member in NOTED])
def test_training_can_live_with_much_of_the_zoo(member: Faulty):
    """The note names the place, the value and a remedy, and every value that an agent gets is a number."""
    checked = check(find(member.name))
    [line] = checked.notes.values()
    assert len(line.splitlines()) == 1 and line.isprintable() and len(line) < 500 and line.startswith(member.name)
    for words in member.words:
        assert words in line
    assert (checked.repeats == "unseeded") == ("ignores its seed" in line)


def test_a_check_counts_steps_and_not_seconds():
    """Its result is the same on a busy machine: nothing in it but the speed depends on the time it takes."""

    class Slow(zoo.Sound):
        def pay(self):
            time.sleep(0.002)
            return 0.0

    def without_speed(checked: Checked) -> Checked:
        return checked._replace(speed=0.0, spec=checked.spec._replace(id="x"))

    seen: list[int] = []
    quick, slow = (check(find("x", make=make), make, Effort(100, show=seen.append)) for make in (zoo.Sound, Slow))
    assert without_speed(quick) == without_speed(slow) and slow.speed < 500.0 < quick.speed
    assert slow.steps == 150 and slow.whole and seen == [*range(1, 101)] * 2
    assert check(find("x", make=zoo.Sound), zoo.Sound, Effort(10, episodes=3)).episodes >= 3
    assert check(find("x", make=zoo.Sound), zoo.Sound, Effort(7, 0, alone=True)).steps == 7


def test_a_check_that_took_too_long_says_so():
    for name in ("zoo:Sound", "CartPole-v1"):
        checked = check(find(name), None, Effort(minutes=0.0))
        assert not checked.whole and checked.steps < 50


def test_an_unregistered_id_is_a_usage_error():
    with pytest.raises(UsageError, match="unknown Gymnasium id 'Nothing-v0'"):
        check(Task("Nothing-v0", "gymnasium", own=False))


# --- the traceback ------------------------------------------------------------------------------------------------


def crash(error: type[BaseException] = EnvironmentFault, name: str = "zoo:CrashesDeep") -> BaseException:
    with pytest.raises(error) as caught:
        check(find(name))
    return caught.value


def test_the_users_traceback_is_saved_without_our_frames():
    text = traceback_of(crash())
    assert text is not None and text.startswith("Traceback (most recent call last):")
    assert text.endswith("ValueError: negative mass\n") and "compute_the_reward" in text and "zoo.py" in text
    assert str(PACKAGE) not in text


def test_the_traceback_of_a_failed_import_begins_in_the_module(modules):
    text = traceback_of(crash(name="zoo_raises:make"))
    assert text is not None and "zoo_raises.py" in text and "importlib" not in text


@pytest.mark.parametrize("name", ["zoo:SeesText", "zoo:PaysText", "zoo:ResetWithoutSeed", "zoo:SeesNan"])
def test_a_broken_contract_has_no_traceback(name: str):
    assert traceback_of(crash(name=name)) is None


def test_a_traceback_keeps_its_cause():
    def make() -> None:
        try:
            {}["mass"]
        except KeyError as error:
            raise ValueError("no mass") from error

    with pytest.raises(EnvironmentFault) as caught:
        check(find("x", make=make), make)
    text = traceback_of(caught.value)
    assert text is not None and "KeyError: 'mass'" in text and "direct cause" in text


# --- sound environments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*GYMNASIUM, *SOUND])
def test_no_false_alarm(name: str):
    checked = check(find(name, "gymnasium" if ":" not in name else "auto"))
    assert checked.reproducible and checked.notes == {}
    assert checked.spec.id == name and checked.steps > 1000 and checked.episodes > 1


@pytest.mark.parametrize("name", MUJOCO)
def test_no_false_alarm_with_mujoco(name: str):
    pytest.importorskip("mujoco")
    assert check(find(name, "gymnasium")).notes == {}


@pytest.mark.parametrize("name", NATIVE)
def test_no_false_alarm_on_envpool(name: str):
    checked = check(find(name))
    assert checked.reproducible and checked.notes == {} and checked.steps >= STEPS and checked.episodes > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in dmc.TASKS if name not in NATIVE])
def test_no_false_alarm_on_the_other_tasks(name: str):
    checked = check(find(name))
    assert checked.reproducible and checked.notes == {} and checked.steps == 2 * STEPS
    assert checked.spec == dmc.TASKS[name]


@pytest.mark.parametrize("name", ["Shaky", "SharesRandomNumbers", "EndsByLuck", "EndsByAge"])
def test_steps_that_do_not_reproduce_are_a_note(name: str):
    checked = check(find(f"zoo:{name}"))
    assert checked.repeats == "inexact" and list(checked.notes.values()) == [IRREPRODUCIBLE]


def test_episodes_that_never_end_are_a_note():
    checked = check(find("zoo:Endless"))
    assert checked.reproducible and checked.episodes == 0
    assert (
        list(checked.notes) == ["endless"] and f"no episode ended in {MOST * STEPS:,} steps" in checked.notes["endless"]
    )


def test_output_of_an_environment_is_kept_apart(capsys):
    filters = list(warnings.filters)
    check(find("zoo:Talks"))
    said = capsys.readouterr()
    assert said.out == "" and "talking" in said.err and len(said.err) <= 1000
    assert list(warnings.filters) == filters


def test_extremes_and_every_action_are_tried():
    tried = []

    class Notes(zoo.ActsOddly):
        def step(self, action):
            tried.append(action.ravel())
            return super().step(action)

    check(find("x", make=Notes), Notes)
    low, high = Notes.action.low.ravel(), Notes.action.high.ravel()  # type: ignore[union-attr]
    assert (np.min(tried, axis=0) == low).all() and (np.max(tried, axis=0) == high).all()
    assert any(((low < action) & (action < high)).all() for action in tried)


def test_the_environments_are_closed_even_after_a_fault():
    closed = []

    class Closes(zoo.SeesNan):
        def close(self):
            closed.append(self)

    with pytest.raises(EnvironmentFault):
        check(find("x", make=Closes), Closes)
    assert len(closed) == 2


def test_workers_must_be_able_to_import_the_environment():
    with pytest.raises(UsageError, match="cannot be imported by worker processes; define it at the top level"):
        check(find("x", "processes", lambda: None), lambda: None)
    assert check(find("zoo:Sound", "processes", zoo.Sound), zoo.Sound).reproducible


# --- EnvPool, broken by hand --------------------------------------------------------------------------------------


class Damaged:
    """A pool of EnvPool's environments with one fault."""

    def __init__(self, pool, wrong: str, second: bool):
        self.pool, self.spec, self.wrong, self.second, self.calls = pool, pool.spec, wrong, second, 0

    def reset(self):
        return self.pool.reset() + np.float32(self.wrong == "seed" and self.second)

    def step(self, action):
        out = self.pool.step(action)
        self.calls += 1
        if self.calls == 7 and self.wrong == "nan":
            out.reward[1] = np.nan
        if self.calls == 7 and self.wrong == "shape":
            return out._replace(obs=out.obs[:, 1:])
        if self.calls == 7 and self.wrong == "drift" and self.second:
            out.obs[0, 0] += 1.0
        return out

    def seek(self, position):
        return self.pool.seek(position)

    @property
    def env(self):
        return self.pool.env

    def close(self):
        self.pool.close()


@pytest.fixture
def damage(monkeypatch) -> Callable[[str], None]:
    """Return a function that breaks the pools made after it is called."""

    def break_pools(wrong: str) -> None:
        made, real = [], checks.make_host_pool

        def make_host_pool(*orders):
            made.append(Damaged(real(*orders), wrong, second=bool(made)))
            return made[-1]

        monkeypatch.setattr(checks, "make_host_pool", make_host_pool)

    return break_pools


@pytest.mark.parametrize(
    ("wrong", "words"),
    [("seed", "reset 1: the same seeds gave different"), ("nan", "step 7: an observation or reward is not finite"),
     ("shape", "step 7: observations have shape (2, 16), not (2, 17)")],
)  # fmt: skip
def test_a_damaged_envpool_is_named(damage, wrong: str, words: str):
    damage(wrong)
    with pytest.raises(EnvironmentFault) as caught:
        check(find("cheetah-run"))
    assert str(caught.value).startswith("dmc/cheetah-run: ") and words in str(caught.value)


def test_envpool_that_does_not_repeat_itself_is_a_note(damage):
    damage("drift")
    checked = check(find("CartPole-v1"))
    assert checked.repeats == "inexact" and list(checked.notes.values()) == [INEXACT]


def test_rewards_after_an_end_are_not_judged(monkeypatch):
    """EnvPool does not write to them, so that they may hold NaN."""
    make = EnvPoolOnHost.__init__

    def make_stale(pool, spec, env, num_envs, keys):
        make(pool, spec, env, num_envs, keys)
        over, step = np.zeros(num_envs, np.bool_), env.step

        def stale(action, ids):
            obs, reward, terminated, truncated, info = step(action, ids)
            reward = np.where(over, np.nan, reward)
            over[:] = terminated | truncated
            return obs, reward, terminated, truncated, info

        env.step = stale

    monkeypatch.setattr(EnvPoolOnHost, "__init__", make_stale)
    checked = check(find("CartPole-v1"))
    assert checked.episodes > 10 and checked.notes == {}


# --- late faults --------------------------------------------------------------------------------------------------


def play_on(pool: GymPool | WorkerPool, steps: int = 250) -> GpiError:
    """Play until a fault is raised, and return it."""
    try:
        pool.reset()
        with pytest.raises(EnvironmentFault) as caught:
            for _ in range(steps):
                pool.step(np.zeros((pool.num_envs, pool.spec.action_size), np.float32))
        return caught.value
    finally:
        pool.close()


def pools(name: str) -> tuple[GymPool, WorkerPool]:
    return GymPool(f"zoo:{name}", getattr(zoo, name), [1, 2, 3]), WorkerPool(f"zoo:{name}", None, [1, 2, 3], 2)


def test_a_late_fault_is_named_with_its_step():
    for pool in pools("BreaksLate"):
        assert str(play_on(pool)) == (
            "zoo:BreaksLate: step 200 of episode 1: observation has shape (2,), its space has (3,); "
            "return the shape of the space"
        )


def test_a_late_crash_keeps_the_users_traceback_even_from_a_worker():
    texts = []
    for pool in pools("CrashesDeep"):
        fault = play_on(pool)
        assert "step 200 of episode 1: step raised ValueError: negative mass; fix" in str(fault)
        texts.append(traceback_of(fault))
    assert texts[0] == texts[1] and "in compute_the_reward" in texts[0]


def test_a_late_observation_outside_its_space_names_its_environment():
    class Leaves(zoo.Sound):
        def see(self):
            return self.state + np.float32(50.0 if self.t == 12 else 0.0)

    pool = GymPool("x", Leaves, [1, 2])
    pool.reset()
    for _ in range(60):
        out = pool.step(np.zeros((2, 2), np.float32))
    pool.close()
    assert list(pool.notes) == ["outside"] and out.obs.shape == (2, 3), "once, and training goes on"
    assert "x: step 12 of episode 1: observation 0 is" in pool.notes["outside"]


def test_a_worker_that_dies_is_named():
    fault = play_on(WorkerPool("zoo:Dies", None, [1, 2, 3], 2))
    assert str(fault).startswith("zoo:Dies: step 4 of the pool: the worker process of environments 0 to 1 died")
    assert "exit code 7" in str(fault) and len(str(fault).splitlines()) == 1 and traceback_of(fault) is None


def test_a_worker_that_dies_at_once_is_named():
    with pytest.raises(EnvironmentFault, match=r"zoo:DiesWhenMade: .*environments 0 to 0 died \(exit code 9\)"):
        WorkerPool("zoo:DiesWhenMade", None, [1], 1)


def test_values_that_are_not_finite_are_left_to_training():
    pool = GymPool("x", zoo.PaysNanLate, [1])
    pool.reset()
    rewards = [float(pool.step(np.zeros((1, 2), np.float32)).reward[0]) for _ in range(4)]
    pool.close()
    assert np.isnan(rewards[2]) and rewards[3] == np.inf
