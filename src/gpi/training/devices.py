"""The machine of a run: settings to make before JAX starts, and the devices to use afterwards."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any, Protocol

from gpi.config import Config
from gpi.errors import UsageError
from gpi.machine import cores
from gpi.requirements import TESTED_JAX, satisfies

VERSIONED = ("gpi-rl", "jax", "jaxlib", "envpool", "gymnasium", "numpy")


class Device(Protocol):
    """A JAX device."""

    platform: str


def host_devices(config: Config) -> int:
    """Return how many CPU devices to use: one per thread of XLA, but no more than there are members.

    Pinning PJRT_NPROC pins this too, so that the bits do not depend on the number of cores. With fewer threads than
    devices JAX would hang: each device occupies a thread while it waits for the others.
    """
    threads = os.environ.get("PJRT_NPROC", "")
    return min(int(threads) if threads.isdecimal() and int(threads) else cores(), config.seeds)


def jax_setting(name: str) -> Any:
    """Return a setting of JAX, as it is in the current context."""
    import jax

    return getattr(jax.config, name)


def jax_has_started() -> bool:
    """Return whether JAX has a backend, whose devices and threads cannot be changed any more."""
    if "jax" not in sys.modules:
        return False
    import jax

    before = jax_setting("jax_num_cpu_devices")
    try:  # JAX refuses to change this setting once it has started
        jax.config.update("jax_num_cpu_devices", before + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", before)
    return False


def prepare(config: Config, threads: str = "") -> None:
    """Make the settings that JAX reads when it starts; do nothing if the user has started it already.

    CPU cores become devices to shard over, the number of XLA threads is pinned because results depend on it in the
    last bits, and compiled programs are cached for the next start.
    """
    require_jax()
    if jax_has_started():
        return
    if threads:  # of the run that is resumed
        os.environ.setdefault("PJRT_NPROC", threads)
    threads = os.environ.setdefault("PJRT_NPROC", str(cores()))
    if not (threads.isdecimal() and int(threads)):
        raise UsageError(f"PJRT_NPROC = {threads} must be a positive number of threads; unset it")
    flag = f"--xla_force_host_platform_device_count={host_devices(config)}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compilation_cache()
    if "jax" in sys.modules:  # imported by the user, who has not used it yet: it has read its environment already
        import jax

        if jax_setting("jax_compilation_cache_dir") is None:
            jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])


def require_jax() -> None:
    """Raise UsageError if JAX is older than all that gpi works with."""
    have, least = importlib.metadata.version("jax"), f">={TESTED_JAX[0]}"
    if not satisfies(have, least):
        remedy = f"pip install jax=={TESTED_JAX[0]} jaxlib=={TESTED_JAX[0]}"
        raise UsageError(f"JAX {have} is too old, it must be {least}; run `{remedy}`")


def compilation_cache() -> str:
    """Return the directory that compiled programs are kept in."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return os.environ.get("JAX_COMPILATION_CACHE_DIR", str(home / "gpi" / "xla"))


def learning_devices(config: Config) -> list[Device]:
    """Return the devices that learn: GPUs where JAX sees them, else CPU devices; never more than there are members."""
    import jax

    local = jax.local_devices()
    return local[: min(len(local), config.seeds)]


def versions() -> dict[str, str]:
    """Return the versions of everything that can change a result."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "machine": platform.machine()}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine_identity(devices: list[Device]) -> dict[str, object]:
    """Return everything besides the settings that decides the bits of a result."""
    drifting = {name: version for name, version in versions().items() if name != "platform"}
    pinned = {name: str(value) for name, value in runtime_settings().items() if name != "cores"}
    return {"versions": drifting, "runtime": pinned, "devices": [str(device) for device in devices]}


def runtime_settings() -> dict[str, str | int]:
    """Return the settings of the runtime that results depend on in the last bits."""
    return {
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "PJRT_NPROC": os.environ.get("PJRT_NPROC", ""),
        "cores": cores(),
    }
