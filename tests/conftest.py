"""Screws turned for every test: strict dtypes, no silent broadcasting of ranks, two CPU devices."""

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ.setdefault("MUJOCO_GL", "disabled")
# Many tests compile the same program: keep it between them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """EnvPool and the running statistics need 64-bit types."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_programs():
    """Trainers that would learn by the same program share it: to trace, compile or load it is most of a short run.

    A test that replaces something inside `loop.learn` has to undo this one first.
    """
    from gpi.training import trainer as loop

    make, kept = loop.Trainer._learning, {}

    def learning(trainer: loop.Trainer, raw: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten((trainer.state, raw, trainer.hyper))
        kinds = tuple((x.shape, x.dtype, x.sharding) for x in leaves)
        key = (loop.static_of(trainer.config), trainer.mesh, tree, kinds, jax.config.read("jax_enable_x64"))
        if key not in kept:
            kept[key] = [SimpleNamespace(compile=functools.cache(program.compile)) for program in make(trainer, raw)]
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Trainer, "_learning", learning)
        yield
