"""Keeping learned performance: an agent whose performance is proven to have fallen goes back to an earlier policy.

`gpi.theory.certificate` bounds what the episodes of a window say about its policies. The best lower bound so far is
kept, with a policy drawn from its window; when the upper bound of a window that began later is below it, the loss is
proven. An earlier one proves nothing: it may hold the failures that the agent has learned from.

All of it assumes that the range of returns is known. A return outside withdraws the agent's certificates for good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jax.stages import Compiled, Lowered

from gpi.core import faults
from gpi.core.iteration import State
from gpi.core.kept import NOTHING, Memory, Snapshot, first_memory, go_back, remember
from gpi.core.sample import Rollout
from gpi.envs.episodes import EndedInBatch, EpisodeCounter
from gpi.errors import FileError
from gpi.standalone import Facts
from gpi.theory.certificate import SIZES, Windows, certificates, extend, first_windows, leaves, restart, room, turn
from gpi.training.job import Job
from gpi.training.learner import Learner, Program, shared_program, signature

LEVELS = len(SIZES)
NOW = 1 + LEVELS  # the source of the kept policy: pi_k
LOWERED = 0.8  # share of a certificate left after the agent went back: its draw may be worse than the window


class Member(NamedTuple):
    """What one agent's episodes have certified so far."""

    windows: Windows
    episodes: np.ndarray  # counted so far
    since: np.ndarray  # [L], steps at which each window began
    made: np.ndarray  # [L], steps at which each window's draw was the policy
    kept: np.ndarray  # the best lower bound so far, lowered each time the agent went back, scaled; 0 says nothing
    kept_at: np.ndarray  # episodes counted when it was certified, or when the agent went back
    kept_made: np.ndarray  # steps at which the kept policy was the policy
    undone: np.ndarray  # how often the agent went back


class Fall(NamedTuple):
    """A window whose performance is proven to be below the kept bound."""

    mean: float  # of its scaled returns
    since: int  # steps at which it began
    kept: float  # the lower bound that it is below


class Seen(NamedTuple):
    """What the episodes of a batch change."""

    member: Member
    take: np.ndarray  # [L], windows that draw pi_k
    source: int  # of the kept policy, as `core.kept.remember` takes it
    fall: Fall | None


class Kept(NamedTuple):
    """The kept bounds after an iteration, and the losses it undid, `[P]`."""

    kept_return: np.ndarray  # the best lower bound, lowered each time the agent went back, as a return; NaN: none holds
    undone: np.ndarray  # whether the agent went back
    lines: list[str]  # to tell the user


def snapshot_of(state: State) -> Snapshot:
    """Return every member's pi_k, to go back to."""
    return Snapshot(state.learned.agent, state.learned.normaliser)


def first_member() -> Member:
    """Return an agent before its first episode."""
    zero, zeros = np.zeros((), np.int64), np.zeros(LEVELS, np.int64)
    return Member(first_windows(), zero, zeros, zeros, np.zeros(()), zero, zero, zero)


def see(member: Member, x: np.ndarray, steps: int, draw: Callable[[int], np.ndarray]) -> Seen:
    """Return an agent after scaled returns x of pi_k, which is its policy since `steps`.

    `draw` gives each level a random number for the n-th episode of the agent. Episodes after a fall are not counted.
    A fall lowers the kept bound by a fifth: a second fall is seen, and undone, too, and an agent whose draw was a poor
    one is held to less each time. The lowered value is still a bound.
    """
    take, source = np.zeros(LEVELS, np.bool_), NOTHING
    while len(x):
        part, x = x[: room(member.windows)], x[room(member.windows) :]
        since = np.where(member.windows.n == 0, steps, member.since)
        windows = extend(member.windows, part)
        drawn = draw(int(member.episodes)) < len(part) / windows.n  # one of its policies, all with the same chance
        take, made = take | drawn, np.where(drawn, steps, member.made)
        member = member._replace(windows=windows, episodes=member.episodes + len(part), since=since, made=made)
        low, high = certificates(windows)
        best = int(low.argmax())
        if low[best] > member.kept:
            member = member._replace(kept=low[best], kept_at=member.episodes, kept_made=made[best])
            source = NOW if take[best] else 1 + best
        later = np.where(member.episodes - windows.n >= member.kept_at, high, 1.0)  # of windows that began since
        worst = int(later.argmin())
        if later[worst] < member.kept:
            fall = Fall(float(windows.total[worst] / windows.n[worst]), int(since[worst]), float(member.kept))
            member = member._replace(windows=restart(windows), kept=LOWERED * member.kept, kept_at=member.episodes)
            return Seen(member, take, source, fall)
        member = member._replace(windows=turn(windows))
    return Seen(member, take, source, None)


def evidence(
    episodes: list[EndedInBatch], environments: int, skip: np.ndarray, horizon: int | None = None
) -> list[float]:
    """Return the returns of an agent's episodes that count: in its first environments, begun after its last fall.

    `skip` says in which environments the first one began before, and is brought up to date. They are in the order of
    time and environment, never of returns: a window must not choose its episodes. Where a batch cuts the last episode
    off, or several environments are evidence, all must be of one length, `horizon`: else the short ones would come
    first, and be counted more often.
    """
    assert all(episode.length == horizon for episode in episodes) or horizon is None, f"not of {horizon} steps"
    returns = []
    for _, total, _, env in sorted(episodes, key=lambda episode: (episode.steps, episode.env)):
        if env < environments and not skip[env]:
            returns.append(total)
        skip[env] = False
    return returns


def random_numbers(name: str) -> np.ndarray:
    """Return a random number in [0, 1) for every level that depends on nothing but a name."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint64)
    return words[:LEVELS] / 2.0**64


class Keeper:
    """Keeps what every member of a population has learned."""

    def __init__(self, job: Job, learner: Learner):
        """Start before the first episode."""
        self.job, self.learner = job, learner
        config = job.config
        self.low, self.high = job.return_range
        # Environments that run on through updates depend on each other: then the first alone is evidence.
        self.environments = config.num_envs if config.reset_each_batch else 1
        self.horizon = job.task.horizon if config.reset_each_batch else None  # `validate_keeping` asks for one
        self.members = [first_member() for _ in job.seeds]
        self.running = EpisodeCounter(config.seeds, config.num_envs)
        self.skip = np.zeros((config.seeds, config.num_envs), np.bool_)  # running episodes that began before a fall
        init = jax.jit(jax.vmap(lambda now: first_memory(now, LEVELS)), out_shardings=learner.sharded)
        self.memory: Memory = init(snapshot_of(learner.state))
        self.seen: list[Seen | None] = []  # of the batch that is being learned from
        self.outside: list[Facts | None] = []  # of that batch, the first return outside the range: `step`, `return`
        self.withdrawn: dict[str, Facts] = {}  # by seed, the return outside the range that ended its certificates
        self.lines: list[str] = []
        self.programs: tuple[Compiled, Compiled]

    def lower(self) -> list[Program]:
        """Return the programs to compile, `remember` and `go_back`."""
        state, members = self.learner.state, len(self.members)
        take, source = self._sent(np.zeros((members, LEVELS), np.bool_), np.zeros(members, np.int32))
        undo = self._sent(np.zeros(members, np.bool_))[0]
        return [self._program(remember, self.memory, snapshot_of(state), take, source),
                self._program(go_back, state, self.memory, undo)]  # fmt: skip

    def _program(self, one: Callable[..., Any], *arguments: Any) -> Program:
        spec, mesh = PartitionSpec("P"), self.learner.mesh

        def lower() -> Lowered:
            sharded = jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
            return jax.jit(sharded, donate_argnums=0).lower(*arguments)

        return shared_program((one.__name__, mesh, *signature(arguments)), lower)

    def use(self, remembering: Compiled, returning: Compiled) -> None:
        """Remember and go back with these compiled programs from now on."""
        self.programs = remembering, returning

    def _sent(self, *arrays: np.ndarray) -> list[Any]:
        """Return arrays `[P, ...]` on the devices that learn."""
        return [jax.device_put(self.learner.population.padded(x), self.learner.sharded) for x in arrays]

    def begin(self, raw: Rollout) -> None:
        """Count the beginnings of the first episodes, which lie in the warm-up."""
        self._count(raw, np.zeros(len(self.members), np.bool_))

    def _count(self, raw: Rollout, frozen: np.ndarray) -> list[list[EndedInBatch]]:
        ended = self.running.add_batch(jax.tree.map(np.asarray, raw), frozen)
        # A reward that is not finite freezes its agent; it must not reach a checkpoint from here either.
        self.running.total = np.where(np.isfinite(self.running.total), self.running.total, 0.0)
        return ended

    def before_learning(self, raw: Rollout, taken: np.ndarray) -> None:
        """See the episodes of a batch, of policies that each had `taken` these steps, and remember the policies."""
        if self.job.config.reset_each_batch:
            self.running.forget()
        state = self.learner.state
        frozen = self.learner.population.real(np.asarray(state.fault)) != faults.NONE
        ended = self._count(raw, frozen)
        self.seen = [None] * len(ended)
        self.outside = [self._first_outside(episodes, int(n)) for episodes, n in zip(ended, taken, strict=True)]
        for p, episodes in enumerate(ended):
            x = self._scaled(evidence(episodes, self.environments, self.skip[p], self.horizon))
            if len(x) and self.outside[p] is None and not self._is_withdrawn(p):
                self.seen[p] = see(self.members[p], x, int(taken[p]), self._draws(p))
        changes = [(x.take, x.source) if x else (np.zeros(LEVELS, np.bool_), NOTHING) for x in self.seen]
        take, source = np.array([take for take, _ in changes]), np.array([source for _, source in changes], np.int32)
        if take.any() or source.any():
            self.memory = self.programs[0](self.memory, snapshot_of(state), *self._sent(take, source))

    def _scaled(self, returns: list[float]) -> np.ndarray:
        """Return returns scaled to [0, 1]; one that is not finite freezes its agent and does not count."""
        x = (np.array([r for r in returns if np.isfinite(r)]) - self.low) / (self.high - self.low)
        return x.clip(0.0, 1.0)

    def _first_outside(self, episodes: list[EndedInBatch], taken: int) -> Facts | None:
        """Return the first return outside the range, evidence or not: the range is of every episode."""
        for steps, total, _, _ in episodes:
            if leaves(total, self.low, self.high):
                return {"step": taken + steps, "return": total}
        return None

    def _draws(self, p: int) -> Callable[[int], np.ndarray]:
        config, seed = self.job.config, self.job.seeds[p]
        return lambda number: random_numbers(f"{config.short_task}/{config.algorithm}/{seed}/{number}")

    def after_learning(self, fault: np.ndarray) -> Kept:
        """Restore the kept policy of every member that fell; return the bounds and the losses undone."""
        undone = np.zeros(len(self.members), np.bool_)
        for p, seen in enumerate(self.seen):
            if seen is not None:
                self.members[p] = seen.member
                if seen.fall is not None and fault[p] == faults.NONE:
                    undone[p] = True
                    self._note_fall(p, seen.fall)
        for p, outside in enumerate(self.outside):
            if outside is not None and fault[p] == faults.NONE and not self._is_withdrawn(p):
                self._withdraw(str(self.job.seeds[p]), outside)
        if undone.any():
            self.learner.state = self.programs[1](self.learner.state, self.memory, *self._sent(undone))
        lines, self.lines, self.seen = self.lines, [], []
        kept = [
            self._return(float(member.kept)) if member.kept > 0 and not self._is_withdrawn(p) else np.nan
            for p, member in enumerate(self.members)
        ]
        return Kept(np.array(kept), undone, lines)

    def _is_withdrawn(self, p: int) -> bool:
        return str(self.job.seeds[p]) in self.withdrawn

    def _withdraw(self, seed: str, outside: Facts) -> None:
        """Certify nothing of a seed from now on, and undo nothing; earlier losses stay undone."""
        self.withdrawn[seed] = outside
        self.lines.append(
            f"warning: seed {seed}: an episode returned {outside['return']:.6g} (at step {outside['step']:,}), outside "
            f"the range {self.low:g} to {self.high:g}: its certificates are withdrawn, and no loss is undone any more; "
            "train again with a wider --return-range"
        )

    def _note_fall(self, p: int, fall: Fall) -> None:
        member = self.members[p]
        self.members[p] = member._replace(undone=member.undone + 1)
        if not self.job.config.reset_each_batch:
            self.skip[p] = self.running.length[p] > 0
        self.lines.append(
            f"seed {self.job.seeds[p]}: the policies since step {fall.since:,}, with a mean return of "
            f"{self._return(fall.mean):.4g}, are proven to be below the certified {self._return(fall.kept):.4g}: "
            f"back to the policy of step {member.kept_made:,}"
        )

    def _return(self, x: float) -> float:
        return self.low + x * (self.high - self.low)

    @property
    def undone(self) -> dict[str, int]:
        """How often each seed went back."""
        return {str(seed): int(member.undone) for seed, member in zip(self.job.seeds, self.members, strict=True)}

    def facts(self) -> Facts:
        """Return what DONE and state.json say: how often each seed went back, and whose certificates are withdrawn."""
        return {"undone": self.undone} | ({"withdrawn": self.withdrawn} if self.withdrawn else {})

    def snapshot(self, fetch: Callable[[Memory], Memory] = jax.device_get) -> dict[str, Any]:
        """Return everything else that the next certificates depend on, with a leading axis P."""
        memory = self.learner.population.real(fetch(self.memory))
        episodes = {"total": self.running.total, "length": self.running.length, "skip": self.skip}
        return {"memory": memory, "members": jax.tree.map(lambda *x: np.stack(x), *self.members), "episodes": episodes}

    def restore(self, saved: dict[str, Any], facts: Facts) -> None:
        """Continue from a snapshot and the facts beside it; those of an earlier version know of no withdrawal."""
        try:
            withdrawn = facts.get("withdrawn", {}).items()
            self.withdrawn = {seed: {"step": int(x["step"]), "return": float(x["return"])} for seed, x in withdrawn}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise FileError(f"state.json of a checkpoint does not fit: withdrawn: {str(error)[:80]}") from error
        self.memory = jax.device_put(self.learner.population.padded(saved["memory"]), self.learner.sharded)
        self.members = [jax.tree.map(lambda x, p=p: x[p], saved["members"]) for p in range(len(self.members))]
        episodes = saved["episodes"]
        self.running.total, self.running.length = episodes["total"].copy(), episodes["length"].copy()
        self.skip = episodes["skip"].copy()

    def forget(self) -> None:
        """Drop the running episodes, which will never end."""
        self.running.forget()
        self.skip[:] = False
