"""The commands about environments: check and tasks."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gpi.envs import dmc, envpool, tasks

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
    verb.set_defaults(run=run_check)


def run_check(parsed: argparse.Namespace) -> int:
    """Check an environment, and say what the agent will see and do."""
    from gpi.envs.checks import check

    if tasks.falls_back(parsed.task, "auto"):
        print("note: EnvPool is not installed here: Gymnasium runs it")
    found = check(tasks.find(parsed.task), allow_images=parsed.allow_images)
    spec = found.spec
    kind = "discrete" if spec.discrete else "continuous"
    doing = f"{spec.action_size} {kind} action{'s' * (spec.action_size > 1)}"
    print(f"{spec.id}: no problem in {found.steps:,} steps and {found.episodes:,} episodes")
    print(f"the agent sees {spec.observation_size} numbers and has {doing}")
    for note in found.notes:
        print(f"note: {note}")
    return 0


def add_tasks(verbs: Verbs) -> None:
    """Add `gpi tasks`."""
    verb = verbs.add_parser(
        "tasks", help="list the tasks on EnvPool; any other Gymnasium id works too",
        description="List the 28 DeepMind Control tasks with the numbers that an agent sees and does, and Gymnasium's "
        "ids that EnvPool simulates. Any other registered Gymnasium id can be trained in too, and your own.",
    )  # fmt: skip
    verb.add_argument("--json", action="store_true", help="print a JSON list")
    verb.set_defaults(run=run_tasks)


def run_tasks(parsed: argparse.Namespace) -> int:
    """List the tasks."""
    rows = [spec._asdict() for spec in dmc.TASKS.values()]
    if parsed.json:
        print(json.dumps([{name: row[name] for name in ("id", "observation_size", "action_size")} for row in rows]))
        return 0
    print(f"{'task':<28} observations  actions")
    for row in rows:
        print(f"{row['id']:<28} {row['observation_size']:>12d}  {row['action_size']:>7d}")
    print(f"\nalso on EnvPool, from Gymnasium: {', '.join(envpool.GYMNASIUM)}")
    print("any other Gymnasium id, and your own: my_module:MyEnv-v0 or my_module:make_env, checked by `gpi check`")
    return 0
