"""The commands about environments: check and tasks."""

from __future__ import annotations

import argparse
import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gpi.config import require_positive
from gpi.envs import dmc, envpool, tasks
from gpi.errors import UsageError
from gpi.terminal import counted

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs


def add_check(verbs: Verbs) -> None:
    """Add `gpi check`."""
    verb = verbs.add_parser(
        "check", help="find the faults of an environment before training in it",
        description="Play a few episodes with random actions and hold the environment to Gymnasium's contract. The "
        "first problem is one line with the environment, the step and a remedy; the exit code is 6.",
    )  # fmt: skip
    verb.add_argument("task", metavar="ENV", help="cheetah-run, Pendulum-v1, my_module:MyEnv-v0, my_module:make_env")
    verb.add_argument(
        "--allow-images", action="store_true", help="accept image observations, which `gpi train` flattens"
    )
    verb.add_argument(
        "--steps", type=int, metavar="N",
        help="steps to take; by default 1,000, or two whole episodes where these are longer",
    )  # fmt: skip
    verb.add_argument("--backend", choices=tasks.BACKENDS, default="auto", help="what simulates it; see `gpi train`")
    verb.set_defaults(run=run_check)


def run_check(parsed: argparse.Namespace) -> int:
    """Check an environment, and say what the agent will see and do."""
    from gpi.envs.checks import EPISODES, STEPS, Effort, check

    if parsed.steps is not None:
        require_positive(steps=parsed.steps)
    if tasks.falls_back(parsed.task, parsed.backend):
        print("note: EnvPool is not installed here: Gymnasium runs it")
    with counted("steps", parsed.steps or STEPS) as show:
        effort = Effort(parsed.steps or STEPS, 0 if parsed.steps else EPISODES, show=show)
        found = check(tasks.find(parsed.task, parsed.backend), None, effort, allow_images=parsed.allow_images)
    spec = found.spec
    kind = "discrete" if spec.discrete else "continuous"
    doing = f"{spec.action_size} {kind} action{'s' * (spec.action_size > 1)}"
    played = f"{found.steps:,} steps and {found.episodes:,} episodes"
    cut = f"not checked to the end: {effort.minutes:g} minutes were enough for {played} only, without a problem"
    print(f"{spec.id}: {f'no problem in {played}' if found.whole else cut}")
    print(f"the agent sees {spec.observation_size} numbers and has {doing}")
    for note in found.notes.values():
        print(f"note: {note}")
    print(f"one environment alone: {found.speed:,.0f} steps/s")
    return 0


def add_tasks(verbs: Verbs) -> None:
    """Add `gpi tasks`."""
    verb = verbs.add_parser(
        "tasks", help="list the tasks on EnvPool; any other Gymnasium id works too",
        description="List the 28 DeepMind Control tasks with the numbers that an agent sees and does, and Gymnasium's "
        "ids that EnvPool simulates. Any other registered Gymnasium id can be trained in too, and your own.",
    )  # fmt: skip
    verb.add_argument("--json", action="store_true", help="print a JSON list")
    verb.add_argument(
        "--all", nargs="?", const="", metavar="PATTERN",
        help="list every id of EnvPool with its sizes, or why it cannot be trained in; PATTERN is part of the id",
    )  # fmt: skip
    verb.set_defaults(run=run_tasks)


def run_tasks(parsed: argparse.Namespace) -> int:
    """List the tasks."""
    if parsed.all is not None:
        return list_all(parsed.all.lower(), as_json=parsed.json)
    rows = [spec._asdict() for spec in dmc.TASKS.values()]
    if parsed.json:
        print(json.dumps([{name: row[name] for name in ("id", "observation_size", "action_size")} for row in rows]))
        return 0
    print(f"{'task':<28} observations  actions")
    for row in rows:
        print(f"{row['id']:<28} {row['observation_size']:>12d}  {row['action_size']:>7d}")
    print(f"\nalso on EnvPool, from Gymnasium: {', '.join(envpool.GYMNASIUM)}")
    print("more of EnvPool's own ids: `gpi tasks --all`")
    print("any other Gymnasium id, and your own: my_module:MyEnv-v0 or my_module:make_env, checked by `gpi check`")
    return 0


def list_all(pattern: str, *, as_json: bool) -> int:
    """List EnvPool's ids, line by line as they are read: some thousand take a while."""
    names = [name for name in envpool.ids() if fnmatchcase(name.lower(), f"*{pattern}*")]
    if not names:
        raise UsageError(f"no id of EnvPool matches {pattern!r}; `gpi tasks --all` lists them")
    width = max(map(len, names))
    for name in names:
        try:
            spec = envpool.find_spec(name)
        except UsageError as error:
            print(json.dumps({"id": name, "refused": str(error)}) if as_json else f"{name:<{width}}  refused: {error}")
            continue
        row = {"id": name, "observation_size": spec.observation_size, "action_size": spec.action_size}
        sizes = f"{spec.observation_size:>6d} numbers  {spec.action_size:>4d} {spec.kind} actions"
        print(json.dumps(row) if as_json else f"{name:<{width}}  {sizes}")
    return 0
