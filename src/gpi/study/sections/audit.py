"""What the audit counted, over all runs of an arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpi import analysis
from gpi.study.report.blocks import Cells, Section, Table
from gpi.study.results import Result
from gpi.study.sections.words import Material

Key = tuple[str, str]  # arm, and how its TV was estimated


class Totals(NamedTuple):
    """The audit of one arm, counted over its runs of one estimate of TV."""

    runs: int
    updates: int
    broken: dict[str, int]
    worst: dict[str, float]
    refused: int
    exhausted: int
    shortened: int
    ess: float
    """Realised over nominal effective sample size, averaged over updates."""
    drift: float
    """TV by which the normaliser moved the policy, averaged over updates."""


COUNTS = {"penalty": "penalty_violations", "tv": "one_step_violations", "kl": "kl_violations"}


def audit_section(material: Material) -> Section | None:
    """Return the totals of the audit for each arm; None where no run has one."""
    results = material.results
    totals: dict[Key, Totals] = {}
    for arm in results.arms:
        mine = [run for name, run in zip(results.names, results.runs, strict=True) if name == arm]
        for estimate in analysis.ESTIMATES:  # of two estimates, counts are not added
            if found := totals_of([run for run in mine if run.audit.get("estimate") == estimate]):
                totals[arm, estimate] = found
    if not totals:
        return None
    text = ("Every update measures the bounds that its guarantee rests on; these are the totals of all runs.",)
    return Section("audit", "Audit", text, (bounds_table(material, totals), updates_table(material, totals)))


def bounds_table(material: Material, totals: Mapping[Key, Totals]) -> Table:
    """Return how often each bound of an algorithm was kept."""
    rows: list[Cells] = []
    for (arm, estimate), total in totals.items():
        algorithm = material.results.arms[arm].algorithm
        for bound in analysis.bounds_of(algorithm):
            kept = 100.0 * (1.0 - total.broken[bound] / max(total.updates, 1))
            worst = total.worst[bound] if np.isfinite(total.worst[bound]) else None
            measure = "KL" if bound == "kl" else f"TV by {analysis.ESTIMATES[estimate]}"
            counted = (kept, worst) if bound == "kl" or estimate in analysis.COUNTED else (None, None)
            rows.append(
                (
                    arm,
                    f"{analysis.equation_of(algorithm, bound)} {measure}",
                    total.updates,
                    total.broken[bound],
                    *counted,
                )
            )
    equations = dict.fromkeys(str(row[1])[: str(row[1]).index(")") + 1] for row in rows)
    note = " ".join(f"{equation}: {analysis.MEANING[equation]}" for equation in equations)
    note += " Worst is the largest measured over allowed; a dash where nothing was allowed. How TV is estimated stands "
    note += (
        "beside it: counts of two estimates are not comparable, and where they are mixed or unknown no share is given."
    )
    return Table("audit-bounds", "Bounds of the theory, over all updates", note,
                 ("arm", "bound", "updates", "broken", "kept, %", "worst"), tuple(rows),
                 tuple(material.tags(str(row[0])) for row in rows), 3)  # fmt: skip


def updates_table(material: Material, totals: Mapping[Key, Totals]) -> Table:
    """Return what became of the updates of each arm."""
    rows = tuple(
        (arm, x.runs, x.updates, x.refused, x.exhausted, x.shortened, 100.0 * x.ess, x.drift)
        for (arm, _), x in totals.items()
    )
    note = (
        "Realised sample size is in percent of the nominal one; normaliser TV is what the normaliser moved the policy "
        "by, which no bound covers."
    )
    columns = ("arm", "runs", "updates", "kept the old policy", "of these without budget", "took part of their step",
               "realised sample size, %", "normaliser TV")  # fmt: skip
    return Table("audit-updates", "Updates", note, columns, rows, tuple(material.tags(row[0]) for row in rows), 4)


def totals_of(runs: Sequence[Result]) -> Totals | None:
    """Return the sums of the audits that can be used: a file may hold anything there; None if none can."""
    found = [audit for audit in (numbers_of(run.audit) for run in runs) if audit]
    if not found:
        return None
    weights = np.array([max(audit["updates"], 1.0) for audit in found])

    def total(name: str) -> int:
        return round(sum(audit[name] for audit in found))

    return Totals(
        len(found), total("updates"), {bound: total(name) for bound, name in COUNTS.items()},
        {bound: max(audit[f"worst {bound}"] for audit in found) for bound in COUNTS}, total("refused"),
        total("budget_exhausted"), total("shortened"),
        float(np.average([audit["ess_share"] for audit in found], weights=weights)),
        float(np.average([audit["normaliser_tv"] for audit in found], weights=weights)),
    )  # fmt: skip


def numbers_of(audit: object) -> dict[str, float] | None:
    """Return the numbers of one run's audit; None if one is missing or is none. Nothing allowed is infinite."""
    names = ("updates", *COUNTS.values(), "refused", "budget_exhausted", "shortened", "ess_share", "normaliser_tv")
    if not isinstance(audit, dict):
        return None
    worst = audit.get("worst")
    found = {name: audit.get(name) for name in names}
    for bound in COUNTS:
        one = worst.get(bound) if isinstance(worst, dict) else None
        ratio = one.get("ratio") if isinstance(one, dict) else None
        found[f"worst {bound}"] = np.inf if ratio is None else ratio
    plain = {name: x for name, x in found.items() if isinstance(x, int | float) and not isinstance(x, bool)}
    return {name: float(x) for name, x in plain.items()} if len(plain) == len(found) else None
