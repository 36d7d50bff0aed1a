"""Settings for every test: strict dtypes, no silent broadcasting of ranks, two CPU devices."""

import contextlib
import ctypes
import gc
import os
import signal
from pathlib import Path

# Two devices; and programs that compile twice as fast, and run slower. Processes that tests start run what users run.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
os.environ.setdefault("MUJOCO_GL", "disabled")
os.environ["TERM"] = "xterm"  # tests of progress have a terminal of their own
# Many tests compile the same program: keep it between them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest

from gpi.training.learner import PROGRAMS
from own_runs import walk
from shapes import check_shapes

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
assert len(jax.devices()) == 2  # and JAX has started: no run may set it up for itself
check_shapes()

# A shell starts what is in the background with Ctrl-C ignored, `nohup` with hangups ignored; tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def x64():
    """Turn 64-bit types on, which EnvPool and the running statistics need."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def let_go():
    """Let go of the programs that a file compiled: with those of all files two workers held 4 GB each."""
    yield
    PROGRAMS.clear()
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # glibc keeps what was freed, half of it all, until it is asked
        ctypes.CDLL(None).malloc_trim(0)


__all__ = ["walk"]  # a fixture

TRAINED = ("walk", "short", "trained_run", "resumed")  # fixtures that train: the tests of one share a worker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = [name for name in TRAINED if name in getattr(item, "fixturenames", ())]
        if used and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(used[0]))
