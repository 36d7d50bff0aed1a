"""What a setting is: its default, its help, and its rules, in the one line of `Config` that declares it.

Its type says how it is read: `KINDS` has the types, for Python, files and the command line alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from gpi.errors import UsageError


class Kind(NamedTuple):
    """A type of settings."""

    words: str  # what it must be, in errors
    convert: Callable[[Any], Any]  # from Python or a file; raises where that is impossible
    parse: Callable[[str], Any] = str  # from the command line; raises ValueError
    form: str = ""  # the words of that error
    metavar: str = ""


class Rule(NamedTuple):
    """What the value of a setting must be."""

    holds: Callable[[Any], bool]
    words: str
    remedy: str
    new: bool = False  # whether it binds new runs only, so that older ones may be resumed


def number_of(kind: type[int] | type[float]) -> Callable[[Any], Any]:
    """Return what converts numbers of any library to int or float."""

    def convert(value: Any) -> Any:
        number = kind(value)
        if type(value) in (str, bool) or (kind is int and number != value):
            raise ValueError
        return number

    return convert


def tuple_of(kind: type[int] | type[float]) -> Callable[[Any], Any]:
    """Return what converts a list, tuple or array of numbers."""

    def convert(value: Any) -> Any:
        if type(value) is str or any(type(x) in (str, bool) for x in value if kind is float):
            raise ValueError
        if kind is int and any(int(x) != x for x in value):
            raise ValueError
        return tuple(kind(x) for x in value)

    return convert


def one_of_types(*types: type) -> Callable[[Any], Any]:
    """Return what passes on values of these types."""

    def convert(value: Any) -> Any:
        if type(value) not in types:
            raise ValueError
        return bool(value) if type(value) is np.bool_ else value

    return convert


def whole(text: str) -> int:
    """Read a whole number, which may be written as 1e6 or 1_000_000."""
    number = float(text)
    if not number.is_integer():  # infinity and NaN are not either
        raise ValueError
    return int(number)


def parts_of(kind: type[int] | type[float]) -> Callable[[str], Any]:
    """Return what reads numbers with commas between them."""
    return lambda text: tuple(kind(part) for part in text.split(","))


KINDS: dict[Any, Kind] = {
    int: Kind(
        "a whole number, such as 1000", number_of(int), whole, "must be a whole number, e.g. 1000000 or 1e6", "N"
    ),
    float: Kind("a number, such as 0.5", number_of(float), float, metavar="X"),
    str: Kind("text, such as 'geppo'", one_of_types(str)),
    bool: Kind("true or false", one_of_types(bool, np.bool_)),
    bool | None: Kind("true or false", one_of_types(bool, type(None))),
    tuple[int, ...]: Kind(
        "a list of whole numbers, such as [64, 64]", tuple_of(int), parts_of(int),
        "must be whole numbers with commas between them, one per layer, e.g. 64,64", "N,N",
    ),
    tuple[float, ...]: Kind(
        "a list of numbers, such as [0, 1000]", tuple_of(float), parts_of(float),
        "must be two numbers with a comma between them, e.g. -2000,0", "LOW,HIGH",
    ),
}  # fmt: skip
"""The types that settings have. A new one needs a line here."""


def checked_type(name: str, value: Any, kind: Any) -> Any:
    """Return one setting converted to its type; raise UsageError if that is impossible."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return KINDS[kind].convert(value)
    raise UsageError(f"{name} = {str(value)[:80]!r} must be {KINDS[kind].words}", name)


def setting(
    default: Any, help: str, group: str, *rules: Rule, choices: Iterable[str] = (), later: bool = False,
    compiled: bool = False,
) -> Any:  # fmt: skip
    """Return a field of Config.

    Args:
        default: What earlier versions did.
        help: The sentence that explains it in `--help`.
        group: The group it is shown in there.
        rules: What its value must be, for errors.
        choices: What its value may be, for `--help`.
        later: Whether files of earlier versions lack it: their hashes stay valid where it has its default.
        compiled: Whether it shapes the compiled program, or else is an argument of it, or outside.
    """
    facts = {"help": help, "group": group, "rules": rules, "choices": choices, "later": later, "compiled": compiled}
    return dataclasses.field(default=default, metadata=facts)


def at_least(least: int) -> Rule:
    """Return the rule of a number that counts something."""
    if least == 0:
        return Rule(lambda x: x >= 0, "must be 0 or more", "leave it out")
    return Rule(lambda x: x >= least, f"must be at least {least}", f"use {least} or more")


def at_most(most: float) -> Rule:
    """Return the rule of a number beyond which a new run would not compile, not end or not be finite."""
    return Rule(lambda x: x <= most, f"must be at most {most:,}", "use less", new=True)


def positive(remedy: str = "leave it out for the default") -> Rule:
    """Return the rule of a number that scales something."""
    return Rule(lambda x: 0.0 < x < math.inf, "must be positive and finite", remedy)


def one_of(choices: Collection[str], remedy: str, *others: str) -> Rule:
    """Return the rule of a name: one of a table, to which names may be added later, or of the others."""
    words = f"must be one of {', '.join((*others, *choices))}"
    return Rule(lambda x: x in choices or x in others, words, remedy)
