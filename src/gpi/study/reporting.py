"""From a study's directory to its report: its results, its jobs, and the measurements of a random policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gpi.report.blocks import Report
from gpi.study.contents import report_of
from gpi.study.directory import FILE, open_study
from gpi.study.frame import results_of
from gpi.study.gathered import CACHE, gathered
from gpi.study.sparsity import sparsity_of


def report_on(
    directory: Path, title: str = "", own: Mapping[str, str] | None = None, say: Callable[[str], object] = print, *,
    quiet: bool = True,
) -> Report:  # fmt: skip
    """Return the report on a study's directory, or on any directory of runs."""
    study = open_study(directory) if (directory / FILE).exists() else None
    results = results_of(gathered(directory, unfinished=True, quiet=quiet))
    cache = directory / CACHE if study or (directory / "packs").is_dir() else None
    with suppress(OSError):  # it only saves time
        if cache:
            cache.mkdir(exist_ok=True)
    random = sparsity_of(results.tasks, cache, say, own)
    name = title or (study.name if study else directory.absolute().name)
    again = f"gpi study run {study.name} --out {directory}" if study else ""
    commands = [command for command in (again, f"gpi study report {directory}") if command]
    return report_of(results, study.jobs if study else (), name, random, commands)
