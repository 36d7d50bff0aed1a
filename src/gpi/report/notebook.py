"""A run in a few lines, and as a notebook shows it; both show something even if files are missing."""

from __future__ import annotations

import base64
import html
import math
import textwrap

from gpi.errors import GpiError
from gpi.report.audit import WIDTH, summarise
from gpi.report.labels import DEFAULTS, settings_of, short_task, shown
from gpi.rundir.done import read_done
from gpi.rundir.run import Run
from gpi.rundir.tables import slowest

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
