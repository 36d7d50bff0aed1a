"""Programs for tests of values: compiled seven times faster than in training, and as exact up to rounding."""

import functools

import jax

# Without LLVM's optimisation and without XLA's newer emitters, a natural step compiles in 0.4 s instead of 2.8 s. Last
# bits may differ, so tests of bits, or of what one program computes twice, use `jax.jit` as training does. Only the
# outermost function takes compiler options: what is called inside another one is not wrapped.
WANTED = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def exists(option: str) -> bool:
    """Return whether this version of JAX has a compiler option."""
    try:
        jax.jit(lambda: 0, compiler_options={option: WANTED[option]}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


fast_jit = functools.partial(jax.jit, compiler_options={name: WANTED[name] for name in WANTED if exists(name)})
