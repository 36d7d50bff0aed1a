"""What must pass on every Python from 3.11 on that this machine has, each from a fresh clone or a fresh wheel.

    python tools/pythons.py test [PYTHON ...]    # make setup, make lint and the quick tests, in a clone of HEAD
    python tools/pythons.py dist [PYTHON ...]    # the wheel alone, by pip and by uv: doctor, training, study, exports

`make test-pythons` and `make dist` run it. The table at the end has a line for each: exit code, minutes, the last line,
and the memory of the largest process. Logs are kept where something failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
OLDEST = (3, 11)
ASK = "import ensurepip, sys; print(*sys.version_info[:3])"
STUDY = """
tasks = ["CartPole-v1"]
seeds = 2
steps = 4096

[[grid]]
algorithm = ["ppo", "geppo"]
"""
USE = [  # with the wheel alone, in an empty directory that has study.toml
    "gpi doctor",
    "gpi train cheetah-run --steps 4096 --seeds 2 --out run",
    "gpi export run --format numpy --out numpy",
    "gpi export run --format onnx --out policy.onnx",
    "gpi study show quick",
    "gpi study run study.toml --out study",
    "gpi study report study",
]
TEST = ["make setup PYTHON={python}", "make lint", ".venv/bin/pytest -n 2 --dist loadgroup"]
INSTALLERS = {
    "pip": ["{python} -m venv venv", "venv/bin/python -m pip install -q {wheel}"],
    "uv": ["{uv} venv -q --python {python} venv", "{uv} pip install -q --python venv/bin/python {wheel}"],
}


class Row(NamedTuple):
    """How a command ended."""

    python: str
    what: str
    code: int
    minutes: float
    last: str
    memory: float
    """GB that the largest process held at once."""


def pythons(named: Sequence[str]) -> dict[str, str]:
    """Return the newest Python of every minor version that starts and can make environments, by its version."""
    places = [Path(place) for place in os.environ["PATH"].split(os.pathsep)]
    places += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    candidates = list(named) or [
        str(path) for place in places for path in [place / "python3", *sorted(place.glob("python3.[0-9][0-9]"))]
    ]
    found: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {}
    for path in candidates:
        try:
            asked = subprocess.run([path, "-c", ASK], capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        version = tuple(map(int, asked.stdout.split())) if asked.returncode == 0 else ()
        if version[:2] >= OLDEST and found.get(version[:2], ((), ""))[0] < version:
            found[version[:2]] = version, path
    return {".".join(map(str, version)): path for version, path in (found[minor] for minor in sorted(found))}


def run(python: str, what: str, command: str, where: Path, log: Path) -> Row:
    """Run a command; return how it ended. Nothing of this process's own environment of Python reaches it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    path = os.pathsep.join([str(where / "venv" / "bin"), clean["PATH"]])
    began = time.monotonic()
    with log.open("a") as file:
        print(f"$ {command}", file=file, flush=True)
        process = subprocess.Popen(
            command, shell=True, cwd=where, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**clean, "PATH": path},
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    last = (log.read_text().strip().splitlines() or [""])[-1].strip("= ")
    return Row(python, what, process.returncode, (time.monotonic() - began) / 60, last[:90], used.ru_maxrss / 2**20)


def test(python: str, path: str, where: Path) -> Iterator[Row]:
    """Yield how the commands of a developer end in a fresh clone; stop at the first that fails."""
    clone = where / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    for command in TEST:
        row = run(python, command.replace(" PYTHON={python}", ""), command.format(python=path), clone, where / "log")
        yield row
        if row.code:
            return


def dist(python: str, path: str, where: Path) -> Iterator[Row]:
    """Yield how the wheel does without the project around it, by each installer; stop at the first that fails."""
    [wheel] = (ROOT / "dist").glob("*.whl")
    for installer, commands in INSTALLERS.items():
        empty = where / installer
        empty.mkdir()
        (empty / "study.toml").write_text(STUDY)
        for command in [*commands, *USE]:
            words = command.format(python=path, uv=Path(sys.executable).with_name("uv"), wheel=f"'{wheel}[onnx]'")
            row = run(python, f"{installer}: {command}", words, empty, where / "log")
            yield row
            if row.code:
                return
        shutil.rmtree(empty)


def build() -> None:
    """Build wheel and sdist into dist/, and check what a package index would show."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for words in (["build", "--no-isolation"], ["twine", "check", "--strict", "dist/*"]):
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        print(done.stdout.strip().splitlines()[-1], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["test", "dist"])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="(default: all that are found)")
    parsed = parser.parse_args()
    if parsed.what == "dist":
        build()
    failed = 0
    for python, path in pythons(parsed.pythons).items():
        where = Path(tempfile.mkdtemp(prefix=f"gpi-{python}-"))
        rows = []
        for row in (test if parsed.what == "test" else dist)(python, path, where):
            rows.append(row)
            ending = f"{row.minutes:5.1f} min | {row.memory:4.1f} GB | {row.last}"
            print(f"| {row.python} | {row.what} | {row.code} | {ending} |", flush=True)
        if rows[-1].code:
            failed += 1
            print(f"Python {python} failed; all that was said is in {where / 'log'}", flush=True)
        else:
            shutil.rmtree(where)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
