"""Results that a study has from other machines, as packs in its directory: which of its jobs they make superfluous."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpi.study.directory import StudyDir
from gpi.study.results import Result, key_of, read_pack

PACKS = "packs"


def gathered(study: StudyDir) -> list[Result]:
    """Return the results in all packs of a study, ordered by name; raise FileError for one that cannot be used."""
    return [result for path in sorted((study.path / PACKS).glob("*.safetensors")) for result in read_pack(path)]


def covered(study: StudyDir, environments: Mapping[str, str] | None = None) -> set[str]:
    """Return the names of the jobs whose every seed has a complete result, of as many steps, in a pack.

    `environments` gives the user's own environments by the names they have in the study: results have their code.
    """
    steps: dict[tuple[str, int], int] = {}
    for result in gathered(study):
        if result.complete:  # a seed that was frozen has fewer steps than the others, and never gets more
            steps |= {(result.key, seed): max(result.steps) for seed in result.seeds}
    names = set()
    for job in study.jobs:
        own = (environments or {}).get(job.task)
        key = key_of(dataclasses.replace(job.config, task=own) if own else job.config)
        seeds = range(job.config.seed, job.config.seed + job.config.seeds)
        if all(steps.get((key, seed), 0) >= job.config.steps for seed in seeds):
            names.add(job.name)
    return names
