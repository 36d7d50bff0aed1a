"""Checks the shapes in the types of `gpi.core` whenever one of its functions is called, here while JAX traces it."""

import functools
import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import AbstractArray, jaxtyped

import gpi.core
from gpi.core import iteration
from gpi.core.rules import RULES
from gpi.core.trust import TRUST


def fits(value: Any, hint: Any) -> bool:
    """Return whether arrays have the shape and type of a hint; hints without arrays are ignored."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return isinstance(value, hint | np.ndarray | np.generic)  # the host calls some functions with NumPy arrays
    if typing.get_origin(hint) is tuple and len(typing.get_args(hint)) == len(value):
        return all(fits(x, inner) for x, inner in zip(value, typing.get_args(hint), strict=True))
    if inspect.isclass(hint) and hasattr(hint, "_fields") and isinstance(value, hint):
        hints, fields = typing.get_type_hints(hint), value._asdict()  # type: ignore[attr-defined]
        return all(fits(x, hints[name]) for name, x in fields.items())
    return True


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, wrapped so that it raises TypeError if an argument or the result has the wrong shape."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*values: Any, **named: Any) -> Any:
        hints = typing.get_type_hints(function)
        given = signature.bind(*values, **named).arguments
        for name, value in given.items():
            if name in hints and not fits(value, hints[name]):
                raise TypeError(f"{function.__qualname__}: {name} is not {hints[name]}: {value}")
        out = function(*values, **named)
        if not fits(out, hints.get("return")):
            raise TypeError(f"{function.__qualname__}: the result is not {hints['return']}: {out}")
        return out

    return jaxtyped(wrapper, typechecker=None)


def check_shapes() -> None:
    """Replace every function and method of `gpi.core` by its checked form, wherever it has been imported."""
    for module in pkgutil.iter_modules(gpi.core.__path__, "gpi.core."):
        importlib.import_module(module.name)
    core = [module for name, module in sys.modules.items() if name.startswith("gpi.core.")]
    replaced = {}
    for module in core:
        for thing in list(vars(module).values()):
            if inspect.isfunction(thing) and thing.__module__ == module.__name__:
                replaced[thing] = checked(thing)
            elif inspect.isclass(thing) and thing.__module__ == module.__name__ and hasattr(thing, "_fields"):
                for method, code in list(vars(thing).items()):
                    if inspect.isfunction(code) and not method.startswith("_"):
                        setattr(thing, method, checked(code))
    for name, rule in RULES.items():  # tables and `learn` hold the functions themselves
        RULES[name] = rule._replace(propose=checked(rule.propose))
    for name, trust in TRUST.items():
        TRUST[name] = trust._replace(budget=checked(trust.budget), test=trust.test and checked(trust.test))
    replaced[iteration.learn] = iteration.guarded(iteration.audited(replaced[iteration.iteration]))
    for module in [module for name, module in sys.modules.items() if name.startswith("gpi")]:
        for name, thing in list(vars(module).items()):
            if inspect.isfunction(thing) and thing in replaced:
                setattr(module, name, replaced[thing])
