"""Finding the function that makes an environment, given a Gymnasium id, `module:id` or `module:function`."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import gymnasium

from gpi.envs.faults import brief, one_line
from gpi.errors import EnvironmentFault, UsageError

Make = Callable[..., Any]
"""A function that returns a new environment, or the class of one."""
OWN = re.compile(r"([A-Za-z_][\w.]*):([\w./-]+)")
"""`my_module:MyEnv-v0`, or `my_module:make_env`."""


def maker(name: str) -> Make:
    """Return the function that makes the environment called `name`.

    A module that it names is imported: only ever call this with a name that the user has just given.
    """
    own = OWN.fullmatch(name)
    if own is None and ":" in name:
        raise UsageError(f"{name} cannot be imported by its name; pass the function in Python, as env=...")
    if own is None:
        return _registered(name)
    module, attribute = own[1], own[2]
    found = _import(name, module)
    if attribute in gymnasium.registry:
        if module.split(".")[0] != "gymnasium" and _is_gymnasiums(attribute):
            raise UsageError(
                f"{name!r} would run Gymnasium's own {attribute}: importing {module} registers no such id, and its own "
                f"environments are not Gymnasium's; name {attribute} alone, or a function that returns the environment"
            )
        return _registered(attribute)
    make = getattr(found, attribute, None) if attribute.isidentifier() else None
    if not callable(make):
        raise UsageError(
            f"{name!r} is not found: importing {module} registers no id {attribute!r} and the module has no such "
            "function; register it with gymnasium.register, or name a function that returns the environment"
        )
    return make


def _is_gymnasiums(env_id: str) -> bool:
    """Return whether Gymnasium itself registers an id, and it was not replaced since."""
    entry = str(gymnasium.registry[env_id].entry_point)
    return entry.startswith("gymnasium.") and f'id="{env_id}"' in inspect.getsource(gymnasium.envs)


def _import(name: str, module: str) -> object:
    """Import the user's module; raise any error as one line."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: no file there may replace a module of Python or of a package
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise EnvironmentFault(f"{name}: importing {module} failed: {error}; install that module") from error
        raise UsageError(
            f"module {module!r} of {name!r} is not found; run where it can be imported, or install it"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, of a script without `if __name__ == "__main__"`
        raise EnvironmentFault(f"{name}: importing {module} failed: {one_line(error)}; fix the module") from error


def _registered(name: str) -> Make:
    """Return the function that makes the environment of a Gymnasium id."""

    def make(**options: Any) -> Any:
        try:
            return gymnasium.make(name, disable_env_checker=True, **options)
        except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
            raise UsageError(f"unknown Gymnasium id {name!r}: {brief(error, 200)}; `gpi tasks` lists them") from error

    return make
