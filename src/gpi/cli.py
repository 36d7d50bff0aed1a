"""The command line. It only parses and prints: every command calls a function that anyone can call."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpi.api import with_tensorboard
from gpi.cli_policies import add_eval, add_export, add_record
from gpi.cli_types import ENV, Parser, units, whole
from gpi.config import Config
from gpi.envs import dmc, envpool, tasks
from gpi.errors import EnvironmentFault, GpiError, UsageError
from gpi.report.audit import AuditSummary, percent, summarise
from gpi.rundir.run import CURVE, FINAL_STEPS, Run, open_run
from gpi.theory.mixture import Mixture, mixture

if TYPE_CHECKING:
    from gpi.cli_types import Verbs

EXIT_CODES = """exit codes:
  0 done (also with some seeds frozen: see the last lines and DONE)   1 a bug in gpi   2 bad input
  3 damaged or foreign file, or a run that cannot be resumed exactly  4 run directory in use
  5 disk full or not writable   6 the environment broke its contract  7 every seed diverged
  130, 143 interrupted or terminated, everything saved: `gpi resume DIR` continues
"""
TENSORBOARD = "also write TensorBoard events, into tb/ of the run directory"
EXAMPLES = """examples:
  gpi train cheetah-run --algorithm geppo --seeds 5
  gpi train finger-spin --algorithm getrpo --kappa 0.5 --steps 300000 --out runs/spin
  gpi train Pendulum-v1 --steps 200000
  gpi check my_module:MyEnv-v0
  gpi train my_module:MyEnv-v0 --num-envs 4 --backend processes
  gpi resume runs/spin
  gpi eval runs/spin --episodes 100
  gpi record runs/spin --out spin.mp4
  gpi export runs/spin --format onnx
  gpi plot runs/a runs/b
  gpi audit runs/a runs/b --out audit.png
  gpi mixture --B 2 --kappa 0.5 --json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parsed = parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except GpiError as error:
        print(f"gpi: {error}{save_traceback(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # training has its own way to end
        print("gpi: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def save_traceback(error: GpiError) -> str:
    """Save the traceback of a user's environment, unless a run directory has it; return words that say where."""
    if not isinstance(error, EnvironmentFault) or "(traceback: " in str(error):
        return ""
    from gpi.envs.faults import traceback_of

    text = traceback_of(error)
    if text is None:
        return ""
    fd, path = tempfile.mkstemp(prefix="gpi-environment-error-", suffix=".txt")
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return f" (traceback: {path})"


def parser() -> Parser:
    """Return the parser of all commands and their options."""
    formatter = argparse.RawDescriptionHelpFormatter
    top = Parser(
        prog="gpi",
        description="Generalized Policy Improvement: train controllers from few samples, reusing data safely.",
        epilog=f"{EXAMPLES}\n{EXIT_CODES}",
        formatter_class=formatter,
    )
    verbs = top.add_subparsers(required=True, metavar="COMMAND")
    add_train(verbs)
    add_resume(verbs)
    add_check(verbs)
    add_eval(verbs)
    add_record(verbs)
    add_export(verbs)
    add_plot(verbs)
    add_audit(verbs)
    add_mixture(verbs)
    add_tasks(verbs)
    return top


def add_train(verbs: Verbs) -> None:
    """Add `gpi train`, with one option per field of Config."""
    verb = verbs.add_parser(
        "train", help="train a population of seeds on one task", epilog=f"{EXAMPLES}\n{EXIT_CODES}",
        description="Train a population of seeds on one task. Defaults are the paper's settings.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    kinds = typing.get_type_hints(Config)
    for field in dataclasses.fields(Config):
        add_setting(verb, field, kinds[field.name])
    verb.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: a new one under runs/)")
    verb.add_argument("--tensorboard", action="store_true", help=TENSORBOARD)
    verb.set_defaults(run=run_train)


def add_setting(verb: argparse.ArgumentParser, field: dataclasses.Field[Any], kind: Any) -> None:
    """Add one field of Config as an option; the field without default is positional."""
    text = field.metadata["help"].replace("%", "%%")
    if field.default is dataclasses.MISSING:
        verb.add_argument(field.name, metavar=field.name.upper(), help=text)
        return
    option = "--" + field.name.replace("_", "-")
    shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    text = text if shown is None else f"{text} (default: {shown})"
    if kind in (bool, bool | None):
        verb.add_argument(option, default=field.default, action=argparse.BooleanOptionalAction, help=text)
        return
    kind = units if isinstance(kind, types.GenericAlias) else whole if kind is int else kind
    verb.add_argument(option, dest=field.name, default=field.default, type=kind, metavar=field.name.upper(), help=text)


def run_train(parsed: argparse.Namespace) -> int:
    """Train, then say where everything is."""
    from gpi.training.train import UserCode, train  # only training needs all of gpi

    config = Config(**{field.name: getattr(parsed, field.name) for field in dataclasses.fields(Config)})
    user = UserCode(callbacks=with_tensorboard((), parsed.tensorboard))
    return closing(*train(config, parsed.out, user))


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


def add_check(verbs: Verbs) -> None:
    """Add `gpi check`."""
    verb = verbs.add_parser(
        "check", help="find what is wrong with an environment before training in it",
        description="Play a few episodes with random actions and hold the environment to Gymnasium's contract. The "
        "first problem is one line with the environment, the step and a remedy; the exit code is 6.",
    )  # fmt: skip
    verb.add_argument("task", metavar="ENV", help="cheetah-run, Pendulum-v1, my_module:MyEnv-v0, my_module:make_env")
    verb.set_defaults(run=run_check)


def run_check(parsed: argparse.Namespace) -> int:
    """Check an environment, and say what the agent will see and do."""
    from gpi.envs.checks import check

    found = check(tasks.find(parsed.task))
    spec = found.spec
    doing = f"{spec.action_size} discrete actions" if spec.discrete else f"{spec.action_size} continuous actions"
    print(f"{spec.id}: no problem in {found.steps:,} steps and {found.episodes:,} episodes")
    print(f"the agent sees {spec.observation_size} numbers and has {doing}")
    for note in found.notes:
        print(f"note: {note}")
    return 0


def add_plot(verbs: Verbs) -> None:
    """Add `gpi plot`."""
    verb = verbs.add_parser("plot", help="learning curves of one run or several, every seed visible")
    verb.add_argument("runs", nargs="+", metavar="DIR", help="run directories; one panel per task")
    verb.add_argument(
        "--out", type=Path, default=Path("curves.png"), metavar="FILE", help="picture (default: %(default)s)"
    )
    verb.set_defaults(run=run_plot)


def run_plot(parsed: argparse.Namespace) -> int:
    """Draw learning curves, and say where they are."""
    from gpi.report.curves import learning_curves

    runs = [open_run(directory) for directory in parsed.runs]
    learning_curves(runs, require_picture(parsed.out))
    print(f"learning curves: {parsed.out}")
    return 0


def add_audit(verbs: Verbs) -> None:
    """Add `gpi audit`."""
    verb = verbs.add_parser(
        "audit", help="did the guarantee hold? every update of one run or several against the theory's bounds",
        description="Count over all updates and seeds whether each bound of the theory held, and draw how it went. "
        "docs/guarantee.md explains what is measured and how to read it.",
    )  # fmt: skip
    verb.add_argument("runs", nargs="+", metavar="DIR", help="run directories, shown side by side")
    verb.add_argument("--out", type=Path, metavar="FILE", help="picture (default: audit.png in the first directory)")
    verb.add_argument("--json", action="store_true", help="print a JSON list with one object per run, and no picture")
    verb.set_defaults(run=run_audit)


def run_audit(parsed: argparse.Namespace) -> int:
    """Print the counts, and draw them unless only JSON is wanted."""
    runs = [open_run(directory) for directory in parsed.runs]
    summaries = [summarise(run) for run in runs]
    if parsed.json:
        print(json.dumps([summary.as_json() for summary in summaries]))
    else:
        print(audit_table(summaries))
    if parsed.out is not None or not parsed.json:
        from gpi.report.audit_figure import audit_figure

        path = require_picture(parsed.out or runs[0].dir / "audit.png")
        audit_figure(runs, summaries, path)
        print(f"figure: {path}", file=sys.stderr if parsed.json else sys.stdout)
    return 0


def audit_table(summaries: Sequence[AuditSummary]) -> str:
    """Return audits as a table for people: the share of updates inside each bound, and the worst update."""
    header = ("run", "algorithm", "trust", "updates", "eq (11)", "worst", "one-step", "worst", "KL", "worst", "kept",
              "ESS")  # fmt: skip
    rows: list[tuple[str, ...]] = [header]
    for s in summaries:
        bounds = [cell for b, w in s.worst.items() for cell in (percent(s.inside(b)), f"x{w.ratio:.3g}")]
        rows.append((s.run, s.algorithm, s.trust, f"{s.updates:,}", *bounds, f"{s.refused:,}", f"{s.ess_share:.0%}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = [
        "  ".join(f"{x:<{w}}" if i < 3 else f"{x:>{w}}" for i, (x, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([
        *lines, "",
        "eq (11): TV to the prior policies within eps/2. one-step: TV within eps_gpi/2. KL: within delta.",
        "Per cent: updates inside the bound. worst: largest measured / allowed. kept: updates that changed nothing.",
        "ESS: realised over nominal effective sample size.",
    ])  # fmt: skip


def require_picture(path: Path) -> Path:
    """Return the path if a picture can be written there, otherwise raise UsageError."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"picture {path} must end in .png, .pdf or .svg; use {path.with_suffix('.png')}")
    if not path.parent.is_dir():
        raise UsageError(f"picture {path} needs the directory {path.parent}, which does not exist; make it first")
    return path


def add_mixture(verbs: Verbs) -> None:
    """Add `gpi mixture`."""
    verb = verbs.add_parser("mixture", help="the optimal mixture over prior policies, Theorem 4, and what it gains")
    verb.add_argument("--B", type=whole, default=2, help="on-policy batch size in units of n (default: 2)")
    verb.add_argument("--kappa", type=float, default=1.0, help="0: large updates, 1: large samples (default: 1.0)")
    verb.add_argument("--eps", type=float, default=0.2, help="trust region in TV distance (default: 0.2)")
    verb.add_argument("--n", type=whole, default=1024, help="samples per policy (default: 1024)")
    verb.add_argument("--json", action="store_true", help="print one JSON object")
    verb.add_argument("--plot", type=Path, metavar="FILE", help="draw the paper's figure 1, with this mixture marked")
    verb.set_defaults(run=run_mixture)


def run_mixture(parsed: argparse.Namespace) -> int:
    """Print the mixture, and draw figure 1 if a file is given."""
    best = mixture(parsed.B, parsed.kappa, parsed.eps, parsed.n)
    if parsed.plot is not None:
        from gpi.report.mixture import figure_1

        figure_1(require_picture(parsed.plot), parsed.B, parsed.kappa)
    print(json.dumps(dataclasses.asdict(best)) if parsed.json else mixture_table(best, parsed))
    if parsed.plot is not None and not parsed.json:
        print(f"figure: {parsed.plot}")
    return 0


def mixture_table(best: Mixture, parsed: argparse.Namespace) -> str:
    """Return the mixture as a table for people."""
    N = parsed.B * parsed.n
    lines = [f"Optimal mixture over prior policies (Theorem 4), B = {parsed.B}, kappa = {parsed.kappa:g}", ""]
    lines += ["  age i   nu_i", "  -----   --------"]
    width = 40 / max(best.nu)
    lines += [f"  {i:5d}   {x:.6f}   {'█' * round(width * x)}" for i, x in enumerate(best.nu)]
    lines += [
        "",
        f"  policies reused, M                  {best.M}",
        f"  mean age, E[i + 1]                  {best.mean_age:.6f}",
        f"  one-step trust region, eps_gpi      {best.eps_gpi:.6f}   (eps {parsed.eps:g} on-policy)",
        f"  KL radius, delta_gpi                {best.delta_gpi:.6f}",
        f"  effective sample size               {best.ess:.1f}   ({N} on-policy: {best.ess_gain:+.1%})",
        f"  TV update size per {N:<16,d} {best.tv_size:.6f}   ({parsed.eps / 2:g} on-policy: {best.tv_gain:+.1%})",
    ]
    return "\n".join(lines)


def add_tasks(verbs: Verbs) -> None:
    """Add `gpi tasks`."""
    verb = verbs.add_parser("tasks", help="list the tasks that run on EnvPool; any other Gymnasium id works too")
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


if __name__ == "__main__":
    sys.exit(main())
