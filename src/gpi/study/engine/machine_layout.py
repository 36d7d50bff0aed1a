"""What this machine gives the jobs of a study: fixed when the study starts; a machine that cannot give it runs none.

Measured: on CPUs, as many jobs as cores with one core each simulate and learn more in all than fewer jobs with more
cores, because no thread waits for another. With a GPU likewise (16 cores and an H200: 338,000 steps a second with 16
jobs, 29,700 with one), and there jobs share it, through NVIDIA's MPS. GPUs are seen without starting JAX.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpi.errors import UsageError
from gpi.machine import available_memory, core_quota, cores, nvidia_gpus, nvidia_output
from gpi.rundir.lock import take
from gpi.study.definition import Job
from gpi.study.directory import Layout
from gpi.training.devices import compilation_cache, versions
from gpi.training.memory import memory_needed

GPU_FLAGS = "--xla_gpu_autotune_level=0"
"""Sixteen jobs that compile at once are ready in 25 to 30 s instead of 110 to 150 s, and run as fast."""
BEYOND = 400 << 20  # bytes of a job beyond `memory_needed`, while it compiles; measured: 900 to 950 MB in all
ON_GPU = 800 << 20  # bytes of a GPU that a job takes
DEVICES = Path("/dev")
CONTROL = "nvidia-cuda-mps-control"


class Places(NamedTuple):
    """How many jobs this machine runs side by side."""

    number: int
    gpus: tuple[str, ...]
    """GPUs, of which job after job takes the next."""
    note: str
    """Why there are fewer than there are cores for; empty otherwise."""


class Gpu(NamedTuple):
    """A GPU that this process may use."""

    name: str
    """As CUDA_VISIBLE_DEVICES names it."""
    free: int
    """Bytes of unused memory; 0 if unknown."""


def gpus() -> list[Gpu]:
    """Return the GPUs that JAX would use here: there are none without its CUDA plugin."""
    if os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu" or not has_plugin():
        return []
    listed = nvidia_gpus("index", "memory.free") or [[str(k), ""] for k in range(len([*DEVICES.glob("nvidia[0-9]*")]))]
    found = [Gpu(index, int(free) << 20 if free.isdecimal() else 0) for index, free in listed if index.isdecimal()]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    free = dict(found)
    names = [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    return [Gpu(name, free.get(name, 0)) for name in names] if found else []


def has_plugin() -> bool:
    """Return whether JAX's plugin for CUDA is installed."""
    return any(
        re.fullmatch(r"jax[-_]cuda\d+[-_]plugin", one.metadata["Name"] or "", re.IGNORECASE)
        for one in importlib.metadata.distributions()
    )


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


@contextmanager
def sharing() -> Iterator[str]:
    """Let processes share the GPU through MPS; yield a note for the user, empty if all is well.

    A daemon that already runs is used and left alone. One that a runner of gpi started is stopped when the last
    runner ends: each holds a lock on one file, in which the starter has left its mark. So a daemon whose starter was
    killed is stopped by the next runner.
    """
    path = Path(compilation_cache()).parent / f"mps-{platform.node()}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        lock = take(path, shared=True, wait=True)
        note = start_mps(path)
    except OSError as error:
        yield f"the GPU is shared without MPS, which is slower: {path} cannot be locked: {error.strerror}"
        return
    try:
        yield note
    finally:
        os.close(lock) if lock is not None else None
        stop_mps(path)


def start_mps(path: Path) -> str:
    """Start the daemon unless one answers; return a note if that fails."""
    if nvidia_output(CONTROL, text="get_server_list\n"):
        return ""
    path.write_bytes(b"")
    nvidia_output(CONTROL, "-d")
    if not nvidia_output(CONTROL, text="get_server_list\n"):
        return f"the GPU is shared without MPS, which is slower: {CONTROL} is missing or does not start"
    path.write_bytes(b"started by gpi\n")
    return ""


def stop_mps(path: Path) -> None:
    """Stop the daemon if a runner of gpi started it and no other runner uses it."""
    last = take(path)
    if last is not None and path.read_bytes():
        nvidia_output(CONTROL, text="quit -t 10\n")
        path.write_bytes(b"")
    os.close(last) if last is not None else None
