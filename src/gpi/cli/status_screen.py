"""What `gpi study status` shows: one screen that says how far a study is."""

from __future__ import annotations

import json
import math
import shutil
import string
import sys
import time
from pathlib import Path

from gpi.study.status import JobStatus, Status, Watch
from gpi.terminal import clock, plural, thousands

SECONDS = 2.0  # between looks
CELL, WIDE = 5, 7  # columns of a return and its mark, and where returns are in thousands and there is room
HEAD = "return so far"
TASK = 24  # columns of a task, at most
MARKS = {"done": " ", "running": "~", "waiting": "-", "failed": "!"}
LETTERS = string.ascii_lowercase + string.ascii_uppercase  # that stand for arms
FAILURES = 5  # that are shown on a screen


def show(directory: Path, as_json: bool, *, once: bool) -> int:
    """Print how far a study is, or show it until it is done."""
    watch = Watch(directory)
    status = watch.look()
    if as_json:
        print(json.dumps(status.as_json()))
    elif once or not sys.stdout.isatty():
        print("\n".join(screen(status, shutil.get_terminal_size().columns)))
    else:
        follow(watch, status)
    return 0


def follow(watch: Watch, status: Status) -> None:
    """Show a study on a terminal until no job of it is left, or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()

    def shown() -> Text:
        return Text("\n".join(screen(status, console.width, console.height - 1)), no_wrap=True, overflow="crop")

    try:
        with Live(shown(), console=console, auto_refresh=False) as live:
            while status.counts["running"] + status.counts["waiting"]:
                time.sleep(SECONDS)
                status = watch.look()
                live.update(shown(), refresh=True)
    except KeyboardInterrupt:
        return


def screen(status: Status, columns: int, rows: int | None = None) -> list[str]:
    """Return a status as at most `rows` lines of at most `columns` columns each."""
    lines = [*summary(status), *failures(status, rows)]
    room = None if rows is None else rows - len(lines) - 1
    lines += ["", *matrix(status, columns, room)] if status.jobs else []
    lines = [
        "".join(x if x.isprintable() else "?" for x in line).rstrip() for line in lines
    ]  # names may come from files
    lines = [line if len(line) <= columns else f"{line[: columns - 1]}…" for line in lines]
    return lines if rows is None or len(lines) <= rows else [*lines[: rows - 1], "…"]


def summary(status: Status) -> list[str]:
    """Return the numbers of the whole study."""
    counts = ", ".join(f"{count} {state}" for state, count in status.counts.items())
    part = 100 * status.steps // max(status.goal, 1)
    lines = [f"{status.name}: {plural(len(status.jobs), 'job')}: {counts}"]
    speed = f"{status.steps:,} of {status.goal:,} steps ({part} %)"
    if status.counts["running"]:
        left = status.seconds_left
        speed += f" | {thousands(status.rate)} steps/s | {clock(left) if math.isfinite(left) else '?'} left"
    return [*lines, speed]


def failures(status: Status, rows: int | None) -> list[str]:
    """Return a line for each job that failed, or for some of them and the number of the others."""
    lines = [f"  {one.job.name}: {one.line}" for one in status.jobs if one.state == "failed"]
    if rows is not None and len(lines) > FAILURES:
        lines = [*lines[:FAILURES], f"  … and {len(lines) - FAILURES} more"]
    return ["failed:", *lines] if lines else []


def matrix(status: Status, columns: int, rows: int | None) -> list[str]:
    """Return the return so far of each task and arm, and what its columns and marks mean."""
    cells: dict[tuple[str, str], list[JobStatus]] = {}
    for one in status.jobs:
        cells.setdefault((one.job.task, one.job.arm), []).append(one)
    tasks, arms = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    width = min(max(len(HEAD), *map(len, tasks)), TASK)
    large = any(abs(one.returns) >= 999.5 for one in status.jobs)
    size = WIDE if large and width + WIDE * len(arms) <= columns else CELL
    width = min(width, max(8, columns - size * len(arms)))
    kept = arms[: min(max(1, (columns - width) // size - (len(arms) * size > columns - width)), len(LETTERS))]
    head = [*legend(kept, columns), short(HEAD, width) + "".join(f"{x:>{size - 1}} " for x in LETTERS[: len(kept)])]
    lines = [
        short(task, width) + "".join(cell(cells.get((task, arm), []), size) for arm in kept)
        + "  …" * (len(kept) < len(arms))
        for task in tasks
    ]  # fmt: skip
    if rows is not None and len(head) + len(lines) + 1 > rows:
        room = max(0, rows - len(head) - 2)
        lines = [*lines[:room], f"… and {len(tasks) - room} more tasks"]
    return [*head, *lines, "~ running, - begun and waiting, ! failed, · not begun"]


def legend(arms: list[str], columns: int) -> list[str]:
    """Return the arms with the letters that stand for them, filled into lines."""
    lines = [""]
    for letter, arm in zip(LETTERS, arms, strict=False):
        word = f"{letter} {arm}"
        if lines[-1] and len(lines[-1]) + 3 + len(word) > columns:
            lines.append("")
        lines[-1] += f"{'   ' if lines[-1] else ''}{word}"
    return lines


def short(name: str, width: int) -> str:
    """Return a name in exactly `width` columns."""
    return name.ljust(width) if len(name) <= width else f"{name[: width - 1]}…"


def cell(jobs: list[JobStatus], size: int = CELL) -> str:
    """Return the mean over the jobs of a task and arm, which differ in their seeds, and the least of their states."""
    values = [(one.returns, one.job.config.seeds) for one in jobs if math.isfinite(one.returns)]
    if not jobs:
        return " " * size
    if not values:
        mark = "!" if any(one.state == "failed" for one in jobs) else "·"
        return f"{mark:>{size - 1}} "
    mean = sum(x * n for x, n in values) / sum(n for _, n in values)
    states = [one.state for one in jobs]
    state = next((state for state in ("failed", "running", "waiting") if state in states), "done")
    return f"{number(mean, size):>{size - 1}}{MARKS[state]}"


def number(x: float, size: int = CELL) -> str:
    """Return a mean return as text of at most `size` - 2 columns, or of four."""
    small = [f"{x:.1f}"] * (abs(x) < 10)
    for text in (*small, f"{x:.0f}", f"{x / 1e3:.0f}k", f"{x / 1e6:.0f}M", f"{x:.0e}"):
        if len(text) <= max(4, size - 2):
            return text
    return "-inf" if x < 0 else "inf"
