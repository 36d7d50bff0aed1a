"""The policies of a run at any time: the final ones, else those of the newest checkpoint, or the best evaluated.

Of a checkpoint only the files of its policies are read, its arrays where an earlier version wrote it; without the run's
lock, and without starting JAX.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from gpi import files, policy_file, standalone
from gpi.envs import dmc
from gpi.errors import FileError, UsageError
from gpi.files import ArraySpec
from gpi.policy_file import list_policy_files, number_in
from gpi.rundir import checkpoint
from gpi.rundir.checkpoint import Checkpoint
from gpi.rundir.done import read_done
from gpi.rundir.evaluations import read_evaluations
from gpi.standalone import Facts, Policy

Which = Literal["last", "best"]
ATTEMPTS = 5  # to read the newest checkpoint of a run that may delete it meanwhile
PARAMS, NORMALISER = "state/agent/policy/params/", "state/normaliser/"
FORCE = f"{NORMALISER}in_force/"
LAYER = re.compile(r"net/([0-9]{1,4})/(kernel|bias)")
MIN_STD = 1e-6  # as in `core.normaliser`, which would start JAX
REMEDY = "train with --eval-every, or leave best out"


class Found(NamedTuple):
    """Policies by seed, and what to know about them, in one line each."""

    policies: dict[int, Policy]
    notes: tuple[str, ...] = ()
    """Says at which step, if the run has not finished."""
    flattery: str = ""
    """Says how the best were chosen."""


def load(source: str | os.PathLike[str], seed: int | Literal["best"] | None = None, policy: Which = "last") -> Policy:
    """Load the policy in a file, in a directory that `gpi export` made, or of a run's `seed`, by default its first.

    While a run has not finished, the policy is that of its newest checkpoint; `about["steps"]` says at which step.
    `policy="best"` is the one with the best mean return of its evaluations in training, and `seed="best"` the seed
    whose policy it is; both need a run that was trained with `eval_every`.

    No code in the file is run, and all of it is checked: if it is damaged or not a policy, `gpi.errors.FileError` is
    raised.
    """
    return next(iter(find(source, seed, policy, first=True).policies.values()))


def find(
    source: str | os.PathLike[str],
    seed: int | Literal["best"] | None = None,
    policy: Which = "last",
    *,
    first: bool = False,
) -> Found:
    """Return the policies of a run by their seeds, or the one in a file or in an export.

    Without a `seed` they are those of all seeds; those after the `first` may then be left out.
    """
    run = files.path_of(source, "the source of a policy")
    if policy not in get_args(Which):
        raise UsageError(f"policy = {policy!r} must be one of {', '.join(get_args(Which))}; use last")
    if not (seed is None or seed == "best" or isinstance(seed, int | np.integer)):
        raise UsageError(f"seed = {seed!r} must be a seed of the run, or best; leave it out for the first")
    if not run.is_dir() or (run / "policy.json").is_file():
        one = policy_file.load(run)
        if policy == "best" or seed == "best":
            raise UsageError(f"{run} is a single policy, so none is the best; name the run directory")
        return Found({int(one.about.get("seed", 0)): one})
    paths = list_policy_files(run, "best" if policy == "best" else "policy")
    if seed is None and first:
        seed = min(paths, default=None)
    only = {int(seed): paths[int(seed)]} if seed in paths else paths  # another that is damaged does not matter
    found = find_best(run, only) if policy == "best" else find_last(run, only)
    if seed is None:
        return found
    chosen = best_seed(run, found, policy) if seed == "best" else int(seed)
    if chosen not in found.policies:
        raise UsageError(f"{run} has no policy of seed {chosen}; it has {sorted(found.policies)}")
    return narrowed(run, found, chosen, chose=seed == "best")


def narrowed(run: Path, found: Found, seed: int, *, chose: bool) -> Found:
    """Return the part of `found` for one seed; say so if it was chosen as the best of several."""
    policies = {seed: found.policies[seed]}
    lines = [describe_best(run, policies)] if found.flattery else []
    if chose and len(found.policies) > 1:
        lines.append(f"the best of {len(found.policies)} seeds is not typical of the algorithm")
    return Found(policies, found.notes, "; ".join(lines))


def find_last(run: Path, paths: Mapping[int, Path]) -> Found:
    """Return the policies that a run's end wrote; if it has not finished, of each seed the policy of most steps."""
    ended = {seed: policy_file.load(path) for seed, path in paths.items()}
    if ended and ((run / "DONE").exists() or not (run / "config.json").exists()):
        note = f"policies at {span(ended.values())} steps; the run ended early, `gpi resume {run}` continues it"
        return Found(ended, (note,) if ended_early(run) else ())
    saved, skipped = newest_policies(run)
    if not ended and not saved:
        raise without_policy(run, skipped)
    newer = {seed: one for seed, one in saved.items() if seed not in ended or steps_of(one) > steps_of(ended[seed])}
    found = dict(sorted((ended | newer).items()))
    where = "policies of the checkpoint" if newer else "policies"
    note = f"{where} at {span(found.values())} steps; the run has not finished"
    return Found(found, (*(f"skipped {line}" for line in skipped), note))


def ended_early(run: Path) -> bool:
    """Return whether a run was interrupted or stopped before it had taken its steps."""
    with suppress(FileError):
        done = read_done(run)
        return done is not None and not done["complete"]
    return False


def without_policy(run: Path, skipped: list[str]) -> UsageError | FileError:
    """Return the error for a directory without a policy."""
    if skipped:
        return FileError(f"{run} holds no policy that can be used: {skipped[0]}; `gpi resume {run}` trains on")
    if (run / "config.json").exists():
        return UsageError(
            f"{run} holds no policy: it has no checkpoint yet; wait, or `gpi resume {run}` if it has died"
        )
    return UsageError(f"{run} holds no policy; name a directory that `gpi train` made, or a policy file")


def newest_policies(run: Path) -> tuple[dict[int, Policy], list[str]]:
    """Return the policies of the newest valid checkpoint, and one line for each newer one that is not valid."""
    skipped: list[str] = []
    for _ in range(ATTEMPTS):
        skipped, paths = [], checkpoint.saved(run)
        for path in paths:
            try:
                return policies_of(path), skipped
            except FileError as error:
                skipped.append(str(error))
        if checkpoint.saved(run) == paths:
            break  # none was deleted meanwhile: they are damaged
    return {}, skipped


def policies_of(path: Path) -> dict[int, Policy]:
    """Return the policies of all members of a checkpoint, by seed; its arrays are read only if it packs no policies."""
    packed = checkpoint.read_policies(path)
    if not packed:
        return policies_in(checkpoint.load(path, None))
    try:
        return {int(one.about["seed"]): one for one in map(policy_file.parse, packed.values())}
    except FileError as error:
        raise FileError(f"checkpoint {path.name}: no policies can be read from it ({error})") from error


def policies_in(found: Checkpoint) -> dict[int, Policy]:
    """Return the policies of all members of a checkpoint, by seed; raise FileError if it does not hold them."""
    try:
        match found.identity:
            case {
                "config": {"task": str(), "seed": int(first), "seeds": int(count)} as config,
                "environment": dict(environment),
            }:
                members = range(first, first + count)
                form = form_in(config, discrete=environment["discrete"])
                return {
                    seed: standalone.assemble(
                        arrays_of(found, environment, p, count), about_of(found, config, seed, p), form
                    )
                    for p, seed in enumerate(members)
                }
        raise FileError("its identity lacks settings or environment")
    except (FileError, KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
        raise FileError(f"checkpoint ckpt-{found.iteration:09d}: no policies can be read from it ({error})") from error


def arrays_of(found: Checkpoint, environment: Facts, p: int, count: int) -> dict[str, np.ndarray]:
    """Return the arrays of one of `count` members by their names in a policy's file; `assemble` checks the rest."""
    read = found.arrays | in_force(found.arrays, NORMALISER)
    arrays: dict[str, np.ndarray] = {}
    for name, part in {"obs/mean": "centre", "obs/std": "scale"}.items():
        expected, x = ArraySpec((count, environment["observation_size"]), np.dtype(np.float32)), read[FORCE + part]
        if not files.fits(ArraySpec(x.shape, x.dtype), expected):
            raise FileError(f"array {part} does not fit, expected {expected}, found {x.dtype}{list(x.shape)}")
        arrays[name] = x[p]
    for name, x in found.arrays.items():
        if name.startswith(PARAMS):
            if x.ndim == 0 or len(x) != count:
                raise FileError(f"array {files.shown(name)} is not of {count} members")
            arrays[name_in_file(name.removeprefix(PARAMS))] = x[p]
    if environment["discrete"] is True:
        return arrays | {"action/start": np.array(environment["start"], np.int64)}
    return arrays | {f"action/{side}": np.array(environment[side], np.float32) for side in ("low", "high")}


def in_force(arrays: Mapping[str, np.ndarray], normaliser: str) -> dict[str, np.ndarray]:
    """Return the statistics in force of a normaliser, by name; of earlier versions those of all that was seen."""
    names = [f"{normaliser}in_force/{part}" for part in ("centre", "scale")]
    if all(name in arrays for name in names):
        return {name: arrays[name] for name in names}
    number, mean, squares = (arrays[f"{normaliser}obs/{name}"] for name in ("count", "mean", "squares"))
    with np.errstate(all="ignore"):  # `assemble` refuses numbers that are not finite
        std = np.sqrt(squares / np.maximum(number - 1.0, 1.0)[..., None])
        return dict(
            zip(names, (mean.astype(np.float32), np.where(std < MIN_STD, 1.0, std).astype(np.float32)), strict=True)
        )


def name_in_file(name: str) -> str:
    """Return the name that a parameter of a policy has in a policy's file."""
    if layer := LAYER.fullmatch(name):
        return f"policy/layer{int(layer[1])}/{layer[2]}"
    return f"policy/{name}"  # `assemble` knows which there are


def form_in(config: Facts, *, discrete: bool) -> Facts:
    """Return the form of a run's policies by its settings, which earlier versions lack."""
    usual = standalone.FIRST_FORMS[discrete]
    found = {"kind": config.get("policy", "auto")} | {name: config[name] for name in usual if name in config}
    return usual | {name: x for name, x in found.items() if x != "auto"}


def about_of(found: Checkpoint, config: Facts, seed: int, p: int) -> Facts:
    """Return the facts about the training of member p, as the file of its policy would have them."""
    task, steps = config["task"], found.state["steps"][p]
    short = dmc.short_name(task)
    about = {
        "task": dmc.TASKS[short].id if short in dmc.TASKS else task,
        "backend": config["backend"], "algorithm": config["algorithm"], "seed": str(seed), "steps": str(steps),
        "observation_names": found.state.get("observation_names", []),
    } | ({"repeats": str(found.state["repeats"])} if "repeats" in found.state else {})  # fmt: skip
    if type(steps) is not int or not policy_file.is_valid_description(about):
        raise FileError(f"its description is not plain: {files.shown(about)}")
    return about


def find_best(run: Path, paths: Mapping[int, Path]) -> Found:
    """Return each seed's best policy by its evaluations in training."""
    found = {seed: policy_file.load(path) for seed, path in paths.items()}
    if not found:
        raise UsageError(f"{run} holds no best policy: {not_evaluated(run)}; {REMEDY}")
    return Found(found, (), describe_best(run, found))


def best_seed(run: Path, found: Found, policy: Which) -> int:
    """Return the seed whose best policy, or last one, has the best evaluation."""
    if policy == "best":
        means = {seed: number_in(one.about, "evaluation") for seed, one in found.policies.items()}
    else:
        means = {row.seed: row.mean for row in read_evaluations(run)}  # a seed's latest comes last
    means = {seed: mean for seed, mean in means.items() if np.isfinite(mean)}
    if not means:
        raise UsageError(f"{run} has no best seed: {not_evaluated(run)}; {REMEDY}")
    return max(sorted(means), key=lambda seed: means[seed])


def not_evaluated(run: Path) -> str:
    """Say why a run has no evaluation in training."""
    with suppress(FileError, AttributeError):
        about = files.parse_json(files.read(run, "config.json", files.JSON_LIMIT), "config.json")
        if every := about["config"].get("eval_every"):
            return f"none was evaluated yet, the first will be at iteration {every}"
    return "none was evaluated in training"


def describe_best(run: Path, policies: dict[int, Policy]) -> str:
    """Say how the best policies were chosen, and that the means that chose them flatter."""
    times: Counter[int] = Counter()
    with suppress(FileError):
        times = Counter(row.seed for row in read_evaluations(run))
    most = max((times[seed] for seed in policies), default=0) or "its"
    means = ", ".join(f"{seed}: {number_in(one.about, 'evaluation'):.2f}" for seed, one in policies.items())
    whose = f"seed {next(iter(policies))}" if len(policies) == 1 else "each seed"
    return (
        f"best of {most} evaluations of {whose} in training, at {span(policies.values())} steps: "
        f"chosen for its mean ({means}), which is therefore too high; `gpi eval` plays new episodes"
    )


def steps_of(policy: Policy) -> int:
    """Return the environment steps that a policy was trained for; 0 where they are not known."""
    steps = number_in(policy.about, "steps")
    return int(steps) if np.isfinite(steps) else 0


def span(policies: Iterable[Policy]) -> str:
    """Return the steps of policies as text, from the fewest to the most."""
    steps = sorted({steps_of(policy) for policy in policies})
    return f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
