"""The machine under a run: what must be set before JAX starts, and which devices to use afterwards."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from gpi.errors import UsageError
from gpi.training.config import Config

VERSIONED = ("gpi-rl", "jax", "jaxlib", "envpool", "gymnasium", "numpy")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_devices(config: Config) -> int:
    """How many CPU devices the population is worth: one per thread of XLA, but none without a member.

    Pinning PJRT_NPROC pins this too, so that the bits do not depend on how many cores there are. With fewer threads
    than devices JAX would hang: each occupies one while it waits for the others.
    """
    threads = os.environ.get("PJRT_NPROC", "")
    return min(int(threads) if threads.isdecimal() and int(threads) else cores(), config.seeds)


def prepare(config: Config, threads: str = "") -> None:
    """Set what JAX reads only when it starts; the command line's business, never done on import.

    CPU cores become devices to shard over, the number of XLA threads is pinned because results depend on it in the
    last bits, and compiled programs are kept for the next start.
    """
    if "jax" in sys.modules:
        raise RuntimeError("runtime.prepare must be called before JAX is imported")
    if threads:  # of the run that is resumed
        os.environ.setdefault("PJRT_NPROC", threads)
    threads = os.environ.setdefault("PJRT_NPROC", str(cores()))
    if not (threads.isdecimal() and int(threads)):
        raise UsageError(f"PJRT_NPROC = {threads} must be a positive number of threads; unset it")
    flag = f"--xla_force_host_platform_device_count={host_devices(config)}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpi" / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))


def devices(config: Config) -> list[Any]:
    """The devices that learn: GPUs where JAX sees them, else CPU devices; never more than there are members."""
    import jax

    local = jax.local_devices()
    return local[: min(len(local), config.seeds)]


def versions() -> dict[str, str]:
    """Versions of everything that can change a result."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "machine": platform.machine()}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def identity(devices: list[Any]) -> dict[str, Any]:
    """Everything besides the settings that decides the bits of a result."""
    drifting = {name: version for name, version in versions().items() if name != "platform"}
    pinned = {name: str(value) for name, value in settings().items() if name != "cores"}
    return {"versions": drifting, "runtime": pinned, "devices": [str(device) for device in devices]}


def settings() -> dict[str, str | int]:
    """Settings of the runtime that results depend on in the last bits."""
    return {
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "PJRT_NPROC": os.environ.get("PJRT_NPROC", ""),
        "cores": cores(),
    }
