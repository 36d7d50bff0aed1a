"""The numbers of `gpi audit`: how often each bound held over all updates and seeds, and how badly one was broken.

Besides: what updates promised and what came of it, and which seeds lost what they had learned.

An algorithm is judged by its own bounds: on-policy, eq (2) is all that eq (11) says; PPO bounds no KL.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpi.analysis.calibration import Calibration, calibrate, spans_of
from gpi.analysis.random_policy import scale_of
from gpi.analysis.retention import BINS_LIMIT, Retention, Scale, bin_of, curve_of, retention
from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.errors import UsageError
from gpi.rundir.run import Run, damaged, read_rows
from gpi.rundir.tables import EARLIER
from gpi.terminal import filled
from gpi.theory.certificate import leaves

BOUNDS = ("penalty", "tv", "kl")  # eq (11), eq (7) and eq (16)
COLUMNS = (
    "seed", "iteration", "steps", *(bound + kind for bound in BOUNDS for kind in ("_bound", "_held")), "kl", "ess",
    "ess_realised", "surrogate_gain", "normaliser_tv", "fraction", "budget_exhausted",
)  # fmt: skip
ESTIMATES = {
    "acted": "E[(1 - ratio)+], as they act",
    "lost": "E[(1 - ratio)+]",
    "abs": "½ E[abs(ratio - 1)]",
    "mixed": "two estimates, mixed",
    "unknown": "an unknown estimate",
}
"""How the TV of a run's updates was estimated. Counts of two estimates are never added."""
COUNTED = ("acted", "lost", "abs")
REUSED = {"penalty": "eq (11)", "tv": "eq (7)", "kl": "eq (16)"}
ON_POLICY = {"penalty": "eq (2)", "tv": "eq (2)", "kl": "eq (15)"}
MEANING = {
    "eq (11)": "TV to the prior policies, their mean over the mixture, at most eps/2: the guarantee rests on it.",
    "eq (7)": "TV to the last policy, at most eps_gpi/2.",
    "eq (2)": "TV to the last policy, at most eps/2: the guarantee rests on it.",
    "eq (16)": "KL from the last policy, at most delta_gpi = eps_gpi^2/2.",
    "eq (15)": "KL from the last policy, at most delta = eps^2/2.",
}
MEASURE = {"penalty": "TV to prior policies", "tv": "One-step TV", "kl": "KL"}


class Worst(NamedTuple):
    """The update that came closest to one bound, or exceeded it the most."""

    ratio: float  # measured over allowed: above 1 is a violation, infinite where nothing was allowed
    seed: int
    iteration: int


class Lost(NamedTuple):
    """A seed that lost what it had learned, by the study's rule (`analysis/retention.py`)."""

    seed: int
    best: float  # mean return of its best twentieth of the run
    step: int  # at which these ended
    last: float  # mean return of the last fifth of the run, as far as it comes after the best

    def words(self) -> str:
        """Return the loss as text."""
        return f"seed {self.seed} fell from {self.best:,.0f} (at step {self.step:,}) to {self.last:,.0f}"


class Outside(NamedTuple):
    """A seed's first return outside the range that its certificates assume."""

    seed: int
    step: int  # at which the episode ended
    value: float

    def words(self) -> str:
        """Say which return it is."""
        return f"seed {self.seed} ({self.value:,.6g} at step {self.step:,})"


@dataclass(frozen=True, repr=False)
class AuditSummary:
    """The audit of one run, counted over all its seeds."""

    run: str
    task: str
    algorithm: str
    trust: str
    seeds: int
    updates: int
    penalty_violations: int  # updates that broke eq (11): nu-mean of the TV to the prior policies above eps/2
    one_step_violations: int  # updates that broke eq (7): one-step TV above eps_gpi/2
    kl_violations: int  # updates that broke eq (16): KL(pi_k‖pi_{k+1}) above delta
    refused: int  # updates that kept the old policy
    budget_exhausted: int  # of these, because eq (8) had left nothing
    shortened: int  # updates that took less than their whole step
    ess_share: float  # mean of realised over nominal effective sample size
    estimate: str  # of TV, of `ESTIMATES`
    demanded: bool  # whether eq (11), of the policies that act, holds by construction on the samples that measure it
    normaliser_tv: float  # mean TV the normaliser moved the policy by, which no bound covers
    worst: dict[str, Worst]  # by name of the bound
    learned: int  # seeds that learned something that could be lost, where the random policy is known
    lost: tuple[Lost, ...]  # of these, seeds that lost it; a short run cannot say
    calibration: Calibration | None  # of the surrogate's gains; None for a run too short to say
    undone: int = 0  # proven losses, after each of which a seed went back
    certified: tuple[float | None, ...] = ()  # with --trust keep, what each seed is held to; None for nothing
    withdrawn: tuple[Outside, ...] = ()  # why there is nothing for these seeds
    repeats: str = "exact"  # whether environments of the same seeds repeat each other

    @property
    def bounds(self) -> tuple[str, ...]:
        """The bounds that are the algorithm's own, the one that the guarantee rests on first."""
        return bounds_of(self.algorithm)

    @property
    def reuses(self) -> bool:
        """Whether the algorithm reuses the data of prior policies."""
        return ALGORITHMS[self.algorithm].reuses

    def name_of(self, bound: str) -> str:
        """Return the equation that a bound is for this algorithm."""
        return equation_of(self.algorithm, bound)

    def inside(self, bound: str) -> float:
        """Return the share of updates that kept a bound."""
        return 1.0 - self.violations[bound] / max(self.updates, 1)

    def verdict(self) -> str:
        """Say in words whether the guarantee held."""
        if self.estimate not in COUNTED:
            return (
                f"Whether {self.name_of(self.bounds[0])} held cannot be counted: an earlier version began audit.csv "
                "and a later one continued it with another estimate of TV under the same name." + self._kept()
            )
        bound, *others = self.bounds
        worst, broken = self.worst[bound], self.violations[bound]
        words = f"{self.name_of(bound)}, which the guarantee rests on, held {self._held(bound)}; "
        words += f"{'worst' if broken else 'at most'} {times(worst.ratio)} (seed {worst.seed}, "
        words += f"iteration {worst.iteration})."
        if self.demanded:
            words += " Every update is tested for it on the samples that are counted here."
        elif self.estimate == "acted":
            words += " It is measured for the policies as they act, and nothing demands it."
        if others:
            words += f" {' and '.join(f'{MEASURE[b]}, {self.name_of(b)}, held {self._held(b)}' for b in others)}."
        if self.refused:
            words += f" {self.refused:,} update{'s' if self.refused > 1 else ''} kept the old policy."
        if self.undone:
            words += f" A proven loss was undone {f'{self.undone:,} times' if self.undone > 1 else 'once'}; "
            words += "going back is not an update, and no bound counts it."
        words += self._certified()
        if self.reuses:
            words += f" Reused data counted for {100 * self.ess_share:.0f} % of the nominal sample size."
        if self.repeats != "exact":
            words += f" The environments do not repeat themselves ({self.repeats}), so that resuming is not exact."
        return words + self._kept()

    def _certified(self) -> str:
        """Return the certified returns as text, in mode keep: a range of returns that is too wide shows here."""
        known = sorted(x for x in self.certified if x is not None)
        rest = len(self.certified) - len(known) - len(self.withdrawn)
        words = ""
        if known:
            returns = " to ".join(dict.fromkeys(f"{x:.4g}" for x in (known[0], known[-1])))
            nothing = f"; nothing for {rest} {'seed' if rest == 1 else 'seeds'}" if rest else ""
            words = f" Certified of past episodes, not of the last policy: a mean return of {returns}{nothing}."
        elif rest > 0:
            words = " Nothing is certified yet, so no loss could be proven."
        elif self.trust == "keep" and not self.certified:
            unknown = "the range of returns is not known (--return-range)"
            why = unknown if self.repeats == "exact" else "resets may carry state from one episode to the next"
            words = f" Nothing is certified, since {why}."
        if self.withdrawn:
            seeds = ", ".join(one.words() for one in self.withdrawn)
            words += f" A return left the range that certificates assume: {seeds}; there they are withdrawn"
            words += f"{', and the undone losses were not proven' if self.undone else ''}."
        return words

    def _kept(self) -> str:
        """Say which seeds lost what they had learned, in a run that can tell."""
        if not self.learned:
            return ""
        if not self.lost:
            return f" No seed lost what it had learned ({self.learned} of {self.seeds} had learned)."
        they = "it" if len(self.lost) == 1 else "they"
        return f" Lost what {they} had learned: {', '.join(one.words() for one in self.lost)}."

    def _held(self, bound: str) -> str:
        """Say in how many updates a bound held."""
        broken = self.violations[bound]
        if not broken:
            return f"in every update ({self.updates:,})"
        share = f"{min(self.inside(bound), 0.999):.1%}".replace("%", " %")
        return f"in {self.updates - broken:,} of {self.updates:,} updates ({share})"

    def __repr__(self) -> str:
        """Return the verdict, as a notebook and `print` show it."""
        return filled(f"{self.run}: {self.verdict()}")

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object; an infinite worst ratio becomes null."""
        worst = {name: x._asdict() | {"ratio": x.ratio if math.isfinite(x.ratio) else None}
                 for name, x in self.worst.items()}  # fmt: skip
        more = {"worst": worst, "bounds": list(self.bounds)}
        more |= {name: [one._asdict() for one in getattr(self, name)] for name in ("lost", "withdrawn")}
        if self.calibration is not None:
            bins = [one._asdict() for one in self.calibration.bins]
            more["calibration"] = dataclasses.asdict(self.calibration) | {"bins": bins}
        return dataclasses.asdict(self) | more | {"verdict": self.verdict()}

    @property
    def violations(self) -> dict[str, int]:
        """Violations by name of the bound."""
        counts = (self.penalty_violations, self.one_step_violations, self.kl_violations)
        return dict(zip(BOUNDS, counts, strict=True))


def bounds_of(algorithm: str) -> tuple[str, ...]:
    """Return the bounds that are an algorithm's own, the one that the guarantee rests on first."""
    return ALGORITHMS[algorithm].bounds


def equation_of(algorithm: str, bound: str) -> str:
    """Return the equation that a bound is for an algorithm."""
    return (REUSED if ALGORITHMS[algorithm].reuses else ON_POLICY)[bound]


def columns(run: Run) -> dict[str, np.ndarray]:
    """Read a run's audit.csv by column, with the TV of `BOUNDS` by whichever estimate it has; empty cells are NaN."""
    path = run.dir / "audit.csv"
    if not path.is_file():
        raise UsageError(f"{run.dir} has no audit.csv; name a run that this version of `gpi train` made")
    rows = read_rows(path, *COLUMNS)
    if not rows:
        raise UsageError(f"{path} has no update yet; wait for the run's first iteration")
    try:
        table = {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}
        table |= {name: table[f"{name}_lost"] for name in EARLIER if f"{name}_lost" in table}
        if "penalty_acted" in table:  # on-policy, eq (2) is all that eq (11) says
            for bound in ("penalty",) if ALGORITHMS[run.config["algorithm"]].reuses else ("penalty", "tv"):
                table[bound] = table["penalty_acted"]
                table[f"{bound}_held"] = (table[bound] <= table[f"{bound}_bound"]).astype(float)
        empty = [name for name in (*COLUMNS, *EARLIER) if np.isnan(table[name]).all()]
        if empty or np.isnan(table["seed"] + table["iteration"]).any():
            raise ValueError(f"numbers are missing in the column {(empty or ['seed'])[0]!r}")
        return table
    except KeyError as error:
        raise damaged(path, f"it lacks the column {error}") from error
    except (TypeError, ValueError) as error:
        raise damaged(path, error) from error


def estimate_of(run: Run, table: Mapping[str, np.ndarray]) -> str:
    """Return how the TV of a run's updates was estimated, of `ESTIMATES`.

    The first version's audit.csv repeats the estimates of metrics.csv. Versions after it continued such a table with
    others, under the same names.
    """
    if "tv_closed" in table:
        return "acted" if "penalty_acted" in table else "lost"
    rows = read_rows(run.dir / "metrics.csv", *EARLIER) if (run.dir / "metrics.csv").is_file() else []
    if len(rows) < len(table["seed"]):
        return "unknown"
    same = all(float(row["penalty"]) == x for row, x in zip(rows, table["penalty"], strict=False))
    return "abs" if same else "mixed"


def demanded(trust: str, normaliser: str) -> bool:
    """Return whether a mode tests every update, and every change of what the policy reads with, for eq (11)."""
    return trust == "keep" if normaliser == "auto" else normaliser == "still" and trust in ("strict", "keep")


def summarise(run: Run) -> AuditSummary:
    """Count over all updates of all seeds whether each bound of the theory held."""
    table, config = columns(run), run.config
    retentions = retentions_of(run, table, scale_of(dmc.short_name(config["task"])))
    withdrawn = withdrawn_of(run, table)
    broken = {bound: int(np.sum(table[f"{bound}_held"] != 1.0)) for bound in BOUNDS}
    return AuditSummary(
        run=run.dir.absolute().name,
        task=config["task"],
        algorithm=config["algorithm"],
        trust=config["trust"],
        seeds=config["seeds"],
        updates=len(table["seed"]),
        penalty_violations=broken["penalty"],
        one_step_violations=broken["tv"],
        kl_violations=broken["kl"],
        refused=int(np.sum(table["fraction"] == 0.0)),
        budget_exhausted=int(np.sum(table["budget_exhausted"])),
        shortened=int(np.sum((table["fraction"] > 0.0) & (table["fraction"] < 1.0))),
        ess_share=float(np.mean(table["ess_realised"] / table["ess"])),
        estimate=estimate_of(run, table),
        demanded="penalty_acted" in table and demanded(config["trust"], config.get("normaliser", "auto")),
        normaliser_tv=float(np.nanmean(table["normaliser_tv"])),
        worst={bound: worst_of(table, bound) for bound in BOUNDS},
        learned=sum(one.learned for one in retentions.values()),
        lost=tuple(Lost(seed, x.best.mean, x.best_end, x.after.mean) for seed, x in retentions.items() if x.fell),
        calibration=calibrate(spans_of(run, table)),
        undone=int(np.nansum(table.get("undone", 0.0))),
        certified=certified_of(table, withdrawn),
        withdrawn=withdrawn,
        repeats=run.repeats,
    )


def worst_of(table: Mapping[str, np.ndarray], bound: str) -> Worst:
    """Return the update that came closest to a bound, or exceeded it the most."""
    # With no budget left both the bound and the measured value are 0: the bound held, exactly.
    measured, allowed = table[bound], table[f"{bound}_bound"]
    some = allowed > 0.0
    ratio = np.where(some, measured / np.where(some, allowed, 1.0), np.where(measured > 0.0, np.inf, 0.0))
    i = int(np.nanargmax(ratio))
    return Worst(float(ratio[i]), int(table["seed"][i]), int(table["iteration"][i]))


def certified_of(table: dict[str, np.ndarray], withdrawn: Sequence[Outside]) -> tuple[float | None, ...]:
    """Return each seed's certified return in its last row; an empty tuple for a run without certificates."""
    if "kept_return" not in table:
        return ()
    void = [one.seed for one in withdrawn]  # earlier versions certified all the same
    last = {seed: table["kept_return"][table["seed"] == seed][-1] for seed in np.unique(table["seed"])}
    return tuple(None if np.isnan(x) or seed in void else float(x) for seed, x in last.items())


def withdrawn_of(run: Run, table: dict[str, np.ndarray]) -> tuple[Outside, ...]:
    """Return each seed's first return outside the range that the user has named, where certificates rest on it."""
    ends = run.config.get("return_range", ())
    if "kept_return" not in table or len(ends) != 2:
        return ()
    found = []
    for seed, (steps, returns) in run.all_episodes().items():
        outside = np.flatnonzero(leaves(returns, *ends))
        found += [Outside(seed, int(steps[i]), float(returns[i])) for i in outside[:1]]
    return tuple(found)


def retentions_of(run: Run, table: dict[str, np.ndarray], scale: Scale | None) -> dict[int, Retention]:
    """Return what each seed learned and lost; seeds whose numbers no curve can hold are left out."""
    retentions = {}
    for seed, ends in run.all_episodes().items():
        taken = np.nan_to_num(table["steps"][table["seed"] == seed], nan=0.0, posinf=0.0)
        most = float(np.max(taken, initial=0.0))
        size = bin_of(int(most))
        if 1 <= (bins := round(most / size)) <= BINS_LIMIT:
            with np.errstate(over="ignore"):
                curve = curve_of(*ends, bins, size)
            if np.isfinite(curve).all():
                retentions[seed] = retention(curve, scale, size)
    return retentions


def times(ratio: float) -> str:
    """Say how far an update went."""
    if not math.isfinite(ratio):
        return "outside a bound of 0"
    return f"{ratio:,.0f} times the bound" if ratio >= 1000 else f"{ratio:.3g} times the bound"
