"""Facets: the tasks, algorithms and kappas that a report is about, and the marks by which the page filters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpi.report.blocks import Report, Table, Tags


class Facets(NamedTuple):
    """The values that each tag takes in a report: tasks and kappas sorted, algorithms as they appear."""

    task: tuple[str, ...]
    algorithm: tuple[str, ...]
    kappa: tuple[str, ...]

    def mark(self, tags: Tags) -> str:
        """Return the attribute that marks an element with tags, with a leading space; an empty string without tags."""
        places = [
            str(values.index(value)) if value in values else "-" for values, value in zip(self, tags, strict=True)
        ]
        return "" if set(places) == {"-"} else f' data-f="{" ".join(places)}"'


def facets_of(report: Report) -> Facets:
    """Return the facets of a report."""
    tags = list(tags_of(report))
    tasks, algorithms, kappas = (tuple(dict.fromkeys(one[place] for one in tags if one[place])) for place in range(3))
    return Facets(tuple(sorted(tasks)), algorithms, tuple(sorted(kappas, key=as_number)))


def tags_of(report: Report) -> Iterable[Tags]:
    """Yield the tags of everything in a report."""
    for section in report.sections:
        for block in section.blocks:
            if isinstance(block, Table):
                yield from (*block.tags, *block.column_tags)
            else:
                yield from (block.tags, *block.name_tags, *(line.tags for line in block.lines))


def as_number(text: str) -> tuple[float, str]:
    """Return what sorts numbers by size and puts other words after them."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text
