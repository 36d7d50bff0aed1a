"""Resources of each job, fixed when the study starts; a machine that cannot provide them runs none.

Measured: on CPUs, as many jobs as cores with one core each simulate and learn more in all than fewer jobs with more
cores, because no thread waits for another. With a GPU likewise (16 cores and an H200: 338,000 steps a second with 16
jobs, 29,700 with one), and there jobs share it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from gpi.errors import UsageError
from gpi.machine import available_memory, core_quota, cores
from gpi.study.definition import Job
from gpi.study.directory import Layout
from gpi.study.engine.gpus import gpus
from gpi.training.devices import versions
from gpi.training.memory import memory_needed

GPU_FLAGS = "--xla_gpu_autotune_level=0"
"""Sixteen jobs that compile at once are ready in 25 to 30 s instead of 110 to 150 s, and run as fast."""
BEYOND = 400 << 20  # bytes of a job beyond `memory_needed`, while it compiles; measured: 900 to 950 MB in all
ON_GPU = 800 << 20  # bytes of a GPU that a job takes


class Places(NamedTuple):
    """How many jobs this machine runs side by side."""

    number: int
    gpus: tuple[str, ...]
    """GPUs, of which job after job takes the next."""
    note: str
    """Why there are fewer than there are cores for; empty otherwise."""


def cores_here() -> int:
    """Return how many cores jobs can keep busy here, also in a container that grants fewer than it shows."""
    return max(1, int(min(cores(), core_quota())))


def decide(jobs: Sequence[Job], wanted: int | None = None) -> Layout:
    """Return the layout of a study that begins on this machine; `wanted` is the number of cores of each job."""
    here, gpu = cores_here(), bool(gpus())
    if wanted is not None and not 1 <= wanted <= here:
        raise UsageError(f"--cores {wanted} must be from 1 to the {here} of this machine; leave it out")
    most = max(job.config.seeds * job.config.num_envs for job in jobs)
    number = wanted or max(1, min(here // len(jobs), most))
    flags = os.environ.get("XLA_FLAGS", "")
    if not gpu:
        pinned = {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": str(number), "XLA_FLAGS": flags}
    else:
        pinned = {
            "JAX_PLATFORMS": "cuda,cpu", "PJRT_NPROC": str(max(2, number)), "XLA_FLAGS": f"{flags} {GPU_FLAGS}".strip(),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }  # fmt: skip
    return Layout("gpu" if gpu else "cpu", number, pinned, versions_here())


def versions_here() -> dict[str, str]:
    """Return the versions that results depend on."""
    return {name: version for name, version in versions().items() if name != "platform"}


def require(layout: Layout) -> None:
    """Raise UsageError, in one line, if this machine cannot give what the study's jobs have had from its beginning."""
    now, here = versions_here(), cores_here()
    lacks = [
        f"{name} {version}, here is {now.get(name)}" for name, version in layout.versions.items()
        if now.get(name) != version
    ]  # fmt: skip
    if layout.platform == "gpu" and not gpus():
        lacks.insert(0, "a GPU that JAX can use, here is none")
    if layout.cores > here:
        lacks.insert(0, f"{layout.cores} cores for each job, here are {here}")
    if lacks:
        raise UsageError(
            f"this study has {'; '.join(lacks)}: its results would change, so the jobs are left to another machine; "
            "name another directory to begin a study here"
        )


def places(layout: Layout, jobs: Sequence[Job], wanted: int | None = None) -> Places:
    """Return how many of these jobs to run side by side; raise UsageError if memory is too small for one.

    `wanted` is the user's number, which is taken as it is.
    """
    here = cores_here() // layout.cores
    needed = max((memory_needed(job.config) + BEYOND for job in jobs), default=BEYOND)
    room = available_memory() // needed
    found = gpus() if layout.platform == "gpu" else []
    on_gpus = sum(gpu.free // ON_GPU if gpu.free else here for gpu in found)
    names = tuple(gpu.name for gpu in found)
    if wanted is not None:
        return Places(wanted, names, "")
    free = f"{available_memory() / 2**30:,.1f} GiB of memory are free"
    if room < 1:
        raise UsageError(f"a job needs about {needed / 2**30:,.1f} GiB, but {free}; end other programs")
    if found and on_gpus < 1:
        raise UsageError(f"a job needs about {ON_GPU / 2**30:,.1f} GiB of a GPU, none has enough; end other programs")
    number = min(here, room, on_gpus if found else here)
    why = free if room <= number else "the GPU has no room for more"
    return Places(number, names, f"{number} jobs side by side instead of {here}: {why}" if number < here else "")
