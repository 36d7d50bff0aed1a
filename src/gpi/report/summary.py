"""Runs and audits in words: for a terminal, and as a notebook shows them, even if files are missing."""

from __future__ import annotations

import base64
import html
import math
import textwrap
from collections.abc import Sequence

from gpi.analysis.audit import COUNTED, MEANING, AuditSummary, summarise
from gpi.errors import GpiError
from gpi.report.labels import DEFAULTS, settings_of, short_task, shown
from gpi.rundir.done import read_done
from gpi.rundir.run import Run
from gpi.rundir.tables import slowest
from gpi.terminal import WIDTH, filled

NAME_WIDTH = 24  # of a run in the table; the verdict has the whole of it
UNREADABLE = (GpiError, OSError, ValueError, KeyError, TypeError)  # of files that are missing, damaged or not text


def as_text(run: Run) -> str:
    """Describe a run in a few lines."""
    try:
        results = [f"{name}: {value}" for name, value in results_of(run).items()]
        lines = [textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ") for line in results]
        return "\n".join([f"Run in {run.dir}: {title_of(run)}", *lines])
    except UNREADABLE as error:
        return f"Run in {run.dir}, which cannot be read: {error}"


def title_of(run: Run) -> str:
    """Return in words what a run trained, and whether it was finished."""
    config = run.config
    seeds = f"seed {run.seeds[0]}" if len(run.seeds) == 1 else f"seeds {run.seeds[0]} to {run.seeds[-1]}"
    goal, frozen = config.get("steps", 0), (read_done(run.dir) or {"frozen": {}})["frozen"]
    taken = slowest(run.seeds, list(run.steps.values()), frozen)
    steps = f"{goal:,} steps each" if taken >= goal else f"{taken:,} of {goal:,} steps each, not finished"
    return f"{config['algorithm']} on {short_task(run)}, {seeds}, {steps}"


def results_of(run: Run) -> dict[str, str]:
    """Return what a run achieved, in words: final return by seed, and the verdict of the audit."""
    returns = run.returns.items()
    known = [f"{seed}: {x:.1f}" for seed, x in returns if not math.isnan(x)]
    return {"final return by seed": ", ".join(known) or "no finished episode yet", "audit": verdict_of(run)}


def verdict_of(run: Run) -> str:
    """Return the verdict of the audit, or why there is none."""
    try:
        return summarise(run).verdict()
    except UNREADABLE as error:
        return str(error)


def as_html(run: Run) -> str:
    """Return a run as HTML; every text that comes from a file is escaped."""
    try:
        rows = {"directory": str(run.dir)} | results_of(run) | {"settings": settings_in_words(run)}
        title, picture = title_of(run), curve_of(run)
    except UNREADABLE:
        return f"<pre>{html.escape(as_text(run))}</pre>"
    cells = "".join(
        f"<tr><th style='text-align:left;vertical-align:top'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in rows.items()
    )
    return f"<div><b>{html.escape(title)}</b><table>{cells}</table>{picture}</div>"


def settings_in_words(run: Run) -> str:
    """Return the settings that are not at their defaults."""
    other = {name: value for name, value in settings_of(run).items() if value != shown(DEFAULTS[name])}
    return ", ".join(f"{name} = {value}" for name, value in other.items()) or "all defaults"


def curve_of(run: Run) -> str:
    """Return the learning curve as an inline picture, or nothing before the first episode."""
    from gpi.report.curves import curves_figure, has_episodes  # matplotlib takes long to import
    from gpi.report.pictures import encode_figure

    if not has_episodes(run):
        return ""
    data = base64.b64encode(encode_figure(curves_figure([run]), dpi=80)).decode()
    return f"<img alt='learning curve' src='data:image/png;base64,{data}'>"


def audit_text(summaries: Sequence[AuditSummary], names: Sequence[str]) -> str:
    """Return audits for people: a verdict for each run, then a table with a line for each of its bounds."""
    named = list(zip(summaries, names, strict=True))
    lines = [
        filled(f"{name}: {s.verdict()}" + (f" {s.calibration.words()}" if s.calibration else "")) for s, name in named
    ]
    rows = [("run", "bound", "held", "worst", "seed", "iteration")]
    for s, name in named:
        for i, bound in enumerate(s.bounds if s.estimate in COUNTED else ()):
            worst, what = s.worst[bound], f"{s.name_of(bound)} {'KL' if bound == 'kl' else 'TV'}"
            numbers = percent(s.inside(bound)), f"x{worst.ratio:.3g}", str(worst.seed), str(worst.iteration)
            rows.append((shortened(name) if i == 0 else "", what, *numbers))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = [
        "  ".join(f"{x:<{w}}" if i < 2 else f"{x:>{w}}" for i, (x, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    table.insert(1, "-" * len(table[0]))
    equations = dict.fromkeys(s.name_of(bound) for s in summaries for bound in s.bounds)
    notes = [f"{equation}: {MEANING[equation]}" for equation in equations]
    notes += ["held: share of updates inside the bound.",
              "worst: largest measured / allowed, above x1 outside; its seed and iteration."]  # fmt: skip
    return "\n".join([*lines, "", *table, "", *map(filled, notes)])


def shortened(name: str) -> str:
    """Return the end of a name that is too long for a table."""
    return name if len(name) <= NAME_WIDTH else f"..{name[2 - NAME_WIDTH :]}"


def percent(share: float) -> str:
    """Format a share, never rounded up to 100%: one violation in a million stays visible."""
    return "100%" if share == 1.0 else f"{min(share, 0.99999):.3%}"
