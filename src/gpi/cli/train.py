"""The commands that train: train and resume."""

from __future__ import annotations

import argparse
import dataclasses
import math
import textwrap
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpi.api import with_tensorboard
from gpi.cli.output import tell
from gpi.cli.parsing import ENV, Help, reader, whole
from gpi.config import FIRST, GROUPS, PRESETS, Config, kinds
from gpi.config_file import NO_FILE, combined, read_settings
from gpi.rundir.evaluations import best_mean
from gpi.rundir.run import CURVE, Run, window_in_words
from gpi.setting import KINDS

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs

TENSORBOARD = "also write TensorBoard events, into tb/ of the run directory; `tensorboard --logdir runs` shows them"
DESCRIPTION = """Train a population of seeds on one task, and write a run directory.

Every setting has the paper's value unless you change it. Change first: TASK, --algorithm, --steps and --seeds; \
then --kappa, if updates should be larger or use more data. `gpi train --help all` shows the other settings as well.
"""
ABOUT = {
    "task": "what to train in",
    "algorithm": "how the policy improves, and how far one update may go",
    "reuse": "how much data of earlier policies the algorithms geppo, getrpo and gevmpo use",
    "run": "how long, how many agents, and which files it writes",
    "environments": "how environments are treated; seldom changed: see --help all",
    "optimisation": "networks and steps of the optimiser; seldom changed: see --help all",
    "machine": "what the run may use of this machine: see --help all",
}
DEVICE = "has no option for devices; type JAX_PLATFORMS=cpu, or cuda, before gpi"
HINTS = {
    "--device": DEVICE, "--gpu": DEVICE, "--cuda": DEVICE,
    "--wandb": "has no option for that; use --tensorboard, or a callback in Python",
    "--mlflow": "has no option for that; use --tensorboard, or a callback in Python",
    "--lr-schedule": "needs no schedule: the learning rate follows the trust region; --lr is where it begins",
}  # fmt: skip
"""What to say about options that other libraries have."""


def add_train(verbs: Verbs) -> None:
    """Add `gpi train`, with one option per field of Config."""
    verb = verbs.add_parser(
        "train", help="train a population of seeds on one task", description=DESCRIPTION,
        usage="gpi train TASK [options]\n       gpi train --config FILE [options]", add_help=False,
    )  # fmt: skip
    verb.add_argument("-h", "--help", action=Help, nargs="?", metavar="all", help="show this help, with all settings")
    types = typing.get_type_hints(Config)
    groups = {name: verb.add_argument_group(name, ABOUT.get(name)) for name in GROUPS}
    for field in dataclasses.fields(Config):
        action = add_setting(groups[field.metadata["group"]], field, types[field.name])
        if field.metadata["group"] not in FIRST:
            verb.hide(action)
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    groups["run"].add_argument("--step", dest="steps", type=whole, **hidden)  # else short for --step-timeout as well
    groups["run"].add_argument("--out", type=Path, metavar="DIR", help="run directory (default: a new one in runs/)")
    groups["run"].add_argument(
        "--config", type=Path, metavar="FILE",
        help="settings from a .toml file, or from a run directory to repeat it; typed options override it",
    )  # fmt: skip
    groups["algorithm"].add_argument(
        "--preset", default=argparse.SUPPRESS, metavar=f"{{{','.join(PRESETS)}}}", help="paper: the paper's value of "
        "every setting that neither a file nor an option gives, even if later versions change the defaults",
    )  # fmt: skip
    groups["run"].add_argument("--tensorboard", action="store_true", help=TENSORBOARD)
    verb.hints |= {name: f"gpi train {hint}" for name, hint in HINTS.items()}
    verb.set_defaults(run=run_train)


def add_setting(group: argparse._ArgumentGroup, field: dataclasses.Field[Any], kind: Any) -> argparse.Action:
    """Add one field of Config as an option, and return it; the field without default is positional.

    A setting that is not typed stays out of the parsed arguments: a file of settings may give it.
    """
    text = field.metadata["help"].replace("%", "%%")
    if field.default is dataclasses.MISSING:
        return group.add_argument(
            field.name, nargs="?", default=argparse.SUPPRESS, metavar=field.name.upper(), help=text
        )
    option = "--" + field.name.replace("_", "-")
    if isinstance(kind, types.UnionType):  # bool | None
        [kind] = set(typing.get_args(kind)) - {type(None)}
    text += default_shown(field.default)
    if kind is bool:
        return group.add_argument(option, default=argparse.SUPPRESS, action=argparse.BooleanOptionalAction, help=text)
    choices = field.metadata["choices"]
    metavar = f"{{{','.join(choices)}}}" if choices else KINDS[kind].metavar or field.name.upper()
    return group.add_argument(
        option, dest=field.name, default=argparse.SUPPRESS, type=reader(kind), metavar=metavar, help=text
    )


def default_shown(default: object) -> str:
    """Return the words of help that say a setting's default."""
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return f" (default: {'on' if default else 'off'})"
    return f" (default: {','.join(map(str, default)) if isinstance(default, tuple) else default})"


def typed_settings(parsed: argparse.Namespace) -> dict[str, object]:
    """Return the settings that the user typed, and no others."""
    return {name: getattr(parsed, name) for name in kinds() if name in parsed}


def run_train(parsed: argparse.Namespace) -> int:
    """Train, then say where everything is."""
    from gpi.training.train import UserCode, train  # only training needs all of gpi

    typed = typed_settings(parsed)
    file = read_settings(parsed.config) if parsed.config else NO_FILE
    with file.blamed(typed):
        config = combined(file, typed)
        user = UserCode(callbacks=with_tensorboard((), parsed.tensorboard))
        return closing(*train(config, parsed.out, user, typed=typed))


def closing(run: Run, signal: int | None) -> int:
    """Say how a run ended and where it is; return the exit code."""
    known = {seed: x for seed, x in run.returns.items() if not math.isnan(x)}
    over = f"  (mean of the episodes in the {window_in_words(max(run.steps.values()))})"
    tell(*([*numbers("final return", known), over] if known else ["no episode has ended yet"]))
    best = {seed: mean for seed in run.seeds if (mean := best_mean(run.dir, seed)) > -math.inf}
    if best:
        tell(*numbers("best evaluation", best), f"  (`gpi eval {run.dir} --policy best` plays new episodes)")
    if (run.dir / CURVE).exists():
        tell(f"learning curve: {run.dir / CURVE}")
    if signal is not None:
        task = run.config["task"]
        own = f" --env {task}" if ":" in task else ""
        tell(f"interrupted and saved: `gpi resume {run.dir}{own}` continues")
        return 128 + signal
    return 0


def numbers(what: str, values: dict[int, float]) -> list[str]:
    """Return a number of each seed in lines that fit a terminal; none is broken over two."""
    parts = [f"seed\N{NO-BREAK SPACE}{seed}:\N{NO-BREAK SPACE}{value:.1f}" for seed, value in values.items()]
    lines = textwrap.wrap(f"{what}: {', '.join(parts)}", 79, subsequent_indent="  ", break_long_words=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def add_resume(verbs: Verbs) -> None:
    """Add `gpi resume`."""
    verb = verbs.add_parser(
        "resume", help="continue an interrupted run exactly, or extend a finished one",
        description="Continue a run, bit for bit, as if it had never been interrupted, from its newest valid "
        "checkpoint; without one, from the beginning.",
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
    for name in (name.replace("_", "-") for name in kinds() if name != "steps"):
        new = f"train a new run: `gpi train --config DIR --{name} ...`"
        verb.hints[f"--{name}"] = f"--{name} cannot be changed by gpi resume, which keeps the settings of a run; {new}"
    verb.set_defaults(run=run_resume)


def run_resume(parsed: argparse.Namespace) -> int:
    """Resume, then say where everything is."""
    from gpi.training.train import UserCode, resume

    user = UserCode(callbacks=with_tensorboard((), parsed.tensorboard))
    return closing(*resume(parsed.run_dir, parsed.steps, user, env=parsed.env, allow_drift=parsed.allow_drift))
