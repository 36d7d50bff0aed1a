"""Mode keep: a proven loss is undone, in the member that lost and nowhere else, and exactly so after a resume."""

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from test_certificate import CHANCES, RETURNS
from test_certificate import PERFORMANCE as UNSORTED

import gpi
from gpi import cli
from gpi.config import Config, validate_new
from gpi.core import faults
from gpi.core.kept import NOTHING
from gpi.core.sample import Rollout
from gpi.envs.episodes import EndedInBatch
from gpi.errors import FileError, UsageError
from gpi.rundir.run import read_rows
from gpi.theory import certificate
from gpi.training import keeping
from gpi.training.job import resolve
from gpi.training.keeping import LEVELS, LOWERED, NOW, evidence, first_member, random_numbers, see
from gpi.training.memory import memory_needed
from gpi.training.trainer import Iteration, Trainer
from own_runs import TABLES, done, stop_after
from trainers import uncompiled

ORDER = np.argsort(UNSORTED)
PERFORMANCE = UNSORTED[ORDER]  # of the policies of the finite MDP, from the worst to the best
LENGTH = 8
TINY: dict[str, Any] = {
    "seeds": 3, "n": 128, "minibatches": 4, "epochs": 1, "hidden": (8,), "checkpoint_every": 2, "trust": "keep",
    "return_range": (0, LENGTH),
}  # fmt: skip


class Lever(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pays 1 for every step in which the lever is pushed up."""

    observation_space = spaces.Box(-4.0, 4.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        return self.seen(), float(action[0] > 0), False, self.time >= LENGTH, {}


# --- one member, on the host --------------------------------------------------------------------------------------


def never(number: int) -> np.ndarray:
    """Draw such that a window's first policy stays its draw."""
    return np.full(LEVELS, 0.999999)


def test_the_best_certificate_is_kept_and_a_fall_below_it_is_proven():
    member, mastered = first_member(), []
    for k in range(10):
        member, take, source, fall = see(member, np.ones(16), 100 * k, never)
        assert fall is None and source != 0, "every batch certifies more"
        mastered.append(float(member.kept))
        assert take.all() if k == 0 else take.tolist() == [True, k % 4 == 0, False, False]
    assert mastered == sorted(mastered) and member.kept > 0.85 and member.kept_made == 0
    seen = see(member, np.zeros(16), 1000, never)
    assert seen.fall == (0.0, 1000, member.kept), "of the short window that began with the fall"
    assert seen.member.kept == LOWERED * member.kept and seen.member.kept_made == 0, "lowered: the draw may be poor"
    assert (seen.member.windows.n == 0).all() and (seen.member.windows.number > member.windows.number).all()
    again = see(seen.member, np.ones(5), 1100, never)
    assert again.fall is None and again.take.all() and (again.member.since == 1100).all()
    assert again.member.kept == seen.member.kept and again.source == NOTHING, "five episodes do not certify as much"
    more = see(again.member, np.ones(200), 1200, never)
    assert more.member.kept > member.kept and more.member.kept_made >= 1100, "what is restored earns its own"


def falls_of(returns: np.ndarray) -> list[tuple[int, float]]:
    """Return the episodes after which an agent with these returns went back, and below which certificate."""
    member, falls = first_member(), []
    for n, x in enumerate(returns, 1):
        member, _, _, fall = see(member, np.array([x]), n, never)
        if fall:
            falls.append((n, fall.kept))
    return falls


def test_an_agent_that_only_rises_never_goes_back():
    """Long windows that still hold its failures are proven to be below what short ones say of its success."""
    for bad, good in ((100, 100), (300, 100), (900, 100)):
        assert falls_of(np.repeat([0.0, 1.0], [bad, good])) == []
    noise = np.random.default_rng(0).normal(0.0, 0.03, 1000)
    for width in (50, 400):
        ramp = np.concatenate([np.zeros(200), np.linspace(0.0, 0.95, width), np.full(800 - width, 0.95)])
        assert falls_of(np.clip(ramp + noise, 0.0, 1.0)) == []


def undone_by(falling: Callable[[int, int], float], episodes: int = 1500) -> list[int]:
    """Return after which episodes an agent goes back whose returns depend on how often and since when it has."""
    member, undone = first_member(), [0]
    for n in range(1, episodes + 1):
        member, _, _, fall = see(member, np.array([falling(len(undone) - 1, n - undone[-1])]), n, never)
        if fall:
            undone.append(n)
    return undone[1:]


def test_a_second_fall_soon_after_the_first_is_undone_too():
    """It comes five episodes after going back, before the restored policy can certify anything."""
    first, second, *more = undone_by(lambda times, since: 0.4 if since > (500, 5, 10**6)[times] else 1.0)
    assert 500 < first < second < first + 40 and not more
    page = (Path(__file__).parents[1] / "docs" / "keeping.md").read_text()
    times = undone_by(lambda times, since: 0.4 if since > (5 if times else 500) else 1.0)
    assert len(times) == 4 and f"is brought back four times in {times[-1] - 500} episodes" in page


def test_a_poor_draw_is_no_trap():
    """The policy that is restored plays at half of what was certified, however often the agent goes back to it."""
    times = undone_by(lambda times, since: 1.0 if times == 0 and since <= 500 else 0.0 if times == 0 else 0.5)
    assert 2 <= len(times) <= 5 and times[-1] < 800


def test_a_fall_is_seen_as_soon_as_the_documentation_says():
    page = (Path(__file__).parents[1] / "docs" / "keeping.md").read_text()
    after = [falls_of(np.repeat([1.0, low], [500, 300])) for low in (0.9, 0.97, 0.985)]
    assert after[2] == []
    soon, later = (falls[0][0] - 500 for falls in after[:2])
    assert f"a fall to a constant 900 is seen {soon} episodes later, to 970 after {later}, and to 985 never" in page


# --- the statement as a whole, where the truth is known -------------------------------------------------------------


def rising(n: int, now: int, luck: float) -> int:
    return min(n // 40, len(PERFORMANCE) - 1)


def collapsing(n: int, now: int, luck: float) -> int:
    """Rises in 60 episodes, and falls to the worst policy in every 200th."""
    return 0 if n % 200 == 199 else min(now + (n % 7 == 0), len(PERFORMANCE) - 1)


def swinging(n: int, now: int, luck: float) -> int:
    """The worst policy after luck and the best after bad luck: the truth runs away from the returns."""
    return 0 if luck > 0 else len(PERFORMANCE) - 1


class Undo(NamedTuple):
    """What is true of an agent that went back."""

    contradicted: bool  # its policies since the window began are no worse than the certificate
    restored: float  # the performance of the policy it went back to, less the certificate


def closed_loop(learner: Callable[[int, int, float], int], seed: int, batches: int = 250) -> list[Undo]:
    """Let an agent learn on the finite MDP, two episodes with each policy; return how often it went back."""
    rng, member, now, luck, found = np.random.default_rng(seed), first_member(), 0, 0.0, []
    played: list[int] = []
    for n in range(batches):
        played.append(now)
        x = rng.choice(RETURNS, 2, p=CHANCES[ORDER[now]])
        luck += x.mean() - PERFORMANCE[now]
        seen = see(member, x, n, lambda i: random_numbers(f"{seed}/{i}"))
        member, now = seen.member, learner(n, now, luck)
        if seen.fall:
            now = played[int(member.kept_made)]
            truth = float(np.mean(PERFORMANCE[played[seen.fall.since :]]))
            found.append(Undo(truth > seen.fall.kept, float(PERFORMANCE[now]) - seen.fall.kept))
    return found


@pytest.mark.parametrize("learner", [rising, collapsing, swinging])
def test_on_a_finite_mdp_agents_go_back_only_from_worse_policies_and_to_no_worse_than_was_certified(learner: Any):
    runs = [closed_loop(learner, seed) for seed in range(40)]
    wrong = sum(any(undo.contradicted for undo in undos) for undos in runs)
    assert wrong / len(runs) <= certificate.ALPHA
    restored = [undo.restored for undos in runs for undo in undos]
    if learner is rising:
        assert restored == []
    else:
        assert len(restored) >= 20 and np.mean(restored) > 0.0


def test_episodes_in_one_batch_or_in_several_certify_the_same():
    x = np.random.default_rng(0).random(100)
    whole = see(first_member(), x, 0, never).member
    member = first_member()
    for part in np.split(x, [1, 20, 50]):
        member = see(member, part, 0, never).member
    np.testing.assert_allclose(member.windows.logs, whole.windows.logs, rtol=1e-12)
    assert member.windows.n.tolist() == whole.windows.n.tolist() == [4, 36, 100, 100]


def test_the_kept_policy_is_the_newest_where_its_window_has_just_drawn_it():
    seen = see(first_member(), np.ones(3), 700, never)
    assert seen.take.all() and seen.source == NOW and seen.member.kept_made == 700


def test_every_policy_of_a_window_is_drawn_with_the_same_chance():
    """Batches of 1, 2 and 4 episodes: a window's draw comes from each in proportion to its episodes."""
    counts = np.zeros(3)
    for seed in range(1000):
        member = first_member()
        for k, n in enumerate((1, 2, 4)):
            member = see(member, np.full(n, 0.5), k, lambda i, seed=seed: random_numbers(f"{seed}/{i}")).member
        counts[member.made[2]] += 1
    np.testing.assert_allclose(counts / 1000, np.array([1, 2, 4]) / 7, atol=0.05)


def test_episodes_are_evidence_in_the_order_of_time_and_environment_whatever_they_return():
    rows = [(9, 5.0, 8, 1), (9, 7.0, 8, 0), (20, 1.0, 8, 0), (20, 0.0, 8, 2)]
    episodes = sorted(EndedInBatch(*row) for row in rows)
    skip = np.zeros(3, np.bool_)
    assert evidence(episodes, 3, skip) == [7.0, 5.0, 1.0, 0.0]
    assert evidence(episodes, 1, skip) == [7.0, 1.0], "the first environment alone, where episodes outlive updates"
    skip[0] = True
    assert evidence(episodes, 1, skip) == [1.0] and not skip.any(), "the first one began before the fall"
    assert evidence(episodes, 3, skip, 8) == [7.0, 5.0, 1.0, 0.0]
    with pytest.raises(AssertionError, match="not of 8 steps"):
        evidence([*episodes, EndedInBatch(23, 1.0, 3, 0)], 3, skip, 8)


@pytest.fixture
def evidence_of(x64: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], tuple[Any, list[list[float]]]]:
    """Make keepers of one member with two environments, and a list of the scaled returns that they will see."""

    def make(reset_each_batch: bool) -> tuple[Any, list[list[float]]]:
        settings = {"seeds": 1, "num_envs": 2, "n": 2048, "hidden": (8,), "reset_each_batch": reset_each_batch}
        keeper, seen = uncompiled(resolve(Config("cartpole-balance", trust="keep", **settings))).keeper, []

        def record(member: Any, x: np.ndarray, *rest: Any) -> keeping.Seen:
            seen.append(x.tolist())
            return keeping.Seen(member, np.zeros(LEVELS, np.bool_), NOTHING, None)

        monkeypatch.setattr(keeping, "see", record)
        return keeper, seen

    return make


def play(keeper: Any, second: float = 0.25, fault: int = faults.NONE, length: int = 1000) -> keeping.Kept:
    """Let a keeper see a batch of 1,024 steps: 0.5 a step in the first environment and 0.25 in the second."""
    shape = (1, 1024, 2)
    reward = np.broadcast_to([0.5, second], shape)
    done = np.broadcast_to((np.arange(1024) == length - 1)[:, None], shape)
    blank = np.zeros((*shape, 1), np.float32)
    raw = Rollout(blank, blank, reward, blank, done, done, np.ones(shape, np.bool_))  # type: ignore[arg-type]
    keeper.before_learning(raw, np.full(1, 5000))
    return keeper.after_learning(np.array([fault]))


def test_every_environment_is_evidence_where_batches_begin_with_a_reset(evidence_of: Any):
    """The 24 steps after an episode's end are no part of the next one."""
    keeper, seen = evidence_of(True)
    for _ in range(3):
        play(keeper)
    assert seen == 3 * [[0.5, 0.25]]
    with pytest.raises(AssertionError, match="not of 1000 steps"):
        play(keeper, length=600)


def test_the_first_environment_alone_is_evidence_where_episodes_outlive_updates(evidence_of: Any):
    """The others depend on it through learning; and an episode that began before a fall is nobody's."""
    keeper, seen = evidence_of(False)
    play(keeper)
    play(keeper)
    assert seen == [[0.5], [0.512]], "whole episodes, across batches"
    keeper._note_fall(0, keeping.Fall(0.1, 0, 0.5))
    play(keeper)
    assert len(seen) == 2, "it had begun before the fall"
    play(keeper)
    assert seen[2:] == [[0.512]]


def test_any_return_outside_the_range_withdraws_certificates_but_not_in_the_iteration_that_freezes(evidence_of: Any):
    """Of an environment that is no evidence too; what freezes an agent is in no table either."""
    keeper, seen = evidence_of(False)
    play(keeper)
    keeper.members[0] = keeper.members[0]._replace(kept=np.array(0.4))
    assert play(keeper).kept_return == [400.0]
    froze = play(keeper, second=2.0, fault=1 + faults.STAGES.index("reward"))
    assert froze.kept_return == [400.0] and keeper.facts() == {"undone": {"0": 0}} and froze.lines == []
    withdrawn = play(keeper, second=2.0)
    assert np.isnan(withdrawn.kept_return).all() and len(seen) == 2, "the batch is no evidence"
    [facts] = keeper.facts()["withdrawn"].values()
    assert facts == {"step": 5000 + 2000, "return": 2048.0}, "1,000 steps of it and 24 of the batch before"
    words = r"warning: seed 0: an episode returned 2048 \(at step 7,000\), outside the range 0 to 1000: its cert"
    assert len(withdrawn.lines) == 1 and re.match(words, withdrawn.lines[0])
    for second in (0.25, 3.0):
        later = play(keeper, second)
        assert np.isnan(later.kept_return).all() and len(seen) == 2 and later.lines == [], "for good, and said once"
    assert keeper.facts()["withdrawn"] == {"0": facts}


def test_draws_are_others_for_every_level_episode_and_seed(x64: None):
    keeper = uncompiled(resolve(Config("cartpole-balance", trust="keep", seeds=2, hidden=(8,)))).keeper
    assert keeper is not None
    found = np.array([keeper._draws(p)(number) for p in (0, 1) for number in range(50)])
    assert len(np.unique(found)) == found.size and abs(found.mean() - 0.5) < 0.06 and 0 <= found.min() < found.max() < 1


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "settings", "words"), [
    ("CartPole-v1", {"return_range": (0, 500), "reset_each_batch": True}, r"cuts off .*; use --no-reset-each-batch"),
    ("cheetah-run", {"return_range": (5, 5)}, r"return_range = \(5.0, 5.0\) must be two finite numbers"),
    ("cheetah-run", {"return_range": (0, float("inf"))}, "must be two finite numbers"),
    ("cheetah-run", {"return_range": (1,)}, "must be two finite numbers"),
    ("cheetah-run", {"return_range": ("0", "1")}, "must be a list of numbers"),
])  # fmt: skip
def test_certificates_without_a_meaning_are_refused_in_one_line(task: str, settings: Any, words: str):
    with pytest.raises(UsageError, match=words) as error:
        resolve(Config(task, trust="keep", **settings))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("settings", "words"), [
    ({"return_range": (0, 1)}, r"return_range = \(0.0, 1.0\) does not cover 0 to 1000, the returns of cheetah-run; "),
    ({"return_range": (1, 1000)}, "does not cover 0 to 1000, .*; leave it out"),
    ({"normaliser": "paper"}, "normaliser = paper lets statistics move the policy, .*; leave it out, or use --trust"),
])  # fmt: skip
def test_a_new_run_may_not_contradict_what_keep_rests_on_but_an_old_one_may_be_resumed(
    settings: Any, words: str, tmp_path: Path
):
    with pytest.raises(UsageError, match=words) as error:
        gpi.train("geppo", "cheetah-run", out=tmp_path / "run", trust="keep", steps=1, seeds=1, **settings)
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()
    assert resolve(Config("cheetah-run", trust="keep", **settings)).keeps, "as a resumed run is"
    for fine in (Config("cheetah-run", **settings), Config("cheetah-run", trust="keep", return_range=(-1, 1000))):
        validate_new(fine, resolve(fine).task.return_range)


def test_a_task_says_its_range_and_the_user_may_say_another():
    assert resolve(Config("cheetah-run", trust="keep")).return_range == (0.0, 1000.0)
    assert resolve(Config("cheetah-run", trust="keep", return_range=(-1, 5))).return_range == (-1.0, 5.0)
    assert resolve(Config("CartPole-v1", trust="keep", return_range=(0, 500))).return_range == (0.0, 500.0)
    unknown = [resolve(Config("CartPole-v1", trust=mode)) for mode in ("keep", "paper")]
    assert not any(job.keeps for job in unknown) and [bool(job.uncertified) for job in unknown] == [True, False]
    known = Config("CartPole-v1", trust="keep", return_range=(0, 500))
    keep, paper = (memory_needed(job.config) for job in unknown)
    assert keep == paper < memory_needed(known), "no policies are kept to go back to"


def test_the_command_line_reads_a_range_that_begins_below_zero():
    parsed = cli.parser().parse_args(["train", "Pendulum-v1", "--return-range", "-1700,0"])
    assert parsed.return_range == (-1700.0, 0.0)
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["train", "Pendulum-v1", "--return-range", "-1700,x"])


# --- populations --------------------------------------------------------------------------------------------------


@pytest.fixture
def trainer(x64: None) -> Callable[[], Trainer]:
    """Make trainers of three members on two devices: one member more only fills them."""

    def make() -> Trainer:
        trainer = uncompiled(resolve(Config("test_keeping:Lever", steps=10_000, **TINY), Lever))
        trainer.compile()
        return trainer

    return make


def take_iterations(trainer: Trainer, number: int) -> list[Iteration]:
    """Return the next iterations."""
    return list(itertools.islice(trainer.iterations(10**9), number))


def push_down(trainer: Trainer, p: int) -> None:
    """Break the policy of member p on the device: it never pushes the lever up again."""
    state = trainer.learner.state
    old = state.learned.agent.policy
    params = old.params
    last = params.net[-1]._replace(bias=params.net[-1].bias.at[p].set(-50.0))  # type: ignore[attr-defined]
    policy = old._replace(params=params._replace(net=(*params.net[:-1], last)))  # type: ignore[attr-defined]
    agent = state.learned.agent._replace(policy=policy)
    changed = state._replace(learned=state.learned._replace(agent=agent))
    trainer.learner.state = jax.device_put(changed, trainer.learner.sharded)


def spoil_rewards(trainer: Trainer, p: int) -> None:
    """Let member p's next batch have a reward that is not a number."""
    collect = trainer.collect

    def spoilt() -> Any:
        trainer.collect = collect
        raw = collect()
        return raw._replace(reward=np.where(np.arange(3)[:, None, None] == p, np.nan, raw.reward))

    trainer.collect = spoilt


def member_of(trainer: Trainer, p: int) -> dict[str, np.ndarray]:
    """Return everything of one member."""
    return {name: x[p] for name, x in trainer.snapshot().items() if name.startswith(("state/", "kept/"))}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, x in one.items():
        np.testing.assert_array_equal(x, other[name], err_msg=name)


def test_a_broken_member_goes_back_and_no_other_changes_a_bit(trainer: Callable[[], Trainer]):
    """Member 1 is broken and member 2 meets NaN; the same again from a checkpoint in between."""
    calm, hurt, resumed = trainer(), trainer(), trainer()
    for one in (calm, hurt):
        one.warm_up()
        take_iterations(one, 9)
    push_down(hurt, 1)
    spoil_rewards(hurt, 2)
    middle = take_iterations(hurt, 1)
    resumed.restore(hurt.snapshot())
    its = middle + take_iterations(hurt, 7)
    same = take_iterations(resumed, 7)
    take_iterations(calm, 8)

    undone = [it.number for it in its if it.kept is not None and it.kept.undone[1]]
    assert len(undone) == 1, "once: it stays where it was brought back to"
    [line] = [line for it in its if it.kept is not None for line in it.kept.lines]
    words = (
        r"seed 1: the policies since step [\d,]+, with a mean return of [0-3]\S*, are proven to be below the certified "
        r"[2-5]\S*: back to the policy of step "
    )
    made = int(re.fullmatch(words + r"([\d,]+)", line)[1].replace(",", ""))  # type: ignore[index]
    assert made <= int(calm.taken[1]) * 9 // 17, "from before it was broken"
    after = np.concatenate([it.raw.reward[1].ravel() for it in its if it.number > undone[0]])
    assert after.mean() > 0.3 and its[1].raw.reward[1].mean() == 0.0

    assert_same(member_of(hurt, 0), member_of(calm, 0))
    assert_same(hurt.snapshot(), resumed.snapshot())
    assert [it.kept.undone.tolist() for it in its[1:]] == [it.kept.undone.tolist() for it in same]  # type: ignore[union-attr]
    assert its[-1].fault.tolist() == [faults.NONE, faults.NONE, 1 + faults.STAGES.index("reward")]
    assert all(np.isfinite(x).all() for name, x in hurt.snapshot().items() if x.dtype.kind == "f" and "kept/" in name)
    assert hurt.keeper is not None and hurt.keeper.undone == {"0": 0, "1": 1, "2": 0}


def test_going_back_restores_the_kept_policy_and_empties_the_buffer(trainer: Callable[[], Trainer]):
    one = trainer()
    one.warm_up()
    take_iterations(one, 3)
    keeper = one.keeper
    assert keeper is not None
    before, kept = member_of(one, 1), member_of(one, 0)
    [undo] = keeper._sent(np.array([True, False, False]))
    one.learner.state = keeper.programs[1](one.learner.state, keeper.memory, undo)
    after = member_of(one, 0)
    # The names of the value function's arrays in a checkpoint are older than its networks.
    restored = {name.replace("kept/memory/kept/", "state/").replace("/net/", "/"): x for name, x in kept.items()
                if name.startswith("kept/memory/kept/")}  # fmt: skip
    names = [name for name in after if name.startswith(("state/agent/", "state/normaliser/"))]
    assert names
    for name in names:
        np.testing.assert_array_equal(after[name], restored[name.replace("/net/", "/")], err_msg=name)
    assert after["state/buffer/policies"] == 0 and kept["state/buffer/policies"] == 3
    np.testing.assert_array_equal(after["state/key"], kept["state/key"])
    assert_same(member_of(one, 1), before)


def test_a_run_that_undoes_losses_resumes_bit_for_bit_and_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Certificates are made far too cheap, so that luck and bad luck look like losses."""
    monkeypatch.setattr(certificate, "cost", lambda number, alpha: np.full(np.shape(number), 0.5))
    settings = {"steps": 1200, **TINY}
    whole = gpi.train("geppo", Lever, out=tmp_path / "whole", **settings)
    said = capsys.readouterr().out
    assert "are proven to be below the certified" in said and "outside the range" not in said
    assert "withdrawn" not in done(gpi.Run(tmp_path / "whole")), "a key only where there is something to say"
    cut = gpi.train("geppo", Lever, out=tmp_path / "cut", callbacks=[stop_after(5)], quiet=True, **settings)
    gpi.resume(cut.dir, env=Lever, quiet=True)
    for name in (*TABLES, "policy-0.safetensors", "policy-2.safetensors"):
        assert (whole.dir / name).read_bytes() == (cut.dir / name).read_bytes(), name
    rows = read_rows(whole.dir / "audit.csv", "kept_return", "undone")
    counts = {str(seed): sum(int(row["undone"]) for row in rows if row["seed"] == str(seed)) for seed in range(3)}
    assert done(whole)["undone"] == done(cut)["undone"] == counts and sum(counts.values()) > 1
    late = [int(row["iteration"]) for row in rows if row["undone"] == "1"]
    assert min(late) <= 5 < max(late), "on both sides of the cut"
    kept = [0.0]
    for row in [row for row in rows if row["seed"] == "0" and row["kept_return"]]:
        now = float(row["kept_return"])
        if row["undone"] == "1":
            assert LOWERED * kept[-1] <= now + 1e-5 < LOWERED * LENGTH, "lowered by a fifth, of what had been certified"
        else:
            assert kept[-1] <= now <= LENGTH, "while the agent does not go back it only rises"
        kept.append(now)
    assert gpi.audit(whole).undone == sum(counts.values())
    verdict = json.dumps(gpi.audit(whole).as_json())
    assert f"A proven loss was undone {sum(counts.values())} times; going back is not an update" in verdict
    last = [row["kept_return"] for row in rows[-3:]]
    assert gpi.audit(whole).certified == tuple(float(x) if x else None for x in last)


def test_a_return_outside_the_range_ends_certificates_and_undoing_also_after_a_resume_or_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Of three agents one leaves the range before the cut, one after it has gone back twice, and one never."""
    monkeypatch.setattr(certificate, "cost", lambda number, alpha: np.full(np.shape(number), 0.5))
    settings = {"steps": 1600, **TINY, "return_range": (0, LENGTH - 1)}
    whole = gpi.train("geppo", Lever, out=tmp_path / "whole", **settings)
    said = capsys.readouterr().out
    cut = gpi.train("geppo", Lever, out=tmp_path / "cut", callbacks=[stop_after(5)], quiet=True, **settings)
    killed = gpi.Run(Path(shutil.copytree(cut.dir, tmp_path / "killed")))
    shutil.rmtree(killed.dir / "ckpt-000000005")
    (killed.dir / "DONE").unlink()

    outside = {str(seed): steps[returns > LENGTH - 1][:1].tolist() for seed, (steps, returns) in
               whole.all_episodes().items()}  # fmt: skip
    withdrawn = done(whole)["withdrawn"]
    assert withdrawn == {seed: {"step": step, "return": LENGTH} for seed, found in outside.items() for step in found}
    assert 0 < len(done(cut)["withdrawn"]) < len(withdrawn) < 3, "before the cut, after it, and never"
    for run in (cut, killed):
        gpi.resume(run.dir, env=Lever, quiet=True)
        for name in (*TABLES, *(f"policy-{seed}.safetensors" for seed in range(3))):
            assert (whole.dir / name).read_bytes() == (run.dir / name).read_bytes(), name
        assert [done(run)[name] for name in ("withdrawn", "undone")] == [withdrawn, done(whole)["undone"]]
    for row in read_rows(whole.dir / "audit.csv"):
        void = row["seed"] in withdrawn and int(row["steps"]) >= withdrawn[row["seed"]]["step"]
        assert (row["kept_return"] == "") == void and not (void and row["undone"] == "1")
    assert any(done(whole)["undone"][seed] for seed in withdrawn), "what was undone before stays undone"

    audit = gpi.audit(whole)
    assert {str(one.seed): {"step": one.step, "return": one.value} for one in audit.withdrawn} == withdrawn
    assert [x is None for x in audit.certified] == [str(seed) in withdrawn for seed in range(3)]
    seeds = ", ".join(f"seed {seed} (8 at step {x['step']:,})" for seed, x in withdrawn.items())
    words = (
        f"A return left the range that certificates assume: {seeds}; there they are withdrawn, and the undone losses"
    )
    assert words in audit.verdict() and words in " ".join(str(whole).split()) and words in whole._repr_html_()
    for seed, x in withdrawn.items():
        assert f"warning: seed {seed}: an episode returned 8 (at step {x['step']:,}), outside the range 0 to 7" in said
    assert said.count("outside the range") == len(withdrawn)


def test_pendulum_s_true_returns_are_not_certified_to_be_within_a_narrow_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    settings = {**TINY, "seeds": 1, "n": 512, "return_range": (-1000, -900), "steps": 2048}
    run = gpi.train("ppo", "Pendulum-v1", out=tmp_path / "run", **settings)
    assert capsys.readouterr().out.count("its certificates are withdrawn") == 1
    [at] = done(run)["withdrawn"].values()
    resumed = gpi.resume(run, steps=3072)
    steps, returns = resumed.episodes(0)
    first = int(np.flatnonzero((returns < -1000) | (returns > -900))[0])
    assert at == {"step": steps[first], "return": pytest.approx(returns[first], rel=1e-8)}
    assert done(resumed)["withdrawn"] == {"0": at} and "withdrawn" not in capsys.readouterr().out, "said once"
    assert {row["kept_return"] for row in read_rows(run.dir / "audit.csv") if int(row["steps"]) >= at["step"]} == {""}
    assert cli.main(["audit", str(run.dir)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"seed 0 ({returns[first]:,.6g} at step {at['step']:,}); there they are withdrawn." in said
    assert "ertified of" not in said


def test_without_a_range_keep_is_strict_and_still_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    settings: dict[str, Any] = {name: x for name, x in TINY.items() if name != "return_range"} | {"steps": 500}
    keep = gpi.train("geppo", Lever, out=tmp_path / "keep", **settings)
    why = "the least and the largest return of an episode of test_keeping:Lever are not known"
    line = f"note: trust = keep certifies and undoes nothing here: {why}; name them: --return-range LOW,HIGH"
    assert capsys.readouterr().out.count(line) == 1
    settings |= {"trust": "strict", "normaliser": "still"}
    strict = gpi.train("geppo", Lever, out=tmp_path / "strict", **settings)
    assert "certifies" not in capsys.readouterr().out
    for name in (*TABLES, "policy-0.safetensors"):
        assert (keep.dir / name).read_bytes() == (strict.dir / name).read_bytes(), name
    assert done(keep)["uncertified"] == why and "undone" not in done(keep) and "uncertified" not in done(strict)
    gpi.resume(keep, env=Lever, steps=700)
    assert done(keep)["uncertified"] == why and "certifies" not in capsys.readouterr().out, "said once"
    assert "Nothing is certified, since the range of returns is not known" in gpi.audit(keep).verdict()


def test_a_withdrawal_that_a_checkpoint_cannot_mean_is_one_line(x64: None):
    keeper = uncompiled(resolve(Config("cartpole-balance", trust="keep", seeds=2, hidden=(8,)))).keeper
    assert keeper is not None
    for wrong in ([], {"0": 5}, {"0": {"step": 5}}, {"0": {"step": "x", "return": 1.0}}):
        with pytest.raises(FileError, match=r"state\.json of a checkpoint does not fit: withdrawn"):
            keeper.restore(keeper.snapshot(), {"withdrawn": wrong})
    keeper.restore(keeper.snapshot(), {})
    assert keeper.withdrawn == {}, "a checkpoint of an earlier version"
