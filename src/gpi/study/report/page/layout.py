"""The parts of a report in their places: a name for each, which charts share a grid, and what the page filters by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from gpi.study.report.blocks import Chart, Report, Section, Table, Tags
from gpi.study.report.text import slugs

Block = Table | Chart


class Placed(NamedTuple):
    """A table or a chart with its place in the page and the name of its files, both safe and unique."""

    id: str
    file: str
    block: Block


class PlacedSection(NamedTuple):
    """A section with its place; each group is one part, or several charts that are drawn small, side by side."""

    id: str
    section: Section
    groups: tuple[tuple[Placed, ...], ...]


def arranged(report: Report) -> list[PlacedSection]:
    """Return the sections of a report with all parts in their places."""
    blocks = [block for section in report.sections for block in section.blocks]
    kinds = [[block.name for block in blocks if isinstance(block, kind)] for kind in (Chart, Table)]
    files = [iter(slugs(names)) for names in kinds]
    ids = slugs([*kinds[0], *kinds[1], *(section.name for section in report.sections)])
    charts, tables = iter(ids), iter(ids[len(kinds[0]) :])
    sections = ids[len(blocks) :]

    def placed(block: Block) -> Placed:
        kind = 0 if isinstance(block, Chart) else 1
        return Placed(next((charts, tables)[kind]), next(files[kind]), block)

    return [
        PlacedSection(name, section, tuple(groups_of([placed(block) for block in section.blocks])))
        for name, section in zip(sections, report.sections, strict=True)
    ]


def groups_of(parts: Sequence[Placed]) -> Iterator[tuple[Placed, ...]]:
    """Yield the parts one by one, but charts of one task each that follow one another with the same axes together."""

    def axes(part: Placed) -> tuple[object, ...]:
        chart = part.block
        if isinstance(chart, Chart) and chart.tags.task and not chart.names:
            return chart.x_label, chart.y_label
        return (id(part),)

    for _, group in groupby(parts, axes):
        yield tuple(group)


def sheets(report: Report) -> Iterator[tuple[str, Section, tuple[Placed, ...]]]:
    """Yield the charts that share a grid, with the section they are in and the name of their common file."""
    found = [(placed.section, group) for placed in arranged(report) for group in placed.groups if len(group) > 1]
    names = slugs([
        *(part.file for placed in arranged(report) for group in placed.groups for part in group),
        *(f"{section.name}-all" for section, _ in found),
    ])  # fmt: skip
    for name, (section, group) in zip(names[len(names) - len(found) :], found, strict=True):
        yield name, section, group


def charts_in(group: Sequence[Placed]) -> tuple[Chart, ...]:
    """Return the charts of a group."""
    return tuple(part.block for part in group if isinstance(part.block, Chart))


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
                yield from block.tags
            else:
                yield from (block.tags, *(line.tags for line in block.lines))


def as_number(text: str) -> tuple[float, str]:
    """Return what sorts numbers by size and puts other words after them."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text
