"""How fast two checkouts train, iteration by iteration in turn: a refactoring must not cost speed.

    python benchmarks/side_by_side.py OLD NEW [--pairs 200] [--only geppo]

OLD and NEW are directories with `src/gpi`. One process for each trains the same five seeds on cheetah-run through
`gpi.train`; a callback stops it after every iteration until it is its turn, so that only one of the two computes at a
time, and the order changes from pair to pair, because shared machines are noisy. The figure is the median over pairs of
old seconds / new seconds, everything between two callbacks included; at least 0.97 is required. The first pairs are
dropped. Figures are appended to benchmarks/side_by_side.jsonl.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from same_bits import commit_of, environment, require_own_code

RECORD = Path(__file__).with_name("side_by_side.jsonl")
REQUIRED = 0.97
DROPPED = 5  # pairs at the beginning
STEPS = 10**9  # more than any run here takes: it is ended from outside


class Child:
    """A process that trains with the code of a checkout, one iteration for each token."""

    def __init__(self, checkout: Path, algorithm: str, folder: Path, cache: Path):
        """Start it and wait for its first iteration, which holds what was to be compiled."""
        self.out, self.log = folder / "run", folder / "log"
        folder.mkdir()
        command = [sys.executable, __file__, "--child", algorithm, str(self.out)]
        env = environment(checkout, cache, len(os.sched_getaffinity(0)))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log,
            )  # fmt: skip
        self._seconds()

    def iterate(self) -> float:
        """Let it do one iteration; returns the seconds that took, by its own clock."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        return self._seconds()

    def _seconds(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a run ended with exit code {self.process.wait()}:\n{self.log.read_text()[-3000:]}")
        return float(line)

    def versions(self) -> dict[str, str]:
        """Versions of what it runs on, as its run directory has them."""
        return json.loads((self.out / "config.json").read_text())["versions"]

    def close(self) -> None:
        """End the process that this object started."""
        self.process.kill()
        self.process.wait()


def child(algorithm: str, out: Path) -> None:
    """Train; after every iteration write its seconds, and wait for a line."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not reach the pipe
    import gpi

    began = time.perf_counter()

    def take_turns(_: Any) -> bool:
        nonlocal began
        print(time.perf_counter() - began, file=pipe)
        ended = not sys.stdin.readline()
        began = time.perf_counter()
        return ended

    gpi.train(algorithm, "cheetah-run", out=out, quiet=True, callbacks=[take_turns], seeds=5, steps=STEPS)


def measure(algorithm: str, checkouts: Sequence[Path], pairs: int) -> tuple[list[tuple[float, float]], list[Any]]:
    """Seconds of each pair of iterations, old and new, and the versions of both."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        sides = []
        for side, checkout in zip(("old", "new"), checkouts, strict=True):
            sides.append(Child(checkout, algorithm, Path(name) / side, Path(name) / "cache"))
            stack.callback(sides[-1].close)
        found = []
        for i in range(pairs + DROPPED):
            pair = [0.0, 0.0]
            for side in (0, 1) if i % 2 else (1, 0):
                pair[side] = sides[side].iterate()
            found.append((pair[0], pair[1]))
            if (i + 1) % 20 == 0:
                print(f"{algorithm}: {i + 1} of {pairs + DROPPED} pairs", flush=True)
        return found[DROPPED:], [side.versions() for side in sides]


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval that holds the true median with at least this probability, by order statistics of 6 or more."""
    n, ordered = len(values), sorted(values)
    rank, below = 0, 0.5**n  # the probability that at most `rank` of n values lie below the median
    while rank < n // 2 and below <= (1.0 - level) / 2:
        rank += 1
        below += math.comb(n, rank) * 0.5**n
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[n - 1 - rank]


def summarise(algorithm: str, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Print and return what the pairs of one algorithm show."""
    ratios = [old / new for old, new in pairs]
    quartiles, interval = quantiles(ratios, n=4)[::2], median_interval(ratios)
    seconds = [median(pair[i] for pair in pairs) for i in (0, 1)]
    verdict = "kept" if median(ratios) >= REQUIRED else "BROKEN"
    verdict += ", but the interval holds both" if interval[0] < REQUIRED <= interval[1] else ""
    print(
        f"{algorithm:8} {1e3 * seconds[0]:6.1f} ms old, {1e3 * seconds[1]:6.1f} ms new, {len(pairs)} pairs: old/new "
        f"{median(ratios):.3f}, 95 % {interval[0]:.3f} to {interval[1]:.3f} (quartiles {quartiles[0]:.3f} to "
        f"{quartiles[1]:.3f}); at least {REQUIRED}: {verdict}",
        flush=True,
    )
    return {
        "algorithm": algorithm, "pairs": len(pairs), "old_s": seconds[0], "new_s": seconds[1],
        "ratio": median(ratios), "interval": interval, "quartiles": quartiles,
    }  # fmt: skip


def main() -> None:
    """Measure, print, record."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("old", type=Path, help="checkout with src/gpi")
    options.add_argument("new", type=Path, help="checkout with src/gpi")
    options.add_argument("--pairs", type=int, default=200)
    options.add_argument("--only", metavar="ALGORITHM", help="one algorithm (default: geppo, then getrpo)")
    chosen = options.parse_args()
    checkouts = [chosen.old.resolve(), chosen.new.resolve()]
    commits = [commit_of(checkout) for checkout in checkouts]
    print(f"old {commits[0]}, new {commits[1]}", flush=True)
    for checkout in checkouts:
        require_own_code(checkout, Path(tempfile.gettempdir()))
    results, versions = [], []
    for algorithm in [chosen.only] if chosen.only else ["geppo", "getrpo"]:
        pairs, versions = measure(algorithm, checkouts, chosen.pairs)
        results.append(summarise(algorithm, pairs))
    facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count(), "load": os.getloadavg()}
    sides = {side: {"commit": c, "versions": v} for side, c, v in zip(("old", "new"), commits, versions, strict=True)}
    with RECORD.open("a", encoding="utf-8") as file:
        print(json.dumps(facts | sides | {"results": results}), file=file)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
