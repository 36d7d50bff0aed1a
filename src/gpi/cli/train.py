"""The commands that train: train and resume."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpi.api import with_tensorboard
from gpi.cli.parsing import ENV, EXAMPLES, EXIT_CODES, units, whole
from gpi.config import GROUPS, Config
from gpi.rundir.run import CURVE, FINAL_STEPS, Run

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs

TENSORBOARD = "also write TensorBoard events, into tb/ of the run directory"


def add_train(verbs: Verbs) -> None:
    """Add `gpi train`, with one option per field of Config."""
    verb = verbs.add_parser(
        "train", help="train a population of seeds on one task", epilog=f"{EXAMPLES}\n{EXIT_CODES}",
        description="Train a population of seeds on one task. Defaults are the paper's settings.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    kinds = typing.get_type_hints(Config)
    groups = {name: verb.add_argument_group(name) for name in GROUPS}
    for field in dataclasses.fields(Config):
        add_setting(groups[field.metadata["group"]], field, kinds[field.name])
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    groups["run"].add_argument("--step", dest="steps", type=whole, **hidden)  # else short for --step-timeout as well
    groups["run"].add_argument("--out", type=Path, metavar="DIR", help="run directory (default: a new one in runs/)")
    groups["run"].add_argument("--tensorboard", action="store_true", help=TENSORBOARD)
    verb.set_defaults(run=run_train)


def add_setting(group: argparse._ArgumentGroup, field: dataclasses.Field[Any], kind: Any) -> None:
    """Add one field of Config as an option; the field without default is positional."""
    text = field.metadata["help"].replace("%", "%%")
    if field.default is dataclasses.MISSING:
        group.add_argument(field.name, metavar=field.name.upper(), help=text)
        return
    option = "--" + field.name.replace("_", "-")
    shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    text = text if shown is None else f"{text} (default: {shown})"
    if kind in (bool, bool | None):
        group.add_argument(option, default=field.default, action=argparse.BooleanOptionalAction, help=text)
        return
    kind = units if isinstance(kind, types.GenericAlias) else whole if kind is int else kind
    group.add_argument(option, dest=field.name, default=field.default, type=kind, metavar=field.name.upper(), help=text)


def run_train(parsed: argparse.Namespace) -> int:
    """Train, then say where everything is."""
    from gpi.training.train import UserCode, train  # only training needs all of gpi

    config = Config(**{field.name: getattr(parsed, field.name) for field in dataclasses.fields(Config)})
    user = UserCode(callbacks=with_tensorboard((), parsed.tensorboard))
    typed = [field.name for field in dataclasses.fields(Config) if getattr(parsed, field.name) != field.default]
    return closing(*train(config, parsed.out, user, typed=typed))


def closing(run: Run, signal: int | None) -> int:
    """Say how a run ended and where it is; return the exit code."""
    returns = ", ".join(f"seed {seed}: {value:.1f}" for seed, value in run.returns.items())
    print(f"final return (mean over the last {FINAL_STEPS:,} steps): {returns}")
    if (run.dir / CURVE).exists():
        print(f"learning curve: {run.dir / CURVE}")
    if signal is not None:
        task = run.config["task"]
        own = f" --env {task}" if ":" in task else ""
        print(f"interrupted and saved: `gpi resume {run.dir}{own}` continues")
        return 128 + signal
    return 0


def add_resume(verbs: Verbs) -> None:
    """Add `gpi resume`."""
    verb = verbs.add_parser(
        "resume", help="continue an interrupted run exactly, or extend a finished one",
        description="Continue a run, bit for bit, as if it had never been interrupted, from its newest valid "
        "checkpoint; without one, from the beginning.",
        epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verb.add_argument("run_dir", type=Path, metavar="DIR", help="run directory")
    verb.add_argument(
        "--steps", type=whole, help="environment steps per agent in all (default: as the run was started)"
    )
    verb.add_argument(
        "--allow-drift", action="store_true",
        help="continue although versions, threads or layout changed; the run is then marked as no longer exact",
    )  # fmt: skip
    verb.add_argument("--env", default="", help=ENV)
    verb.add_argument("--tensorboard", action="store_true", help=TENSORBOARD)
    verb.set_defaults(run=run_resume)


def run_resume(parsed: argparse.Namespace) -> int:
    """Resume, then say where everything is."""
    from gpi.training.train import UserCode, resume

    user = UserCode(callbacks=with_tensorboard((), parsed.tensorboard))
    return closing(*resume(parsed.run_dir, parsed.steps, user, env=parsed.env, allow_drift=parsed.allow_drift))
