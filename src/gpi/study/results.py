"""Results of runs, small enough to keep and to send: curves, final performance, sums of the audit, versions.

A pack is one safetensors file of many results. It is read like a policy, without trust: names inside it are never
paths, and a file whose bytes are not exactly what its own content encodes to is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpi import analysis, files
from gpi import config as run_settings
from gpi.config import Config
from gpi.core.plan import ALGORITHMS
from gpi.envs.seeds import MAX_SEED
from gpi.errors import FileError, UsageError
from gpi.rundir.done import read_done
from gpi.rundir.resume import FREE
from gpi.rundir.run import Run, open_run
from gpi.standalone import Facts
from gpi.study.limits import ALL_SEEDS, SEEDS, require_plain

FORMAT, FIRST = "gpi-study-2", "gpi-study-1"  # the first did not say how TV was estimated
SIZE_LIMIT = 1 << 28
POINTS_LIMIT = 10_000_000  # of all seeds' curves
WINDOWS = {
    "final_steps": analysis.FINAL_STEPS,
    "bin": analysis.BIN,
}  # what earlier versions had, and the files of long runs leave out
NOT_OF_ARM = ("task", "seed", "seeds", "threads", "backend", *FREE)  # settings that make no other arm


@dataclass(frozen=True)
class Result:
    """The result of one run: of some seeds, with one choice of settings, on one task."""

    config: Config
    steps: tuple[int, ...]
    """Steps that each seed has taken."""
    curve: np.ndarray
    """`[seeds, bins, 3]`: of the episodes that ended in each bin their number, mean return and mean square."""
    final: np.ndarray
    """`[seeds]`, final performance: mean return over the last `final_steps`; NaN without an episode there."""
    audit: Facts
    versions: Facts
    devices: tuple[str, ...]
    complete: bool
    final_steps: int = analysis.FINAL_STEPS
    """Those of final performance: a fifth of a short run; of one that an earlier version read 204,800, or all."""
    bin: int = analysis.BIN
    """Steps of a bin of the curve; earlier versions had no other."""

    @property
    def seeds(self) -> range:
        """The seeds."""
        return self.config.seed_range

    @property
    def key(self) -> str:
        """What makes results comparable seed by seed: the task, and every setting that makes an arm."""
        return key_of(self.config)


def key_of(config: Config) -> str:
    """Return the identity of an arm on a task: every setting except seeds, steps and machine."""
    settings = {name: x for name, x in dataclasses.asdict(config).items() if name not in NOT_OF_ARM}
    if not config.reuses:
        del settings["kappa"]
    return json.dumps([config.short_task, settings], sort_keys=True)


def read_result(directory: str | Path) -> Result:
    """Return the result of a run directory, or of one that was cut down to its config, tables and audit."""
    run = open_run(directory)
    about = files.parse_json(files.read(run.dir, "config.json", files.JSON_LIMIT), "config.json")
    done = read_done(run.dir) or {}
    config = run_settings.config_of({name: x for name, x in run.config.items() if name in Config.__dataclass_fields__})
    taken = tuple(done.get("steps") or run.steps.values())  # a table that was cut down may lack the last iteration
    most, size = max(*taken, 1), analysis.bin_of(config.steps)
    bins = -(-most // size)
    fits = (
        len(taken) == config.seeds
        and min(taken) >= 0
        and bins <= analysis.BINS_LIMIT
        and config.seeds * bins <= POINTS_LIMIT
    )
    episodes = list(run.all_episodes().values()) if fits else []
    if not fits or not all(
        0 < step <= analysis.BINS_LIMIT * analysis.BIN for steps, _ in episodes for step in (*steps[:1], *steps[-1:])
    ):
        most = f"expected at most {analysis.BINS_LIMIT * analysis.BIN:,} steps"
        found = f"found {config.seeds} seeds and steps {files.shown(taken)}"
        raise FileError(f"{run.dir} is not a run of a study ({most}, {found})")
    return Result(
        config, taken, np.stack([analysis.curve_of(*one, bins, size) for one in episodes]),
        np.array([analysis.final_performance(*one, most) for one in episodes]), audit_of(run),
        about.get("versions", {}),
        tuple(map(str, about.get("devices", []))),
        done.get("complete") is True and most >= config.steps,  # while it is extended, DONE is still the old one
        analysis.final_window(most), size,
    )  # fmt: skip


def audit_of(run: Run) -> Facts:
    """Return the sums of a run's audit; a run that was cut down has them in audit.json."""
    if (run.dir / "audit.json").exists():
        found = files.parse_json(files.read(run.dir, "audit.json", files.JSON_LIMIT), "audit.json")
        return {"estimate": first_estimate(found)} | found
    return analysis.summarise(run).as_json()


def first_estimate(audit: Facts) -> str:
    """Return the estimate of TV in an audit that does not name it, inferred from its content; "unknown" if unclear.

    An audit without `calibration` was written before there was a second estimate; one of mode keep, after.
    """
    if "calibration" not in audit:
        return "abs"
    return "lost" if audit.get("trust") == "keep" else "unknown"


def encode_pack(results: Sequence[Result], form: str = FORMAT) -> bytes:
    """Return results as the bytes of a pack: the same results give the same bytes."""
    arrays: dict[str, np.ndarray] = {}
    for number, result in enumerate(results):
        audit = {name: x for name, x in result.audit.items() if form != FIRST or name != "estimate"}
        about = {
            "config": run_settings.as_first_saved(result.config), "steps": list(result.steps), "audit": audit,
            "versions": result.versions, "devices": list(result.devices), "complete": result.complete,
        }  # fmt: skip
        about |= {name: x for name, usual in WINDOWS.items() if (x := getattr(result, name)) != usual}
        text = json.dumps(about, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        arrays[f"{number}/about"] = np.frombuffer(text, np.uint8)
        arrays[f"{number}/curve"] = result.curve.astype(np.float32)
        arrays[f"{number}/final"] = result.final.astype(np.float64)
    return files.seal({"format": form}, lambda content: files.encode(arrays, {"gpi": json.dumps(content)}))


def parse_pack(data: bytes) -> list[Result]:
    """Return the results in the bytes of a pack, all of them checked; raise FileError otherwise."""
    try:
        arrays, metadata = files.decode(data)
    except FileError as error:
        raise FileError(f"it is not a pack, or only a part of one: {error}") from error
    found = files.parse_json(metadata.get("gpi", "{}").encode(), "the description")
    form = found.get("format")
    if form not in (FORMAT, FIRST):
        raise FileError(f"not a pack of this version (expected {FORMAT}, found {files.shown(form)})")
    if len(arrays) % 3 or list(arrays) != [
        f"{number}/{part}" for number in range(len(arrays) // 3) for part in ("about", "curve", "final")
    ]:
        raise FileError(f"other arrays than a pack's (found {files.shown(list(arrays)[:4])})")
    results = [result_in(arrays, number) for number in range(len(arrays) // 3)]
    if (seeds := sum(one.config.seeds for one in results)) > ALL_SEEDS:
        raise FileError(f"it has {seeds:,} seeds, at most {ALL_SEEDS:,} are taken; make several packs")
    if encode_pack(results, form) != data:
        raise FileError("damaged (expected the hash of its content, found another)")
    return results


def result_in(arrays: dict[str, np.ndarray], number: int) -> Result:
    """Return one result of a pack; raise FileError unless its parts fit together."""
    about, curve, final = (arrays[f"{number}/{part}"] for part in ("about", "curve", "final"))
    if about.dtype != np.uint8 or about.ndim != 1:
        raise FileError(f"result {number}: its description is not text")
    facts = files.parse_json(about.tobytes(), f"result {number}")
    try:
        config, steps = run_settings.config_of(facts["config"]), facts["steps"]
        windows = {name: facts.get(name, usual) for name, usual in WINDOWS.items()}
        whole = all(type(x) is int for x in windows.values())
        if not whole or windows["bin"] not in analysis.BINS or not 0 < windows["final_steps"] <= analysis.FINAL_STEPS:
            raise FileError(f"no results have {files.shown(windows)}")
        texts = (*facts["devices"], *facts["versions"].values())
        if config.algorithm not in ALGORITHMS or not 1 <= config.seeds <= MAX_SEED or not 0 <= config.seed <= MAX_SEED:
            raise FileError(f"{files.shown(config.algorithm)} with {files.shown(config.seeds)} seeds is not a run")
        if not all(type(count) is int and 0 <= count < 2**53 for count in steps) or not all(
            isinstance(text, str) for text in texts
        ):
            raise FileError("steps, versions or devices are not plain")
        expected = {"steps": (config.seeds,), "curve": (config.seeds, *curve.shape[1:2], 3), "final": (config.seeds,)}
        shapes = {"steps": (len(steps),), "curve": curve.shape, "final": final.shape}
        fine = curve.dtype == np.float32 and final.dtype == np.float64 and curve.shape[1:2] <= (analysis.BINS_LIMIT,)
        if shapes != expected or not fine or not np.isfinite(curve).all() or np.isinf(final).any():
            raise FileError(f"its arrays do not fit (expected {expected}, found {shapes})")
        found = Result(
            config, tuple(steps), curve, final, {"estimate": first_estimate(facts["audit"])} | facts["audit"],
            facts["versions"], tuple(facts["devices"]), facts["complete"] is True, **windows,
        )  # fmt: skip
        require_plain(found)
        return found
    except UsageError as error:
        raise FileError(f"result {number} cannot be used: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"result {number} cannot be used: {type(error).__name__} {error}") from error


def write_pack(path: Path, results: Sequence[Result]) -> None:
    """Write results as a pack; the file appears when it is complete."""
    files.write(path, encode_pack(results))


def read_pack(path: Path) -> list[Result]:
    """Read a pack; raise FileError, and return nothing of it, if any part of it is not as it must be."""
    try:
        return parse_pack(files.read(path.parent, path.name, SIZE_LIMIT))
    except FileError as error:
        raise FileError(f"pack {path}: {error}") from error


class Placed(NamedTuple):
    """A result, and its place for messages; an empty place if unknown."""

    result: Result
    place: str


def merged(*several: Iterable[Result], places: Sequence[str] = ()) -> list[Result]:
    """Return results of several places as one list, each once; two different ones of one seed are refused.

    A result takes the place of one of the same seeds that it continues. `places` says where each of `several` lies.
    """
    kept: list[Placed] = []
    owners: dict[tuple[str, int], int] = {}
    simulators: dict[str, Placed] = {}
    seeds: Counter[str] = Counter()
    for results, place in zip(several, [*places, *[""] * (len(several) - len(places))], strict=True):
        for result in results:
            new, key = Placed(result, place), result.key
            require_same_simulator(simulators.setdefault(result.config.short_task, new), new)
            known = {owners[key, seed] for seed in result.seeds if (key, seed) in owners}
            if not known:
                owners |= {(key, seed): len(kept) for seed in result.seeds}
                kept.append(new)
                seeds[key] += len(result.seeds)
                if seeds[key] > SEEDS:
                    name = f"{result.config.short_task}, {result.config.algorithm}"
                    raise UsageError(f"{name} has {seeds[key]:,} seeds, at most {SEEDS:,} are compared; leave some out")
                continue
            [number, *others] = known
            old = kept[number]
            if others or not (continues(old.result, result) or continues(result, old.result)):
                name = f"{result.config.short_task}, {result.config.algorithm}, seeds {seeds_of(result)}"
                raise UsageError(f"two different results of {name}{both(old, new)}; leave one out")
            if not continues(old.result, result):
                kept[number] = new
    return [one.result for one in kept]


def continues(later: Result, earlier: Result) -> bool:
    """Return whether a result is the other one, or the same run with more steps, or the end of one that had none."""
    if later.seeds != earlier.seeds:
        return False
    more = sum(later.steps) - sum(earlier.steps)
    if more >= 0 and later.complete and not earlier.complete:
        return True
    if more > 0 and later.complete >= earlier.complete:
        return same_curve(later, earlier, min(earlier.steps) // max(later.bin, earlier.bin))  # bins whole in both
    return alike(later, earlier)


def alike(later: Result, earlier: Result) -> bool:
    """Return whether two results are of the same run and steps, the second perhaps as an earlier version read it."""
    same = dataclasses.replace(earlier, audit=later.audit)
    if later.bin < earlier.bin and same_curve(later, earlier, len(earlier.curve[0])):
        own = {name: getattr(later, name) for name in ("curve", "final", *WINDOWS)}
        same = dataclasses.replace(same, **own)
    return encode_pack([later]) == encode_pack([same])


def same_curve(one: Result, other: Result, bins: int) -> bool:
    """Return whether two curves agree in the first `bins` of the larger bins; False for fewer than one."""
    size = max(one.bin, other.bin)
    x, y = (analysis.joined(result.curve, size // result.bin)[:, :bins] for result in (one, other))
    if bins < 1 or x.shape != y.shape or one.bin == other.bin:
        return bins > 0 and np.array_equal(x, y)
    return np.allclose(x, y, atol=1e-6 * np.abs(y).max(axis=(0, 1)))  # their means are of single precision


def require_same_simulator(old: Placed, new: Placed) -> None:
    """Raise UsageError if two results of one task come from different versions of EnvPool."""
    versions = [str(one.result.versions.get("envpool")) for one in (old, new)]
    if versions[0] != versions[1]:
        task, found = new.result.config.short_task, " and ".join(versions)
        rule = f"results of EnvPool {found}, which cannot be compared{both(old, new)}"
        raise UsageError(f"{task} has {rule}; leave one out")


def both(old: Placed, new: Placed) -> str:
    """Return where two results lie, if it is known."""
    return f": {old.place} and {new.place}" if old.place and new.place else ""


def seeds_of(result: Result) -> str:
    """Return the seeds of a result in words."""
    return f"{result.seeds[0]} to {result.seeds[-1]}"
