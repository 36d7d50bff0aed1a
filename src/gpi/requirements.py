"""The packages and versions that gpi's own metadata ask for, and whether they are installed."""

from __future__ import annotations

import importlib.metadata
from email.message import Message
from importlib.metadata import PackageMetadata
from typing import NamedTuple, cast

PACKAGE = "gpi-rl"
TESTED_JAX = ("0.10.2", "0.11.2", "0.12.0.1")
"""The versions of JAX with which all 28 tasks were compared with dm_control, on EnvPool 1.2.5."""


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
    """Return what the metadata of the installed package ask for, on this platform and Python."""
    from packaging import requirements

    found, extras = [], ["", *(facts().get_all("Provides-Extra") or ())]
    for line in facts().get_all("Requires-Dist") or ():
        wanted = requirements.Requirement(line)
        for extra in extras:
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                found.append(Requirement(wanted.name, str(wanted.specifier), extra))
                break
    return found


def pin_of(name: str) -> str:
    """Return the versions of a package that gpi needs, as pip takes them."""
    return next((requirement.versions for requirement in requirements() if requirement.name == name), "")


def satisfies(version: str, wanted: str) -> bool:
    """Return whether a version is among those wanted, as in `<0.3,>=0.2.8`."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted).contains(version, prereleases=True)
