"""What a process may use of its machine, read from the kernel's files as containers present them."""

import os
from pathlib import Path

import pytest

from gpi import machine

MEMINFO = "MemTotal:       24684100 kB\nMemAvailable:   1000 kB\n"


def kernel(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


VERSION_2 = {
    "proc/self/cgroup": "0::/job/mine\n", "sys/fs/cgroup/job/mine/memory.max": "max\n",
    "sys/fs/cgroup/job/mine/memory.current": "100\n", "sys/fs/cgroup/job/memory.max": "500000\n",
    "sys/fs/cgroup/job/memory.current": "300000\n", "sys/fs/cgroup/job/memory.stat": "anon 7\ninactive_file 50000\n",
    "sys/fs/cgroup/job/mine/cpu.max": "150000 100000\n",
}  # fmt: skip
VERSION_1 = {
    "proc/self/cgroup": "4:memory:/mine\n2:cpu,cpuacct:/mine\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "123\n",
    "sys/fs/cgroup/memory/mine/memory.limit_in_bytes": "500000\n",
    "sys/fs/cgroup/memory/mine/memory.usage_in_bytes": "250000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
}  # fmt: skip
HIDDEN = {  # a container that sees its own cgroup as the root of all, as Docker mounts it
    "proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/memory.max": "250000\n",
    "sys/fs/cgroup/memory.current": "0\n", "sys/fs/cgroup/cpu.max": "150000 100000\n",
}  # fmt: skip


@pytest.mark.parametrize("files", [VERSION_2, VERSION_1, HIDDEN], ids=["v2", "v1", "hidden"])
def test_a_container_s_limits_count(files: dict[str, str], tmp_path: Path):
    root = kernel(tmp_path, {**files, "proc/meminfo": MEMINFO})
    assert machine.available_memory(root) == 250_000
    assert machine.core_quota(root) == 1.5


def test_without_limits_the_machine_decides(tmp_path: Path):
    root = kernel(
        tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 10\n"}
    )
    assert machine.available_memory(root) == 1_024_000
    assert machine.core_quota(root) == float("inf")
    assert machine.available_memory(tmp_path / "no-such-kernel") == os.sysconf("SC_PHYS_PAGES") * os.sysconf(
        "SC_PAGE_SIZE"
    )


def test_a_full_cgroup_has_no_room(tmp_path: Path):
    files = {**HIDDEN, "proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.current": "999999\n"}
    assert machine.available_memory(kernel(tmp_path, files)) == 0


def test_this_machine_has_memory_and_cores():
    assert 2**20 < machine.available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1 <= machine.cores() <= (os.cpu_count() or 1)
