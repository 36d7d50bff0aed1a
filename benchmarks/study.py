"""How much of a machine a study uses: its steps per second beside the best single run's, in alternating minutes.

    python benchmarks/study.py [--turn 60] [--steps 400000] [--against 5 10] [--short]

Contestants take turns, and all processes of the others are stopped (SIGSTOP) meanwhile, because shared machines are
noisy:

- the study: `gpi study run` of four jobs of GePPO on cheetah-run, 5 seeds each, from its start to its end, with an
  empty compilation cache: starting, compiling, saving and the ends of jobs are in its figure;
- single runs of `gpi train` that have the whole machine, with 5 seeds and with 10, which never end: what they need
  until their first iteration is *not* in their figures.

A figure is the steps of all seeds over the seconds of the turns; the study must have at least 90 % of the better single
run. With the default number of steps a job takes two minutes and more on two cores; what it took is printed. Figures
are appended to benchmarks/study.jsonl.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from same_bits import commit_of

RECORD = Path(__file__).with_name("study.jsonl")
REQUIRED = 0.90
STUDY = """
name = "packing"
tasks = ["cheetah-run"]
seeds = 5
steps = {steps}
[[grid]]
algorithm = "geppo"
lr = [1e-4, 2e-4, 3e-4, 4e-4]
"""


class Contestant:
    """A process, with all that it starts, that can be stopped and let go on; and the runs whose steps count."""

    def __init__(self, name: str, command: list[str], runs: Path, seeds: int, cache: Path):
        """Start it; its own output goes to a file."""
        self.name, self.runs, self.seeds = name, runs, seeds
        self.turns: list[tuple[int, float]] = []  # steps and seconds
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
        self.log = runs.parent / f"{runs.name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpi", *command], env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def pids(self) -> list[int]:
        """Return the process and all below it, parents first."""
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    todo += [int(child) for child in path.read_text().split()]
        return found

    def send(self, number: int) -> None:
        """Send a signal to all of its processes; a process that is stopped starts no other."""
        for pid in self.pids() if number == signal.SIGSTOP else reversed(self.pids()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def steps(self) -> int:
        """Return the steps that all seeds of all its runs have taken."""
        return self.seeds * sum(last_steps(path) for path in self.runs.rglob("timing.csv"))

    def turn(self, seconds: float) -> None:
        """Let it run for so long, or until it ends."""
        before, began = self.steps(), time.monotonic()
        self.send(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        spent = time.monotonic() - began
        self.send(signal.SIGSTOP)
        time.sleep(0.2)  # rows that were being written
        self.turns.append((self.steps() - before, spent))

    def rate(self) -> float:
        """Return steps per second over all turns."""
        return sum(steps for steps, _ in self.turns) / max(1e-9, sum(seconds for _, seconds in self.turns))

    def close(self) -> None:
        """End all of its processes."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def last_steps(timing: Path) -> int:
    """Return the steps in the last whole row of a table."""
    rows = timing.read_text().rpartition("\n")[0].splitlines()
    return int(rows[-1].split(",")[1]) if len(rows) > 1 else 0


def contestants(folder: Path, steps: int, against: list[int], stack: ExitStack) -> tuple[Contestant, list[Contestant]]:
    """Start the study and the single runs, all of them stopped; single runs have passed their first iteration."""
    singles = []
    for seeds in against:
        out = folder / f"single-{seeds}"
        words = ["train", "cheetah-run", "--algorithm", "geppo", "--seeds", str(seeds), "--steps", "1e9"]
        one = Contestant(f"one run, {seeds} seeds", [*words, "--out", str(out)], out, seeds, folder / "cache")
        stack.callback(one.close)
        while one.steps() == 0:
            if one.process.poll() is not None:
                raise SystemExit(one.log.read_text())
            time.sleep(0.2)
        one.send(signal.SIGSTOP)
        singles.append(one)
    (folder / "packing.toml").write_text(STUDY.format(steps=steps))
    words = ["study", "run", str(folder / "packing.toml"), "--out", str(folder / "study")]
    (folder / "study").mkdir()
    study = Contestant("study", words, folder / "study", 5, folder / "cache-of-study")
    study.send(signal.SIGSTOP)
    stack.callback(study.close)
    return study, singles


def measure(turn: float, steps: int, against: list[int]) -> dict[str, object]:
    """Let all take turns until the study has ended; return the figures."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        study, singles = contestants(Path(name), steps, against, stack)
        while study.process.poll() is None:
            for one in (study, *singles):
                one.turn(turn)
                print(f"{one.name:18} {one.turns[-1][0] / one.turns[-1][1]:9,.0f} steps/s", flush=True)
        if study.process.returncode:
            raise SystemExit(study.log.read_text())
        print(study.log.read_text())
        logs = [json.loads(path.read_text()) for path in (Path(name) / "study").rglob("DONE")]
        waited = sum(seconds for one in singles for _, seconds in one.turns) / sum(s for _, s in study.turns)
        seconds = statistics.median(about["seconds"] for about in logs) / (1.0 + waited)
        best = max(singles, key=Contestant.rate)
        return {
            "study": study.rate(), "singles": {one.name: one.rate() for one in singles}, "best": best.name,
            "ratio": study.rate() / best.rate(), "turns": {one.name: one.turns for one in (study, *singles)},
            "job_seconds": seconds, "steps": steps,
        }  # fmt: skip


def main() -> None:
    """Measure, print and keep the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--turn", type=float, default=60.0, help="seconds of a turn")
    options.add_argument("--steps", type=int, default=400_000, help="of each seed of the study's jobs")
    options.add_argument("--against", type=int, nargs="+", default=[5, 10], help="seeds of the single runs")
    options.add_argument("--short", action="store_true", help="only to see that it works: nothing is kept")
    chosen = options.parse_args()
    turn, steps = (10.0, 8_192) if chosen.short else (chosen.turn, chosen.steps)
    figures = measure(turn, steps, chosen.against)
    verdict = "kept" if figures["ratio"] >= REQUIRED else "BROKEN"  # type: ignore[operator]
    print(
        f"study {figures['study']:,.0f} steps/s, best single run ({figures['best']}) "
        f"{figures['singles'][figures['best']]:,.0f}: {figures['ratio']:.3f}; at least {REQUIRED}: {verdict}; "  # type: ignore[index]
        f"a job took about {figures['job_seconds']:.0f} s of its own turns"
    )
    if not chosen.short:
        about = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit_of(Path(__file__).parents[1]),
            "machine": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0)),
        }  # fmt: skip
        with RECORD.open("a") as file:
            file.write(json.dumps(about | figures) + "\n")


if __name__ == "__main__":
    main()
