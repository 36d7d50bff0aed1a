"""GPUs, seen without starting JAX, and NVIDIA's MPS, which lets several jobs use one at the same time."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gpi.training.devices import compilation_cache

DEVICES = Path("/dev")
CONTROL = "nvidia-cuda-mps-control"
SECONDS = 20.0  # for NVIDIA's programs to answer


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
    found = asked() or [Gpu(str(number), 0) for number in range(len(list(DEVICES.glob("nvidia[0-9]*"))))]
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


def asked() -> list[Gpu]:
    """Return the GPUs that `nvidia-smi` lists."""
    said = output("nvidia-smi", "--query-gpu=index,memory.free", "--format=csv,noheader,nounits")
    rows = [line.split(",") for line in said.splitlines() if line.count(",") == 1]
    return [
        Gpu(index.strip(), int(free) << 20 if free.strip().isdecimal() else 0)
        for index, free in rows if index.strip().isdecimal()
    ]  # fmt: skip


def output(*command: str, text: str = "") -> str:
    """Return what a program of NVIDIA's prints; empty if it is not there, fails or does not answer."""
    if shutil.which(command[0]) is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=SECONDS, check=True, start_new_session=True
        )
        return ended.stdout or "\n"
    return ""


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
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        note = start_mps(path)
    except OSError as error:
        yield f"the GPU is shared without MPS, which is slower: {path} cannot be locked: {error.strerror}"
        return
    try:
        yield note
    finally:
        stop_mps(lock, path)
        os.close(lock)


def start_mps(path: Path) -> str:
    """Start the daemon unless one runs; return a note if that fails."""
    if mps_runs():
        return ""
    path.write_bytes(b"")
    output(CONTROL, "-d")
    if not mps_runs():
        return f"the GPU is shared without MPS, which is slower: {CONTROL} is missing or does not start"
    path.write_bytes(b"started by gpi\n")
    return ""


def stop_mps(lock: int, path: Path) -> None:
    """Stop the daemon if a runner of gpi started it and no other runner uses it."""
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.read_bytes():
            output(CONTROL, text="quit -t 10\n")
            path.write_bytes(b"")


def mps_runs() -> bool:
    """Return whether the daemon of MPS answers."""
    return bool(output(CONTROL, text="get_server_list\n"))
