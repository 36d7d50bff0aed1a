"""What a uniformly random policy meets on a task: how seldom a reward, the paper's sparsity, and which return."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from gpi import analysis, files
from gpi.envs import dmc, tasks
from gpi.envs.seeds import env_seeds
from gpi.errors import FileError, GpiError, UnknownTaskError

NEGLIGIBLE = 0.01  # the largest reward that counts as none
ENVIRONMENTS = 10
CACHED = "random-policy.json"


def sample(task: str, samples: int = analysis.SAMPLES) -> analysis.RandomPolicy:
    """Return a uniformly random policy's measurements in `samples` samples of a task; always the same numbers.

    With a horizon of 1,000 they are 100 whole episodes. Mean and deviation are NaN without an episode that ended.
    """
    found = tasks.find(task)
    pool = tasks.make_host_pool(found, env_seeds(found.id, "sparsity", 0, ENVIRONMENTS), 1)
    rng = np.random.default_rng(0)
    returns: list[float] = []
    try:
        pool.reset()
        seen = negligible = 0
        running = np.zeros(ENVIRONMENTS)
        while seen < samples:
            shape = (ENVIRONMENTS, pool.spec.action_size)
            step = pool.step(
                rng.integers(pool.spec.action_size, size=ENVIRONMENTS, dtype=np.int32) if pool.spec.discrete
                else rng.uniform(-1.0, 1.0, shape).astype(np.float32)
            )  # fmt: skip
            valid, reward = np.asarray(step.valid), np.asarray(step.reward, np.float64)
            seen += int(valid.sum())
            negligible += int((valid & (reward <= np.float32(NEGLIGIBLE))).sum())
            running += reward
            ended = np.asarray(step.terminated) | np.asarray(step.truncated)
            returns += running[ended].tolist()
            running[ended] = 0.0
    finally:
        pool.close()
    deviation = float(np.std(returns, ddof=1)) if len(returns) > 1 else np.nan
    return analysis.RandomPolicy(
        negligible / seen, float(np.mean(returns)) if returns else np.nan, deviation, len(returns)
    )


def sparsity_of(
    names: Iterable[str],
    cache: Path | None = None,
    say: Callable[[str], object] = print,
    own: Mapping[str, str] | None = None,
    samples: int = analysis.SAMPLES,
) -> dict[str, analysis.RandomPolicy]:
    """Return what a random policy meets on tasks: known for the 28, else read from a cache, or measured and kept there.

    A task that is code of the user's is measured only if `own` has it, by its name in the study, as results may come
    from a file of somebody else's. Tasks that cannot be measured are left out, with a line that says so. `say` also
    gets the progress.
    """
    own = own or {}
    known = analysis.random_returns()
    kept = read_cache(cache, samples)
    found: dict[str, analysis.RandomPolicy] = {}
    for task in dict.fromkeys(map(dmc.short_name, names)):
        if one := known.get(task) or kept.get(task):
            found[task] = one
            continue
        if ":" in task and task not in own.values():
            say(f"{task}: its random policy is not measured, as no file may start your code; add --env mine={task}")
            continue
        say(f"{task}: {samples:,} samples of a random policy ...")
        try:
            found[task] = kept[task] = sample(own.get(task, task), samples)
        except GpiError as error:  # of another machine's results the environment may be missing here
            own_task = f"it is unknown here; if it is your own, add --env {task}=MODULE:ID"
            why = own_task if isinstance(error, UnknownTaskError) else error
            say(f"{task}: its random policy cannot be measured: {why}")
            continue
        with suppress(GpiError):  # it only saves time
            if cache is not None:
                files.write(cache / CACHED, encode(kept, samples))
    return found


def encode(found: dict[str, analysis.RandomPolicy], samples: int = analysis.SAMPLES) -> bytes:
    """Return measurements as JSON; NaN becomes null."""

    def number(x: float) -> float | None:
        return None if np.isnan(x) else x

    versions = {name: version_of(name) for name in ("envpool", "gymnasium", "numpy")}
    about = {
        "samples": samples, "versions": versions, "sparsity": {task: one.sparsity for task, one in found.items()},
        "returns": {task: {"mean": number(one.mean), "deviation": number(one.deviation), "episodes": one.episodes}
                    for task, one in found.items()},
    }  # fmt: skip
    return (json.dumps(about, indent=2) + "\n").encode()


def version_of(name: str) -> str | None:
    """Return the version of an installed package; None where there is none, as of EnvPool on some systems."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_cache(directory: Path | None, samples: int) -> dict[str, analysis.RandomPolicy]:
    """Return earlier measurements; an empty dict without a file, or with one that cannot be used."""
    if directory is None or not (directory / CACHED).is_file():
        return {}
    try:
        return analysis.parse_measurements(files.read(directory, CACHED, files.JSON_LIMIT), samples)
    except FileError:
        return {}
