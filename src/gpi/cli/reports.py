"""The commands that draw and count: plot, audit and mixture."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpi.analysis.audit import summarise
from gpi.cli.parsing import whole
from gpi.config import EPS_RULE, MAX_EPS
from gpi.errors import DiskError, UsageError
from gpi.report.labels import without_repeats
from gpi.report.pictures import require_picture
from gpi.report.summary import audit_text
from gpi.rundir.run import open_run
from gpi.theory.mixture import Mixture, mixture

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs

MOST_ROWS, HEAD, TAIL = 30, 20, 5  # of the weights of a mixture


def add_plot(verbs: Verbs) -> None:
    """Add `gpi plot`."""
    verb = verbs.add_parser(
        "plot", help="learning curves of one run or several, every seed visible",
        description="Draw return against environment steps, a panel per task: each seed thin, their mean thick. Runs "
        "are told apart by the settings in which they differ, or by their directories.",
    )  # fmt: skip
    verb.add_argument("runs", nargs="+", metavar="DIR", help="run directories; one panel per task")
    verb.add_argument(
        "--out", type=Path, default=Path("curves.png"), metavar="FILE", help="picture (default: %(default)s)"
    )
    verb.add_argument("--label", action="append", default=[], metavar="NAME",
                      help="name of a run in the picture; once per run, in their order")  # fmt: skip
    verb.set_defaults(run=run_plot)


def run_plot(parsed: argparse.Namespace) -> int:
    """Draw learning curves, and say where they are."""
    from gpi.report.curves import NOTHING_YET, has_episodes, learning_curves

    out = require_picture(parsed.out)
    named = [open_run(directory) for directory in parsed.runs]
    runs, labels = without_repeats(named, parsed.label)
    if len(runs) < len(named):
        print("note: a run that is named twice is drawn once", file=sys.stderr)
    empty = [run for run in runs if not has_episodes(run)]
    if len(empty) == len(runs):
        raise UsageError(f"{runs[0].dir} has {NOTHING_YET}: there is nothing to draw; wait, or train longer")
    for run in empty:
        print(f"note: {run.dir} has {NOTHING_YET}", file=sys.stderr)
    learning_curves(runs, out, labels)
    print(f"learning curves: {out}")
    return 0


def add_audit(verbs: Verbs) -> None:
    """Add `gpi audit`."""
    verb = verbs.add_parser(
        "audit", help="did the guarantee hold? every update of one run or several against the theory's bounds",
        description="Count over all updates and seeds whether each bound of the theory held, and draw how it went. "
        "docs/guarantee.md explains the measurements and how to read them.",
    )  # fmt: skip
    verb.add_argument("runs", nargs="+", metavar="DIR", help="run directories, shown side by side")
    verb.add_argument(
        "--out", type=Path, metavar="FILE", help="picture (default: audit.png, of one run in its directory)"
    )
    verb.add_argument("--json", action="store_true", help="print a JSON list with one object per run, and no picture")
    verb.set_defaults(run=run_audit)


def run_audit(parsed: argparse.Namespace) -> int:
    """Print verdicts and counts, and draw them unless only JSON is wanted."""
    if parsed.out is not None:
        require_picture(parsed.out)
    runs = [open_run(directory) for directory in parsed.runs]
    summaries = [summarise(run) for run in runs]
    if parsed.json:
        print(json.dumps([summary.as_json() for summary in summaries]))
    else:
        print(audit_text(summaries, [str(run.dir) for run in runs]))
    if parsed.json and parsed.out is None:
        return 0
    from gpi.report.audit_figure import audit_figure

    path = parsed.out or (runs[0].dir if len(runs) == 1 else Path()) / "audit.png"
    try:
        audit_figure(runs, summaries, path)
    except DiskError as error:  # another user's run can be read, and the counts have been printed
        if parsed.out is not None:
            raise
        print(f"note: {error} (--out FILE names another place)", file=sys.stderr)
        return 0
    print(f"figure: {path}", file=sys.stderr if parsed.json else sys.stdout)
    return 0


def add_mixture(verbs: Verbs) -> None:
    """Add `gpi mixture`."""
    verb = verbs.add_parser(
        "mixture", help="the optimal mixture over prior policies, Theorem 4, and its gain",
        description="Print how much weight each prior policy's data get, the trust region that this allows, and what "
        "reuse gains in sample size and update size over on-policy learning. It trains nothing.",
    )  # fmt: skip
    verb.add_argument("--B", type=whole, default=2, help="on-policy batch size in units of n (default: 2)")
    verb.add_argument("--kappa", type=float, default=1.0, help="0: large updates, 1: large samples (default: 1.0)")
    verb.add_argument("--eps", type=float, default=0.2, help="trust region in TV distance (default: 0.2)")
    verb.add_argument("--n", type=whole, default=1024, help="samples per policy (default: 1024)")
    verb.add_argument("--json", action="store_true", help="print one JSON object")
    verb.add_argument("--plot", type=Path, metavar="FILE", help="draw the paper's figure 1, with this mixture marked")
    verb.set_defaults(run=run_mixture)


def run_mixture(parsed: argparse.Namespace) -> int:
    """Print the mixture, and draw figure 1 if a file is given."""
    if parsed.plot is not None:
        require_picture(parsed.plot)
    if parsed.eps > MAX_EPS:  # a rule for new plans: that of an old run may break it
        raise UsageError(f"eps = {parsed.eps:g} {EPS_RULE}; use 0.2")
    best = mixture(parsed.B, parsed.kappa, parsed.eps, parsed.n)
    if parsed.plot is not None:
        from gpi.report.mixture import figure_1

        figure_1(parsed.plot, parsed.B, parsed.kappa)
    print(json.dumps(dataclasses.asdict(best)) if parsed.json else mixture_table(best, parsed))
    if parsed.plot is not None and not parsed.json:
        print(f"figure: {parsed.plot}")
    return 0


def mixture_table(best: Mixture, parsed: argparse.Namespace) -> str:
    """Return the mixture as a table for people."""
    N = parsed.B * parsed.n
    lines = [f"Optimal mixture over prior policies (Theorem 4), B = {parsed.B}, kappa = {parsed.kappa:g}", ""]
    lines += ["  age i   nu_i", "  -----   --------"]
    lines += [*mixture_rows(best.nu)]
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


def mixture_rows(nu: Sequence[float]) -> Iterator[str]:
    """Return a row with a bar for each weight; of very many, the first and the last."""
    width, block = 40 / max(nu), "█" if can_print("█") else "#"
    cut = len(nu) - HEAD - TAIL if len(nu) > MOST_ROWS else 0
    for i, x in enumerate(nu):
        if not HEAD <= i < HEAD + cut:
            yield f"  {i:5d}   {f'{x:.6f}' if nu[0] > 0.001 else f'{x:.2e}'}   {block * round(width * x)}".rstrip()
        elif i == HEAD:
            yield f"    ...   {cut:,} more, in a straight line; --json has them all"


def can_print(text: str) -> bool:
    """Return whether standard output has an encoding for a text."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
