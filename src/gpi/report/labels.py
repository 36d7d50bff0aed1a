"""Names that tell runs apart, in the fewest words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from gpi.config import Config, config_of, idle_settings
from gpi.envs import dmc
from gpi.errors import UsageError
from gpi.rundir.run import Run

# What a run is for comes first; how it was run matters where nothing else tells two apart.
DECISIVE = ("seed", "steps")
SECONDARY = {
    field.name for field in dataclasses.fields(Config) if field.metadata["group"] in ("run", "machine")
} - set(DECISIVE)  # fmt: skip
DEFAULTS = {
    field.name: field.default for field in dataclasses.fields(Config) if field.name not in ("task", "algorithm")
}
ALL = Config.__dataclass_fields__.keys()

MANY = 2  # settings in a label; where more differ, those at their default go without saying


def short_task(run: Run) -> str:
    """Return the short name of a run's task."""
    return dmc.short_name(run.config["task"])


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a label for each run that tells it from the others on its task.

    It is the algorithm and the settings that differ, but for those that this run does not read; runs with the same
    settings have their directories' names.
    """
    settings = [settings_of(run) for run in runs]
    kinds = [(short_task(run), run.config["algorithm"]) for run in runs]
    words = []
    for i, kind in enumerate(kinds):
        rivals = [(kinds[j], settings[j]) for j in range(len(runs)) if kinds[j][0] == kind[0]]
        idle = idle_settings(config_of({name: runs[i].config[name] for name in ALL & runs[i].config.keys()}))
        first = differing(settings[i], [other for _, other in rivals], set(DEFAULTS) - SECONDARY - set(idle))
        twins = [x for other, x in rivals if other == kind and all(x[name] == settings[i][name] for name in first)]
        names = first + differing(settings[i], twins, SECONDARY)
        if len(names) > MANY:
            names = [name for name in names if settings[i][name] != shown(DEFAULTS[name])]
        words.append(" ".join([kind[1], *(f"{name}={settings[i][name]}" for name in names)]))
    taken = [(kind[0], word) for kind, word in zip(kinds, words, strict=True)]
    ends = tails([run.dir for run in runs])
    return [f"{words[i]}, {ends[i]}" if taken.count(taken[i]) > 1 else words[i] for i in range(len(runs))]


def differing(mine: dict[str, str], others: Sequence[dict[str, str]], among: set[str]) -> list[str]:
    """Return the settings in which some of the others differ from mine, in the order of Config."""
    return [name for name in mine if name in among and any(other[name] != mine[name] for other in others)]


def settings_of(run: Run) -> dict[str, str]:
    """Return a run's settings as text; one that an old file lacks has its default."""
    config = run.config
    return {name: shown(config.get(name, default)) for name, default in DEFAULTS.items()}


def shown(value: object) -> str:
    """Return a setting's value as one would type it."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def tails(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell them apart."""
    parts = [path.absolute().parts for path in paths]
    length = 1
    while len({part[-length:] for part in parts}) < len(set(parts)):
        length += 1
    return ["/".join(part[-length:]) for part in parts]


def without_repeats(runs: Sequence[Run], names: Sequence[str] = ()) -> tuple[list[Run], list[str]]:
    """Return the runs with each directory once, and a label for each: the given ones, or those that tell them apart."""
    if names and len(names) != len(runs):
        raise UsageError(
            f"{len(runs)} runs need as many labels, found {len(names)}; give one --label per run, in the same order"
        )
    kept = {run.dir.resolve(): i for i, run in reversed(list(enumerate(runs)))}  # the first of each
    chosen = [runs[i] for i in sorted(kept.values())]
    return chosen, [names[i] for i in sorted(kept.values())] if names else labels(chosen)
