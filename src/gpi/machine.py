"""What this process may use of the machine: cores and memory, with the limits that a container sets, and NVIDIA's GPUs.

Besides, how a process is tied to the one that started it.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
NVIDIA_SECONDS = 20.0  # for NVIDIA's programs to answer
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_quota(root: Path = ROOT) -> float:
    """Return how many cores' worth of time the cgroup of this process grants; infinity where it sets no limit."""
    quotas = [math.inf]
    for group in groups("cpu", root):
        limit, _, period = text_of(group / "cpu.max").partition(" ")  # version 2: "200000 100000", or "max 100000"
        limit, period = limit or text_of(group / "cpu.cfs_quota_us"), period or text_of(group / "cpu.cfs_period_us")
        if limit.isdecimal() and period.isdecimal() and int(period):  # version 1 writes -1 for no limit
            quotas.append(int(limit) / int(period))
    return min(quotas)


def available_memory(root: Path = ROOT) -> int:
    """Return the bytes of memory that this process can still take: what the machine has, and its cgroup leaves."""
    found = [line.split() for line in text_of(root / "proc/meminfo").splitlines()]
    free = [1024 * int(line[1]) for line in found if line[0] == "MemAvailable:"]
    if not free:  # not Linux: all there is
        with suppress(AttributeError, ValueError, OSError):
            free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    return min([*free, *(room(group) for group in groups("memory", root))], default=2**63)


def room(group: Path) -> int:
    """Return the bytes that a cgroup still leaves its processes; 2**63 where it sets no limit."""
    limit = text_of(group / "memory.max") or text_of(group / "memory.limit_in_bytes")
    used = text_of(group / "memory.current") or text_of(group / "memory.usage_in_bytes")
    if not (limit.isdecimal() and used.isdecimal()):  # "max", or no such file
        return 2**63
    counted = dict(line.split() for line in text_of(group / "memory.stat").splitlines() if len(line.split()) == 2)
    cache = counted.get("total_inactive_file") or counted.get("inactive_file", "0")  # files the kernel drops if asked
    return max(0, int(limit) - max(0, int(used) - int(cache)))


def groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the directories of the cgroups, of either version, that hold this process, innermost first."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, name = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        mounts = [names, controller] if names else ["", "unified"]
        for mount in dict.fromkeys(mounts):
            top = root / "sys/fs/cgroup" / mount
            inner = top / name.lstrip("/")
            yield from (path for path in (inner, *inner.parents) if path.is_relative_to(top) and path.is_dir())


def text_of(path: Path) -> str:
    """Return the content of a small file of the kernel, stripped; empty if there is none."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="ascii").strip()
    return ""


def end_with_parent(number: int) -> None:
    """Ask the kernel to send this process a signal when its parent ends, even if that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(SET_DEATH_SIGNAL, number, 0, 0, 0)


def nvidia_gpus(*columns: str) -> list[list[str]]:
    """Return these columns of the GPUs that `nvidia-smi` lists; nothing without it."""
    said = nvidia_output("nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    return [row for row in rows if len(row) == len(columns)]


def nvidia_output(*command: str, text: str = "") -> str:
    """Return what a program of NVIDIA's prints; empty if it is not there, fails or does not answer."""
    if shutil.which(command[0]) is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=NVIDIA_SECONDS, check=True,
            start_new_session=True,
        )  # fmt: skip
        return ended.stdout or "\n"
    return ""
