"""The commands for trained policies: eval, record and export."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gpi.cli.parsing import ENV, whole
from gpi.evaluation import Evaluation, evaluate, policies_of, task_of
from gpi.export import export
from gpi.video import FPS, record

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs


def add_eval(verbs: Verbs) -> None:
    """Add `gpi eval`."""
    verb = verbs.add_parser(
        "eval", help="play new episodes with trained policies: mean return of each seed, with confidence interval",
        description="Play episodes in environments unseen in training with each seed's final policy. Intervals are "
        "95 % bootstrap intervals of the mean: of a seed over its episodes, of all over the seeds.",
    )  # fmt: skip
    verb.add_argument("run_dir", type=Path, metavar="DIR", help="run directory, or a policy file")
    verb.add_argument("--episodes", type=whole, default=10, help="episodes per seed (default: %(default)s)")
    verb.add_argument("--sampled", action="store_true", help="sample actions as in training, instead of the mean")
    verb.add_argument("--seed", type=int, help="only this seed (default: all)")
    verb.add_argument("--env", help=ENV)
    verb.add_argument(
        "--max-steps", type=whole, default=100_000, help="stop episodes that do not end (default: %(default)s)"
    )
    verb.add_argument("--json", action="store_true", help="print one JSON object with every episode")
    verb.set_defaults(run=run_eval)


def run_eval(parsed: argparse.Namespace) -> int:
    """Evaluate policies and print the result."""
    result = evaluate(
        parsed.run_dir, parsed.env, episodes=parsed.episodes, deterministic=not parsed.sampled, seed=parsed.seed,
        max_steps=parsed.max_steps,
    )  # fmt: skip
    print(as_json(result) if parsed.json else table(result))
    return 0


def as_json(result: Evaluation) -> str:
    """Return an evaluation with every episode as one JSON object."""
    low, high = result.interval()
    return json.dumps({
        "task": result.task, "mean": result.mean, "low": low, "high": high, "unfinished": result.unfinished,
        "seeds": {
            str(seed): {"mean": result.means[seed], "interval": result.interval(seed), "returns": returns.tolist(),
                        "lengths": result.lengths[seed].tolist()}
            for seed, returns in result.returns.items()
        },
    })  # fmt: skip


def table(result: Evaluation) -> str:
    """Return an evaluation as a table for people."""
    lines = [f"{result.task}", f"{'seed':>5}  episodes  {'mean':>10}  {'95 % interval':^23}  {'min':>10}  {'max':>10}"]
    for seed, returns in result.returns.items():
        low, high = result.interval(seed)
        lines.append(
            f"{seed:>5}  {len(returns):>8}  {result.means[seed]:>10.2f}  {f'{low:.2f} to {high:.2f}':^23}  "
            f"{returns.min():>10.2f}  {returns.max():>10.2f}"
        )
    if len(result.returns) > 1:
        low, high = result.interval()
        lines.append(f"{'all':>5}  {'':>8}  {result.mean:>10.2f}  {f'{low:.2f} to {high:.2f}':^23}")
    if result.unfinished:
        lines.append(f"{result.unfinished} episodes did not end and were stopped: see --max-steps")
    return "\n".join(lines)


def add_record(verbs: Verbs) -> None:
    """Add `gpi record`."""
    verb = verbs.add_parser(
        "record", help="film an episode of a trained policy, without a screen",
        description="Film one episode as .mp4 or .gif. Needs no screen.",
    )  # fmt: skip
    verb.add_argument("run_dir", type=Path, metavar="DIR", help="run directory, or a policy file")
    verb.add_argument(
        "--out", type=Path, metavar="FILE", default=Path("episode.mp4"), help=".mp4 or .gif (default: %(default)s)"
    )
    verb.add_argument("--seed", type=int, help="which seed's policy (default: the first)")
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
    """Record an episode, and say what it shows."""
    policies = policies_of(parsed.run_dir, parsed.seed)
    task, make = task_of(policies, parsed.run_dir, parsed.env)
    seed, policy = next(iter(policies.items()))
    film = record(
        policy, task, parsed.out, make=make, seed=seed, steps=parsed.steps, fps=parsed.fps, size=parsed.size,
        camera=parsed.camera, sampled=parsed.sampled,
    )  # fmt: skip
    end = "to its end" if film.ended else "not to its end"
    print(f"{film.path}: seed {seed}, {film.length} steps ({end}), return {film.episode_return:.2f}, {film.fps:g} fps")
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
    verb.add_argument("--seed", type=int, help="which seed's policy (default: the first)")
    verb.set_defaults(run=run_export)


def run_export(parsed: argparse.Namespace) -> int:
    """Export a policy, and say how well the export agrees with it."""
    directory = parsed.run_dir if parsed.run_dir.is_dir() else parsed.run_dir.parent
    name = f"policy-{next(iter(policies_of(parsed.run_dir, parsed.seed)))}"
    out = parsed.out or directory / (f"{name}.onnx" if parsed.format == "onnx" else f"{name}-numpy")
    done = export(parsed.run_dir, out, format=parsed.format, seed=parsed.seed)
    print(f"{out}: agrees within {done.worst:.1e} on {done.observations:,} observations")
    return 0
