"""Screws turned for every test: strict dtypes, no silent broadcasting of ranks, two CPU devices."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ.setdefault("MUJOCO_GL", "disabled")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """EnvPool and the running statistics need 64-bit types."""
    with jax.enable_x64(True):
        yield
