"""The commands that draw and count: plot, audit and mixture."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpi.cli.parsing import whole
from gpi.errors import UsageError
from gpi.report.audit import AuditSummary, percent, summarise
from gpi.rundir.run import open_run
from gpi.theory.mixture import Mixture, mixture

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs


def add_plot(verbs: Verbs) -> None:
    """Add `gpi plot`."""
    verb = verbs.add_parser("plot", help="learning curves of one run or several, every seed visible")
    verb.add_argument("runs", nargs="+", metavar="DIR", help="run directories; one panel per task")
    verb.add_argument(
        "--out", type=Path, default=Path("curves.png"), metavar="FILE", help="picture (default: %(default)s)"
    )
    verb.set_defaults(run=run_plot)


def run_plot(parsed: argparse.Namespace) -> int:
    """Draw learning curves, and say where they are."""
    from gpi.report.curves import learning_curves

    runs = [open_run(directory) for directory in parsed.runs]
    learning_curves(runs, require_picture(parsed.out))
    print(f"learning curves: {parsed.out}")
    return 0


def add_audit(verbs: Verbs) -> None:
    """Add `gpi audit`."""
    verb = verbs.add_parser(
        "audit", help="did the guarantee hold? every update of one run or several against the theory's bounds",
        description="Count over all updates and seeds whether each bound of the theory held, and draw how it went. "
        "docs/guarantee.md explains what is measured and how to read it.",
    )  # fmt: skip
    verb.add_argument("runs", nargs="+", metavar="DIR", help="run directories, shown side by side")
    verb.add_argument("--out", type=Path, metavar="FILE", help="picture (default: audit.png in the first directory)")
    verb.add_argument("--json", action="store_true", help="print a JSON list with one object per run, and no picture")
    verb.set_defaults(run=run_audit)


def run_audit(parsed: argparse.Namespace) -> int:
    """Print the counts, and draw them unless only JSON is wanted."""
    runs = [open_run(directory) for directory in parsed.runs]
    summaries = [summarise(run) for run in runs]
    if parsed.json:
        print(json.dumps([summary.as_json() for summary in summaries]))
    else:
        print(audit_table(summaries))
    if parsed.out is not None or not parsed.json:
        from gpi.report.audit_figure import audit_figure

        path = require_picture(parsed.out or runs[0].dir / "audit.png")
        audit_figure(runs, summaries, path)
        print(f"figure: {path}", file=sys.stderr if parsed.json else sys.stdout)
    return 0


def audit_table(summaries: Sequence[AuditSummary]) -> str:
    """Return audits as a table for people: the share of updates inside each bound, and the worst update."""
    header = ("run", "algorithm", "trust", "updates", "eq (11)", "worst", "one-step", "worst", "KL", "worst", "kept",
              "ESS")  # fmt: skip
    rows: list[tuple[str, ...]] = [header]
    for s in summaries:
        bounds = [cell for b, w in s.worst.items() for cell in (percent(s.inside(b)), f"x{w.ratio:.3g}")]
        rows.append((s.run, s.algorithm, s.trust, f"{s.updates:,}", *bounds, f"{s.refused:,}", f"{s.ess_share:.0%}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = [
        "  ".join(f"{x:<{w}}" if i < 3 else f"{x:>{w}}" for i, (x, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([
        *lines, "",
        "eq (11): TV to the prior policies within eps/2. one-step: TV within eps_gpi/2. KL: within delta.",
        "Per cent: updates inside the bound. worst: largest measured / allowed. kept: updates that changed nothing.",
        "ESS: realised over nominal effective sample size.",
    ])  # fmt: skip


def require_picture(path: Path) -> Path:
    """Return the path if a picture can be written there, otherwise raise UsageError."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"picture {path} must end in .png, .pdf or .svg; use {path.with_suffix('.png')}")
    if not path.parent.is_dir():
        raise UsageError(f"picture {path} needs the directory {path.parent}, which does not exist; make it first")
    return path


def add_mixture(verbs: Verbs) -> None:
    """Add `gpi mixture`."""
    verb = verbs.add_parser("mixture", help="the optimal mixture over prior policies, Theorem 4, and what it gains")
    verb.add_argument("--B", type=whole, default=2, help="on-policy batch size in units of n (default: 2)")
    verb.add_argument("--kappa", type=float, default=1.0, help="0: large updates, 1: large samples (default: 1.0)")
    verb.add_argument("--eps", type=float, default=0.2, help="trust region in TV distance (default: 0.2)")
    verb.add_argument("--n", type=whole, default=1024, help="samples per policy (default: 1024)")
    verb.add_argument("--json", action="store_true", help="print one JSON object")
    verb.add_argument("--plot", type=Path, metavar="FILE", help="draw the paper's figure 1, with this mixture marked")
    verb.set_defaults(run=run_mixture)


def run_mixture(parsed: argparse.Namespace) -> int:
    """Print the mixture, and draw figure 1 if a file is given."""
    best = mixture(parsed.B, parsed.kappa, parsed.eps, parsed.n)
    if parsed.plot is not None:
        from gpi.report.mixture import figure_1

        figure_1(require_picture(parsed.plot), parsed.B, parsed.kappa)
    print(json.dumps(dataclasses.asdict(best)) if parsed.json else mixture_table(best, parsed))
    if parsed.plot is not None and not parsed.json:
        print(f"figure: {parsed.plot}")
    return 0


def mixture_table(best: Mixture, parsed: argparse.Namespace) -> str:
    """Return the mixture as a table for people."""
    N = parsed.B * parsed.n
    lines = [f"Optimal mixture over prior policies (Theorem 4), B = {parsed.B}, kappa = {parsed.kappa:g}", ""]
    lines += ["  age i   nu_i", "  -----   --------"]
    width = 40 / max(best.nu)
    lines += [f"  {i:5d}   {x:.6f}   {'█' * round(width * x)}" for i, x in enumerate(best.nu)]
    lines += [
        "",
        f"  policies reused, M                  {best.M}",
        f"  mean age, E[i + 1]                  {best.mean_age:.6f}",
        f"  one-step trust region, eps_gpi      {best.eps_gpi:.6f}   (eps {parsed.eps:g} on-policy)",
        f"  KL radius, delta_gpi                {best.delta_gpi:.6f}",
        f"  effective sample size               {best.ess:.1f}   ({N} on-policy: {best.ess_gain:+.1%})",
        f"  TV update size per {N:<16,d} {best.tv_size:.6f}   ({parsed.eps / 2:g} on-policy: {best.tv_gain:+.1%})",
    ]
    return "\n".join(lines)
