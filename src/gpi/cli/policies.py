"""The commands for trained policies: eval, record and export."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gpi.cli.parsing import ENV, whole
from gpi.config import require_positive
from gpi.evaluation import Evaluation, play, task_of, tell
from gpi.export import export
from gpi.rundir.policies import Found, Which, find
from gpi.video import FPS, record

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs


def add_eval(verbs: Verbs) -> None:
    """Add `gpi eval`."""
    verb = verbs.add_parser(
        "eval", help="play new episodes with trained policies: mean return of each seed, with confidence interval",
        description="Play episodes in environments unseen in training with each seed's final policy. Intervals are "
        "Student's 95 % intervals of the mean: of a seed over its episodes, of all over the seeds.",
    )  # fmt: skip
    verb.add_argument("run_dir", type=Path, metavar="DIR", help="run directory, or a policy file")
    verb.add_argument("--episodes", type=whole, default=10, help="episodes per seed (default: %(default)s)")
    verb.add_argument("--sampled", action="store_true", help="sample actions as in training, instead of the mean")
    add_choice(verb, "only this seed", "all")
    verb.add_argument("--env", help=ENV)
    verb.add_argument(
        "--max-steps", type=whole, default=100_000, help="stop episodes that do not end (default: %(default)s)"
    )
    verb.add_argument("--json", action="store_true", help="print one JSON object with every episode")
    verb.set_defaults(run=run_eval)


def add_choice(verb: argparse.ArgumentParser, what: str, default: str) -> None:
    """Add the options that choose among the policies of a run."""
    verb.add_argument(
        "--seed", type=seed_or_best, help=f"{what}, or best, by evaluations in training (default: {default})"
    )
    verb.add_argument(
        "--policy", choices=get_args(Which), default="last",
        help="each seed's last policy, or its best by evaluations in training, --eval-every (default: %(default)s)",
    )  # fmt: skip


def seed_or_best(text: str) -> int | str:
    """Read a seed, or the word best."""
    if text != "best" and not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a seed of the run, e.g. 0, or best")
    return text if text == "best" else int(text)


def chosen(parsed: argparse.Namespace, *, first: bool = False) -> Found:
    """Return the policies that the command names, after saying what to know about them."""
    found = find(parsed.run_dir, parsed.seed, parsed.policy, first=first)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    return found


def run_eval(parsed: argparse.Namespace) -> int:
    """Evaluate policies and print the result."""
    require_positive(episodes=parsed.episodes, max_steps=parsed.max_steps)
    found = chosen(parsed)
    task, make, note = task_of(found.policies, parsed.run_dir, parsed.env)
    result = play(
        found.policies, task, make, parsed.episodes, deterministic=not parsed.sampled, max_steps=parsed.max_steps,
        quiet=False,
    )  # fmt: skip
    tell(note, quiet=False)
    notes = (*found.notes, *filter(None, [note, found.flattery]))
    print(as_json(result, notes) if parsed.json else table(result, found))
    return 0


def as_json(result: Evaluation, notes: Sequence[str]) -> str:
    """Return an evaluation with every episode as one JSON object; one episode has no interval."""
    low, high = result.interval() if result.has_interval() else (None, None)
    return json.dumps({
        "task": result.task, "mean": result.mean, "low": low, "high": high, "unfinished": result.unfinished,
        "seeds": {
            str(seed): {"mean": result.means[seed], "steps": result.steps[seed],
                        "interval": result.interval(seed) if len(returns) > 1 else None, "returns": returns.tolist(),
                        "lengths": result.lengths[seed].tolist()}
            for seed, returns in result.returns.items()
        },
        "notes": notes,
    })  # fmt: skip


def table(result: Evaluation, found: Found) -> str:
    """Return an evaluation as a table for people."""
    lines = [f"{result.task}", f"{'seed':>5}  episodes  {'mean':>10}  {'95 % interval':^23}  {'min':>10}  {'max':>10}"]
    for seed, returns in result.returns.items():
        low, high = result.interval(seed)
        interval = f"{low:.2f} to {high:.2f}" if len(returns) > 1 else "-"
        lines.append(
            f"{seed:>5}  {len(returns):>8}  {result.means[seed]:>10.2f}  {interval:^23}  "
            f"{returns.min():>10.2f}  {returns.max():>10.2f}"
        )
    if len(result.returns) > 1:
        low, high = result.interval()
        lines.append(f"{'all':>5}  {'':>8}  {result.mean:>10.2f}  {f'{low:.2f} to {high:.2f}':^23}")
    if result.unfinished:
        lines.append(f"{result.unfinished} episodes did not end and were stopped: see --max-steps")
    return "\n".join([*lines, *([found.flattery] if found.flattery else [])])


def add_record(verbs: Verbs) -> None:
    """Add `gpi record`."""
    verb = verbs.add_parser(
        "record", help="film an episode of a trained policy, without a screen",
        description="Film one episode as .mp4, .webp or .gif. Needs no screen.",
    )  # fmt: skip
    verb.add_argument("run_dir", type=Path, metavar="DIR", help="run directory, or a policy file")
    verb.add_argument(
        "--out", type=Path, metavar="FILE", default=Path("episode.mp4"),
        help=".mp4, .webp or .gif (default: %(default)s)",
    )  # fmt: skip
    add_choice(verb, "which seed's policy", "the first")
    verb.add_argument("--steps", type=whole, default=1000, help="record at most this many steps (default: %(default)s)")
    verb.add_argument("--sampled", action="store_true", help="sample actions as in training, instead of the mean")
    verb.add_argument("--camera", metavar="NAME", help="the model's camera, by name or id (default: one that follows)")
    verb.add_argument("--size", type=pixels, metavar="WIDTHxHEIGHT", help="in pixels, as 640x480 (default: the task's)")
    verb.add_argument("--fps", type=float, default=FPS, help="frames per second at most (default: %(default)s)")
    verb.add_argument("--env", help=ENV)
    verb.set_defaults(run=run_record)


def pixels(text: str) -> tuple[int, int]:
    """Read a width and a height, as 640x480."""
    width, by, height = text.partition("x")
    if not (by and width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} must be WIDTHxHEIGHT in pixels; use 640x480")
    return int(width), int(height)


def run_record(parsed: argparse.Namespace) -> int:
    """Record an episode, and describe it."""
    found = chosen(parsed, first=True)
    policies = found.policies
    task, make, note = task_of(policies, parsed.run_dir, parsed.env)
    seed, policy = next(iter(policies.items()))
    film = record(
        policy, task, parsed.out, make=make, seed=seed, steps=parsed.steps, fps=parsed.fps, size=parsed.size,
        camera=parsed.camera, sampled=parsed.sampled,
    )  # fmt: skip
    tell(note, quiet=False)
    end = "to its end" if film.ended else "not to its end"
    print(f"{film.path}: seed {seed}, {film.length} steps ({end}), return {film.episode_return:.2f}, {film.fps:g} fps")
    if found.flattery:
        print(found.flattery)
    return 0


def add_export(verbs: Verbs) -> None:
    """Add `gpi export`."""
    verb = verbs.add_parser(
        "export", help="a policy for machines without JAX: NumPy and one readable Python file, or ONNX",
        description="Export a seed's policy with normaliser, clipping and action scaling inside, and compare it with "
        "the original on 10,000 observations before it is called done.",
    )  # fmt: skip
    verb.add_argument("run_dir", type=Path, metavar="DIR", help="run directory, or a policy file")
    verb.add_argument("--format", choices=("numpy", "onnx"), default="numpy", help="default: %(default)s")
    verb.add_argument(
        "--out", type=Path, metavar="PATH", help="directory for numpy, file for onnx (default: in the run directory)"
    )
    add_choice(verb, "which seed's policy", "the first")
    verb.set_defaults(run=run_export)


def run_export(parsed: argparse.Namespace) -> int:
    """Export a policy, and say how well the export agrees with it."""
    directory = parsed.run_dir if parsed.run_dir.is_dir() else parsed.run_dir.parent
    found = chosen(parsed, first=True)
    seed, policy = next(iter(found.policies.items()))
    name = f"{'best' if parsed.policy == 'best' else 'policy'}-{seed}"
    out = parsed.out or directory / (f"{name}.onnx" if parsed.format == "onnx" else f"{name}-numpy")
    done = export(policy, out, format=parsed.format)
    print(f"{out}: agrees within {done.worst:.1e} on {done.observations:,} observations")
    if found.flattery:
        print(found.flattery)
    return 0
