"""The summary of `gpi audit`: how often each bound held over all updates and seeds, and how badly one was broken."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpi.errors import UsageError
from gpi.rundir.run import Run, damaged, read_rows

BOUNDS = ("penalty", "tv", "kl")  # eq (11), eq (7) and eq (16), by their columns in audit.csv
COLUMNS = (
    "seed", "iteration", "steps", *(bound + kind for bound in BOUNDS for kind in ("", "_bound", "_held")), "ess",
    "ess_realised", "normaliser_tv", "fraction", "budget_exhausted",
)  # fmt: skip


class Worst(NamedTuple):
    """The update that came closest to one bound, or exceeded it the most."""

    ratio: float  # measured over allowed: above 1 is a violation, infinite where nothing was allowed
    seed: int
    iteration: int


@dataclass(frozen=True)
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
    normaliser_tv: float  # mean TV the normaliser moved the policy by, which no bound covers
    worst: dict[str, Worst]  # by name of the bound

    def inside(self, bound: str) -> float:
        """Return the share of updates that kept a bound."""
        return 1.0 - self.violations[bound] / max(self.updates, 1)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object; an infinite worst ratio becomes null."""
        worst = {name: x._asdict() | {"ratio": x.ratio if math.isfinite(x.ratio) else None}
                 for name, x in self.worst.items()}  # fmt: skip
        return dataclasses.asdict(self) | {"worst": worst}

    @property
    def violations(self) -> dict[str, int]:
        """Violations by name of the bound."""
        counts = (self.penalty_violations, self.one_step_violations, self.kl_violations)
        return dict(zip(BOUNDS, counts, strict=True))


def columns(run: Run) -> dict[str, np.ndarray]:
    """Read a run's audit.csv by column; empty cells are NaN."""
    path = run.dir / "audit.csv"
    if not path.is_file():
        raise UsageError(f"{run.dir} has no audit.csv; name a run that this version of `gpi train` made")
    rows = read_rows(path, *COLUMNS)
    if not rows:
        raise UsageError(f"{path} has no update yet; wait for the run's first iteration")
    try:
        table = {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}
        empty = [name for name in COLUMNS if np.isnan(table[name]).all()]
        if empty or np.isnan(table["seed"] + table["iteration"]).any():
            raise ValueError(f"numbers are missing in the column {(empty or ['seed'])[0]!r}")
        return table
    except (TypeError, ValueError) as error:
        raise damaged(path, error) from error


def summarise(run: Run) -> AuditSummary:
    """Count over all updates of all seeds whether each bound of the theory held."""
    table, config = columns(run), run.config
    worst = {}
    for bound in BOUNDS:
        # With no budget left the bound is 0 and so is what was measured: kept, exactly.
        measured, allowed = table[bound], table[f"{bound}_bound"]
        some = allowed > 0.0
        ratio = np.where(some, measured / np.where(some, allowed, 1.0), np.where(measured > 0.0, np.inf, 0.0))
        i = int(np.nanargmax(ratio))
        worst[bound] = Worst(float(ratio[i]), int(table["seed"][i]), int(table["iteration"][i]))
    broken = {bound: int(np.sum(table[f"{bound}_held"] != 1.0)) for bound in BOUNDS}
    return AuditSummary(
        run=run.dir.name,
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
        normaliser_tv=float(np.mean(table["normaliser_tv"])),
        worst=worst,
    )


def percent(share: float) -> str:
    """Format a share, never rounded up to 100%: one violation in a million stays visible."""
    return "100%" if share == 1.0 else f"{min(share, 0.99999):.3%}"
