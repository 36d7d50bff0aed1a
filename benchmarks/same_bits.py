"""Whether two checkouts train the same bits on this machine: a refactoring must not change a result.

    python benchmarks/same_bits.py OLD NEW [--only cheetah-run/geppo] [--jobs 2]

OLD and NEW are directories with `src/gpi`. The command line of each trains the same small runs: six algorithms as the
paper has them, GePPO and GeTRPO also in the other trust modes, on cheetah-run (EnvPool, continuous), CartPole-v1
(EnvPool, discrete) and the environment in Python beside this file. metrics.csv, audit.csv, episodes.csv and all
policies are compared byte for byte, columns by what they mean: one that only NEW has is left out. Three seeds on two
devices, so that a member that only fills a device is there too; 12 n steps are 12 iterations with a buffer of 4 slots,
6 on-policy. The exit code is 0 only if everything is the same.

Compiled programs are shared through one cache: where both checkouts give XLA the same program, it is compiled once.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ENVIRONMENT = Path(__file__).with_name("python_env.py")
TABLES = ("metrics.csv", "audit.csv", "episodes.csv")
MODES = [(name, "paper") for name in ("ppo", "geppo", "trpo", "getrpo", "vmpo", "gevmpo")]
MODES += [(name, trust) for name in ("geppo", "getrpo") for trust in ("adaptive", "strict", "keep")]
SAMPLES = {"cheetah-run": 1024, "CartPole-v1": 256, "python_env:Walk": 256}  # n of each task
ENVS = {"python_env:Walk": 2}  # environments per agent, where not 1
SEEDS, EPOCHS, DEVICES = 3, 2, 2
TIMEOUT = 600  # seconds that no run should need


class Case(NamedTuple):
    """One run, trained by both checkouts."""

    task: str
    algorithm: str
    trust: str

    @property
    def name(self) -> str:
        return f"{self.task}/{self.algorithm}/{self.trust}"

    def options(self, steps: int) -> list[str]:
        n = SAMPLES[self.task]
        settings = {
            "algorithm": self.algorithm, "trust": self.trust, "seeds": SEEDS, "epochs": EPOCHS, "n": n,
            "num-envs": ENVS.get(self.task, 1), "steps": steps or 12 * n,
        }  # fmt: skip
        return [self.task, *(text for key, value in settings.items() for text in (f"--{key}", str(value)))]


class Verdict(NamedTuple):
    """What the comparison of one case showed."""

    case: Case
    iterations: str
    files: int
    difference: str  # the first one; empty if there is none


def environment(checkout: Path, cache: Path, devices: int = DEVICES) -> dict[str, str]:
    """The environment of a run: everything but the code is the same for both checkouts."""
    pinned = {"PYTHONPATH": str(checkout / "src"), "JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONSAFEPATH": ""}
    return os.environ | {"PJRT_NPROC": os.environ.get("PJRT_NPROC", str(devices))} | pinned


def require_own_code(checkout: Path, folder: Path) -> None:
    """Refuse a checkout whose code would not be what runs, for instance because another is installed."""
    command = [sys.executable, "-c", "import gpi; print(gpi.__file__)"]
    env = environment(checkout, folder)
    found = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT)
    if not Path(found.stdout.strip()).resolve().is_relative_to((checkout / "src").resolve()) or not found.stdout:
        raise SystemExit(f"{checkout}: `import gpi` finds {found.stdout.strip() or found.stderr.strip()[-200:]!r}")


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, marked if files under src differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, timeout=TIMEOUT)
        return done.stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "no commit") + (" + changes" if git("diff", "HEAD", "src") else "")


def train(case: Case, checkout: Path, out: Path, cache: Path, steps: int) -> str:
    """Train one run with the code of a checkout; returns what went wrong, in one line."""
    command = [sys.executable, "-m", "gpi.cli", "train", *case.options(steps), "--out", str(out)]
    env, work = environment(checkout, cache), out.parent
    try:
        done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"no end after {TIMEOUT} s"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return f"exit code {done.returncode}: {last[:120]}" if done.returncode else ""


def compare(case: Case, checkouts: Sequence[Path], folder: Path, chosen: argparse.Namespace) -> Verdict:
    """Train a case with both checkouts, one after the other, and compare what they wrote."""
    outs, cache = [], chosen.cache.resolve() if chosen.cache else folder / "cache"
    for side, checkout in zip(("old", "new"), checkouts, strict=True):
        work = folder / case.name.replace("/", "-").replace(":", "-") / side
        work.mkdir(parents=True)
        shutil.copy(ENVIRONMENT, work)
        outs.append(work / "run")
        problem = train(case, checkout, outs[-1], cache, chosen.steps)
        if problem:
            return Verdict(case, "", 0, f"{side}: {problem}")
    names = sorted({path.name for out in outs for path in out.glob("policy-*.safetensors")})
    files = [name for name in (*TABLES, *names) if name != chosen.without]
    differences = [first_difference(name, *outs) for name in files]
    if len(names) != SEEDS:
        differences.append(f"{len(names)} policies instead of {SEEDS}")
    iterations = json.loads((outs[0] / "DONE").read_text())["iterations"]
    return Verdict(case, str(iterations), len(files), next(filter(None, differences), ""))


def first_difference(name: str, old: Path, new: Path) -> str:
    """Where a file of two runs first differs, in a few words; nothing if it does not."""
    missing = [side for side, out in (("old", old), ("new", new)) if not (out / name).is_file()]
    if missing:
        return f"{name} is missing in {' and '.join(missing)}"
    a, b = ((path / name).read_bytes() for path in (old, new))
    if name.endswith(".csv"):
        a, b = by_meaning(name, a, b)
    if a == b:
        return ""
    return f"{name}, " + (cell_of(a, b) if name.endswith(".csv") else tensor_of(a, b))


def by_meaning(name: str, *tables: bytes) -> Iterator[bytes]:
    """The columns that all tables have, by their names today: `tv` and `penalty` once had another meaning in each."""
    kind = "abs" if name == "metrics.csv" else "lost"
    found = [[line.split(",") for line in table.decode().splitlines()] for table in tables]
    for rows in found:
        rows[0] = [f"{x}_{kind}" if x in ("tv", "penalty") else x for x in rows[0]]
    shared = set(found[0][0]).intersection(*(rows[0] for rows in found))
    for rows in found:
        places = [place for place, x in enumerate(rows[0]) if x in shared]
        order = sorted(places, key=lambda place: rows[0][place])
        yield "\n".join(",".join(row[place] for place in order) for row in rows).encode()


def cell_of(a: bytes, b: bytes) -> str:
    """The first cell in which two tables differ."""
    rows, others = ([line.split(",") for line in x.decode().splitlines()] for x in (a, b))
    for number, (row, other) in enumerate(zip(rows, others, strict=False), start=1):
        for column, x, y in zip(rows[0], row, other, strict=False):
            if x != y:
                return f"line {number}, {column}: {x or 'nothing'} / {y or 'nothing'}"
        if len(row) != len(other):
            return f"line {number}: {len(row)} / {len(other)} columns"
    return f"{len(rows)} / {len(others)} lines"


def tensor_of(a: bytes, b: bytes) -> str:
    """The first array in which two safetensors files differ."""
    begin = 8 + int.from_bytes(a[:8], "little")
    if a[:begin] != b[:begin]:
        return "header"
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    for name, about in json.loads(a[8:begin]).items():
        if name != "__metadata__" and about["data_offsets"][0] <= at - begin < about["data_offsets"][1]:
            return f"array {name}"
    return f"byte {at}"


def table(verdicts: Iterable[Verdict]) -> str:
    """The verdicts for people."""
    rows = [("task", "algorithm", "trust", "iterations", "files", "old and new")]
    rows += [(*v.case, v.iterations, str(v.files), v.difference or "same") for v in verdicts]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join([*(f"{x:<{w}}" for x, w in zip(row, widths, strict=False)), row[5]]) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def chosen_cases(only: str) -> list[Case]:
    """The cases whose names contain the pattern, or that have each of its parts: `cheetah-run/strict`."""
    cases = [Case(task, *mode) for task in SAMPLES for mode in MODES]
    parts = only.split("/")
    return [case for case in cases if only in case.name or all(part in case for part in parts)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="checkout with src/gpi")
    parser.add_argument("new", type=Path, help="checkout with src/gpi")
    parser.add_argument("--only", default="", metavar="PATTERN", help="parts of TASK/ALGORITHM/TRUST: geppo/strict")
    parser.add_argument("--steps", type=int, default=0, help="environment steps per agent (default: 12 n)")
    parser.add_argument("--jobs", type=int, default=2, help="cases at once (default: 2)")
    parser.add_argument("--without", choices=TABLES, default="", help="a table that the new checkout means to change")
    parser.add_argument("--cache", type=Path, help="directory for compiled programs (default: a temporary one)")
    chosen = parser.parse_args()
    checkouts = [chosen.old.resolve(), chosen.new.resolve()]
    cases = chosen_cases(chosen.only)
    if not cases:
        raise SystemExit(f"--only {chosen.only} matches no case; use a task, an algorithm or a trust mode")
    began, verdicts = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(chosen.jobs) as workers:
        folder = Path(name)
        for checkout in checkouts:
            require_own_code(checkout, folder)
        print(f"old {commit_of(checkouts[0])}, new {commit_of(checkouts[1])}: {len(cases)} cases", flush=True)
        found = workers.map(lambda case: compare(case, checkouts, folder, chosen), cases)
        for verdict in found:
            verdicts.append(verdict)
            progress = f"[{time.perf_counter() - began:4.0f} s, {len(verdicts)} of {len(cases)}]"
            print(f"{progress} {verdict.case.name}: {verdict.difference or 'same'}", flush=True)
    same = sum(not verdict.difference for verdict in verdicts)
    print(f"\n{table(verdicts)}\n\n{same} of {len(cases)} cases are the same, bit for bit")
    return 0 if same == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
