"""The packages and versions that gpi's own metadata ask for, and whether they are installed."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from email.message import Message
from importlib.metadata import PackageMetadata
from typing import NamedTuple, cast

PACKAGE = "gpi-rl"


class Requirement(NamedTuple):
    """A package that the metadata of gpi-rl ask for, and the versions that will do."""

    name: str
    versions: str
    extra: str  # empty: it is needed always

    def installed(self) -> str:
        """Return the version that is installed, or nothing."""
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return ""

    def met(self) -> bool:
        """Return whether a version is installed that will do."""
        return bool(self.installed()) and satisfies(self.installed(), self.versions)


def facts() -> PackageMetadata:
    """Return the metadata of gpi-rl as it was installed; empty if it was not."""
    try:
        return importlib.metadata.metadata(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return cast("PackageMetadata", Message())


def requirements() -> list[Requirement]:
    """Return what the metadata of the installed package ask for on this platform."""
    found = []
    for line in facts().get_all("Requires-Dist") or ():
        wanted, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", wanted)
        on = re.search(r"sys_platform == ['\"](\w+)['\"]", marker)
        for_extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if name and (on is None or on[1] == sys.platform):
            versions = re.sub(r"\[.*?\]|\s", "", wanted[name.end() :])
            found.append(Requirement(name[0], versions, for_extra[1] if for_extra else ""))
    return found


def pin_of(name: str) -> str:
    """Return the versions of a package that gpi needs, as pip takes them."""
    return next((requirement.versions for requirement in requirements() if requirement.name == name), "")


def satisfies(version: str, wanted: str) -> bool:
    """Return whether a version is among those wanted, as in `<0.3,>=0.2.8`."""
    have = numbers(version)
    for condition in filter(None, wanted.split(",")):
        operator, text = re.match(r"[<>=!~]*", condition)[0], condition.lstrip("<>=!~")  # type: ignore[index]
        want = numbers(text)
        order = (have > want) - (have < want)
        if not {"==": order == 0, ">=": order >= 0, "<=": order <= 0, "<": order < 0, ">": order > 0,
                "!=": order != 0, "~=": order >= 0}.get(operator, True):  # fmt: skip
            return False
    return True


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers a version begins with, padded to four: 1.4 is 1.4.0."""
    found = [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]  # type: ignore[index]
    return tuple([*found, 0, 0, 0, 0][:4])
