"""Which arms are compared: each generalized one with its on-policy counterpart, controls, or all with the first."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from gpi.config import Config
from gpi.core.plan import ALGORITHMS
from gpi.study.results import key_of
from gpi.study.sections.words import Material

Scores = dict[str, np.ndarray]


class Pair(NamedTuple):
    """An arm, another to compare it with, and the tasks that both have."""

    arm: str
    other: str
    tasks: tuple[str, ...]

    def scores(self, material: Material) -> tuple[Scores, Scores]:
        """Return the final performance of both on these tasks."""
        first, second = ({task: material.finals[arm][task] for task in self.tasks} for arm in (self.arm, self.other))
        return first, second


def pair_of(material: Material, arm: str, other: str) -> Pair | None:
    """Return two arms as a pair; None if they have no task in common."""
    both = [task for task in material.results.tasks if all(task in material.finals.get(x, {}) for x in (arm, other))]
    return Pair(arm, other, tuple(both)) if both else None


def settings_of(config: Config, **changed: object) -> tuple[str, int]:
    """Return the key of an arm, the same for every task, with some settings changed; and its steps."""
    return key_of(dataclasses.replace(config, task="any", **changed)), config.steps  # type: ignore[arg-type]


def counterpart(material: Material, arm: str) -> str | None:
    """Return the on-policy arm of the same rule and otherwise the same settings; None if there is none."""
    config = material.results.arms[arm]
    rule = ALGORITHMS[config.algorithm].rule
    simple = [name for name, parts in ALGORITHMS.items() if parts.rule == rule and not parts.reuses]
    for name in simple:
        wanted = settings_of(config, algorithm=name)
        for other, of in material.results.arms.items():
            if not of.reuses and settings_of(of) == wanted:
                return other
    return None


def pairs_of(material: Material) -> list[Pair]:
    """Return every generalized arm with its on-policy counterpart; without any, all arms with one that is not."""
    arms = [arm for arm in material.results.arms if arm in material.finals]
    both = [(arm, counterpart(material, arm)) for arm in arms if material.results.arms[arm].reuses]
    found = [pair_of(material, arm, other) for arm, other in both if other]
    if not found:
        first = next((arm for arm in arms if not material.results.arms[arm].reuses), arms[0] if arms else "")
        found = [pair_of(material, arm, first) for arm in arms if arm != first]
    return [pair for pair in found if pair]


def controls_of(material: Material) -> list[Pair]:
    """Return every control with the plain on-policy arm of its algorithm, and the plain generalized arms with it.

    A control is an on-policy arm with other settings than the default, where the default is there too.
    """
    arms = [arm for arm in material.results.arms if arm in material.finals]
    found = []
    for control in arms:
        config = material.results.arms[control]
        if config.reuses or control == config.algorithm or config.algorithm not in arms:
            continue
        rule = ALGORITHMS[config.algorithm].rule
        found.append(pair_of(material, control, config.algorithm))
        for arm in arms:
            other = material.results.arms[arm]
            if other.reuses and ALGORITHMS[other.algorithm].rule == rule and arm.count("-") == 1:
                found.append(pair_of(material, arm, control))
    return [pair for pair in found if pair]
