"""Studies: the same tasks with several settings and seeds, as many runs of `gpi train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpi.study.engine.screen import Ended
    from gpi.study.frame import Results


def run(
    study: str | Path, out: str | Path, *, environments: Mapping[str, str] | None = None, jobs: int | None = None,
    cores: int | None = None, only: str = "", shard: str = "", seconds: float | None = None, whole_jobs: bool = False,
    quiet: bool = False,
) -> Ended:  # fmt: skip
    """Run the jobs of a study, a file or one that is built in, in the directory `out`; as `gpi study run` does.

    Jobs that fail are set aside and named in the result. Ctrl-C saves every job and then raises KeyboardInterrupt; the
    same call continues. Call it in the main thread of the program.

    Args:
        study: The name of a study that is built in, or a TOML file.
        out: The study's directory.
        environments: Your own environments, as `module:id`, by the names that the file's tasks have.
        jobs: How many run side by side; by default as many as the machine has room for.
        cores: Of each job, decided when the study begins.
        only: A pattern of job names, task/arm/seeds.
        shard: This machine's part of the jobs, such as 3/16.
        seconds: After which every job is saved and the call returns.
        whole_jobs: Begin only jobs that will end within `seconds`.
        quiet: Show nothing.
    """
    from gpi.study.engine.begin import Options
    from gpi.study.engine.locks import read_shard
    from gpi.study.engine.loop import run_study
    from gpi.training.signals import pass_on

    part = read_shard(shard) if shard else None
    options = Options(jobs, cores, only, part, seconds, whole_jobs, dict(environments or {}))
    ended = run_study(study, out, options, quiet=quiet)
    if ended.signal is not None:
        saved = "" if ended.killed else " and saved"
        pass_on(ended.signal, f"interrupted{saved}: gpi.study.run(..., {str(out)!r}) continues")
    return ended


def load(directory: str | Path) -> Results:
    """Return all results of a study's directory, of a pack, or of any runs, as arrays for plots of your own.

    `results.finals[arm][task]` are the final performances of the seeds, `results.curves(task, arm)` their learning
    curves, `results.to_pandas()` one row for every seed. Unfinished runs are marked, and not among the finals.
    """
    from gpi.study.frame import results_of
    from gpi.study.gathered import gathered

    return results_of(gathered(directory, unfinished=True))
