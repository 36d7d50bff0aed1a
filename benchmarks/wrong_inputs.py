"""What people type by mistake: 181 inputs, 16 about permissions and 6 about a full disk, each judged.

    python benchmarks/wrong_inputs.py                    # all, about ten minutes on 2 cores
    python benchmarks/wrong_inputs.py --only full        # inputs, permissions or full
    python benchmarks/wrong_inputs.py --match resume     # those whose command has this word
    python benchmarks/wrong_inputs.py --skip 1000000     # not those

A wrong input must end by itself, with one line on stderr and the exit code that is written beside it here; a right one
with 0, and neither with a traceback. Root has no limits, so commands about permissions run without the capabilities
that make it so; those about a full disk need root, to mount a small one, and are left out otherwise.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HUMBLE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
SECONDS = 120
TRAINS = 143  # a right input that trains for minutes: it is ended as soon as it has begun

INPUTS = r"""
0     :
0     : --version
2     : trian cheetah-run
2     : train
2     : train cheetah-rnu
2     : train Cheetah-Run
2     : train cheetah_run
2     : train dmc/cheetah-run --steps 0
2     : train cheetah-run --algorithm gepo
2     : train cheetah-run --algorithm GePPO --steps -5
2     : train cheetah-run --seeds 0
2     : train cheetah-run --seeds -3
2     : train cheetah-run --seeds 1000000
2     : train cheetah-run --seed -1
2     : train cheetah-run --steps abc
2     : train cheetah-run --steps 1e6 --seeds 1.5
2     : train cheetah-run --steps 10**6
2     : train cheetah-run --steps 999999999999999999999
2     : train cheetah-run --kappa 2
2     : train cheetah-run --kappa nan
2     : train cheetah-run --eps 0
2     : train cheetah-run --eps inf
2     : train cheetah-run --B 0
2     : train cheetah-run --B 1.5
2     : train cheetah-run --n 100
2     : train cheetah-run --n 1000000000 --no-reset-each-batch
2     : train cheetah-run --gamma 1
2     : train cheetah-run --gamma 1.2
2     : train cheetah-run --lr -1
2     : train cheetah-run --lr 1e30
2     : train cheetah-run --hidden 64x64
2     : train cheetah-run --hidden 0
2     : train cheetah-run --hidden ''
2     : train cheetah-run --hidden 1000000,1000000
2     : train cheetah-run --minibatches 5000
143   : train cheetah-run --minibatches 7
2     : train cheetah-run --num-envs 0
2     : train cheetah-run --num-envs 8
2     : train cheetah-run --backend gpu
2     : train cheetah-run --backend gymnasium
2     : train cheetah-run --trust yes
2     : train cheetah-run --threads -1
2     : train cheetah-run --checkpoint-every 0
2     : train cheetah-run --learning-rate 3e-4
0     : train cheetah-run --algo ppo --step 10
2     : train cheetah-run --out /proc/x
2     : train cheetah-run --out /dev/null
2     : train cheetah-run --out afile
2     : train cheetah-run --out empty/../afile/sub
2     : train cheetah-run --out spin
2     : train cheetah-run --out ''
2     : train ''
2     : train 漢字-🤖-v0
6     : train os:system
2     : train nomodule:X-v0
2     : train ../evil:X
2     : train Pendulum-v0
0     : train FrozenLake-v1 --steps 5
2     : check
2     : check CartPole
2     : check 3
2     : resume
2     : resume empty
2     : resume nowhere
2     : resume afile
2     : resume spin --steps 10
2     : resume spin --kappa 1
2     : resume spin --env CartPole-v1 --steps 50000
2     : eval empty
3     : eval afile
2     : eval spin --episodes 0
2     : eval spin --episodes -1
2     : eval spin --seed 9
2     : eval spin --env CartPole-v1
2     : eval spin --max-steps 0
3     : eval spin/config.json
0     : eval spin/policy-0.safetensors --episodes 1
2     : record spin --out film.avi
2     : record spin --out /nonexistent/film.mp4
2     : record spin --steps 0
2     : export spin --format torch
2     : export spin --out afile
2     : export spin --out empty --seed 77
3     : export spin/metrics.csv
2     : plot
2     : plot empty
2     : plot spin --out curves.xyz
2     : plot spin --out ''
2     : plot spin --out /nonexistent/c.png
0     : plot spin spin --out a.png
2     : audit empty
2     : audit spin --out x.doc
2     : mixture --B -1
2     : mixture --B 1e9
0     : mixture --B 100000
2     : mixture --kappa foo
2     : mixture --plot /nonexistent/m.png
2     : tasks extra
0     : help
0     : help train
2     : help nosuch
2     : tune cheetah-run
2     : doctor extra
2     : train cheetah-run --epochs 9223372036854775808
2     : train cheetah-run --epochs 1e22
2     : train cheetah-run --hidden 8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8
2     : train cheetah-run --hidden 99999999999999999999999999
2     : train cheetah-run --hidden -64
2     : train cheetah-run --minibatches 0
2     : train cheetah-run --n 1e30
2     : train cheetah-run --num-envs 1e9 --n 1e9
2     : train cheetah-run --threads 1e5
2     : train cheetah-run --checkpoint-every 1e15
2     : train cheetah-run --eval-every -1
2     : train cheetah-run --eval-every 1 --eval-episodes 1e9
2     : train cheetah-run --max-grad-norm inf
2     : train cheetah-run --kl-slack 0.5
2     : train cheetah-run --kl-slack 1e9
2     : train cheetah-run --value-lr 0
2     : train cheetah-run --step-timeout -1
2     : train cheetah-run --freeze-normaliser -1
2     : train cheetah-run --normaliser none
2     : train cheetah-run --eps 2.5
2     : train cheetah-run --seed 2097151 --seeds 2
2     : train cheetah-run --return-range 5
2     : train cheetah-run --return-range=1,0
2     : train cheetah-run --return-range=nan,1
2     : train cheetah-run --return-range=0,1e31
2     : train cheetah-run --return-range=a,b
2     : train cheetah-run --device cpu
2     : train cheetah-run --wandb
2     : train cheetah-run --activation relu
2     : train cheetah-run --lr-schedule linear
2     : train tank:nothing
2     : train --config nowhere.toml
2     : train --config settings.yaml
3     : train --config settings.json
2     : train --config typo.toml
2     : train --config epochs.toml
2     : train --config layers.toml
2     : train --config seeds.toml
2     : train --config own.toml
2     : train --config no_task.toml
3     : train --config broken.toml
2     : train --config empty
2     : check tank:nothing
2     : check ''
2     : check Pendulum-v1 extra
2     : resume spin --steps 0
2     : resume spin --steps many
2     : resume spin --allow-drift=yes
2     : resume spin --env tank:make
2     : eval spin --env tank:make
2     : eval spin --env nomodule:X
2     : eval spin --episodes inf
2     : eval spin --seed x
2     : eval spin --seed -1
2     : eval spin --seed best
2     : eval spin --policy best
2     : eval spin --policy worst
2     : record spin --env tank:make --out film.gif
2     : record spin --size 0x0
2     : record spin --size big
2     : record spin --fps 0
2     : record spin --fps nan
2     : record spin --out film
2     : record spin --out ''
2     : record spin --camera nosuch --out film.gif
2     : export spin --seed -1
2     : export spin --policy best
2     : export nowhere
2     : plot spin --label a --label b
2     : plot nowhere
2     : plot afile
2     : audit nowhere
2     : audit spin empty
2     : mixture --eps 3
2     : mixture --eps 0
2     : mixture --kappa 1.5
2     : mixture --n 0
2     : mixture --n 1e400
"""
FILES = {
    "settings.yaml": "task: cheetah-run\n", "settings.json": '{"task": "cheetah-run", "seeds": 5}\n',
    "typo.toml": 'task = "cheetah-run"\nkapa = 1\n', "epochs.toml": f'task = "cheetah-run"\nepochs = {2**63}\n',
    "layers.toml": f'task = "cheetah-run"\nhidden = {[64] * 5000}\n',
    "seeds.toml": 'task = "cheetah-run"\nseeds = [1, 2]\n',
    "own.toml": 'task = "tank:make"\n', "no_task.toml": "seeds = 5\n", "broken.toml": "task = \n",
    "tank.py": """import gymnasium, numpy

class Tank(gymnasium.Env):
    \"\"\"Sizes of finger-spin, and actions from 0 to 1.\"\"\"

    observation_space = gymnasium.spaces.Box(-9, 9, (9,))
    action_space = gymnasium.spaces.Box(0, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(9, numpy.float32), {}

    def step(self, action):
        return numpy.zeros(9, numpy.float32), 0.0, True, False, {}

    def render(self):
        return numpy.zeros((16, 16, 3), numpy.uint8)


def make(render_mode=None):
    made = Tank()
    made.render_mode = render_mode
    return made
""",
}  # fmt: skip
"""What the commands name, besides what `prepare` makes."""
PERMISSIONS = r"""
2     : eval theirs
2     : resume theirs
2     : plot theirs
2     : audit theirs
2     : export theirs
2     : record theirs
2     : eval spin/secret.safetensors --episodes 1
5     : plot spin --out locked/c.png
5     : mixture --plot locked/m.png
5     : audit spin --out locked/a.png
5     : export locked
2     : record spin --steps 3 --out locked/film.gif
2     : train FrozenLake-v1 --steps 5 --out locked/run
2     : resume locked --steps 50000
2     : plot spin --out d.png
2     : audit spin --out d.png
"""
FULL = r"""
5     : mixture --plot full/m.png
5     : plot spin --out full/c.png
5     : export spin --out full/x
5     : record spin --steps 3 --out full/film.gif
5     : train FrozenLake-v1 --steps 5 --out full/run
5     : tasks > /dev/full
"""
TABLES = {"inputs": INPUTS, "permissions": PERMISSIONS, "full": FULL}


class Case(NamedTuple):
    """A command, and the exit codes that are right."""

    kind: str
    codes: tuple[int, ...]
    text: str


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    errors: str
    seconds: float


def cases() -> list[Case]:
    """Read the tables."""
    lines = [(kind, line) for kind, table in TABLES.items() for line in table.splitlines() if line]
    parts = [(kind, *line.partition(":")[::2]) for kind, line in lines]
    return [Case(kind, tuple(map(int, codes.split(","))), text.strip()) for kind, codes, text in parts]


def prepare(place: Path) -> None:
    """Make what the commands name: a small run, an empty directory, a file, and what may not be read or written."""
    (place / "empty").mkdir()
    (place / "afile").touch()
    (place / "d.png").mkdir()
    (place / "full").mkdir()
    for name, text in FILES.items():
        (place / name).write_text(text)
    train = ["train", "finger-spin", "--algorithm", "getrpo", "--seeds", "5", "--steps", "40000", "--out", "spin"]
    subprocess.run([sys.executable, "-m", "gpi", *train], cwd=place, check=True, stdout=subprocess.DEVNULL)
    for copy, mode in (("theirs", 0), ("locked", 0o555)):
        subprocess.run(["cp", "-r", "spin", copy], cwd=place, check=True)
        (place / copy / "run.lock").unlink(missing_ok=True)
        (place / copy).chmod(mode)
    secret = place / "spin" / "secret.safetensors"
    secret.write_bytes((place / "spin" / "policy-0.safetensors").read_bytes())
    secret.chmod(0)


@contextmanager
def full_disk(place: Path) -> Iterator[bool]:
    """Mount a disk without room for anything, where that is possible."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        if mounted:
            with (place / "filler").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def run(case: Case, place: Path) -> Outcome:
    """Run a command as its kind asks; one that trains is terminated after its first progress."""
    text, _, target = case.text.partition(" > ")
    humble = HUMBLE if case.kind == "permissions" else []
    begun = time.monotonic()
    with tempfile.TemporaryFile() as err, open(target, "wb") if target else tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [*humble, sys.executable, "-m", "gpi", *shlex.split(text)], cwd=place, stderr=err, stdout=out,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        while process.poll() is None and time.monotonic() - begun < SECONDS:
            time.sleep(0.05)
            if TRAINS in case.codes and os.fstat(out.fileno()).st_size > 200:
                process.send_signal(signal.SIGTERM)
                process.wait(SECONDS)
        if process.poll() is None:
            process.kill()
        code = process.wait()
        err.seek(0)
        return Outcome(code, err.read().decode(errors="replace"), time.monotonic() - begun)


def judge(case: Case, outcome: Outcome) -> str:
    """Return what is wrong with an outcome, or nothing."""
    if outcome.code < 0:
        return f"killed by signal {-outcome.code}"
    if "Traceback" in outcome.errors:
        return f"traceback, rc={outcome.code}"
    if outcome.code not in case.codes:
        return f"rc={outcome.code}, not {' or '.join(map(str, case.codes))}"
    lines = outcome.errors.splitlines()
    right = outcome.code in (0, TRAINS) or (len(lines) == 1 and lines[0].startswith("gpi: "))
    return "" if right else f"{len(lines)} lines on stderr"


def main() -> int:
    """Run the commands, print a table and the totals; return 1 if anything was not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, nargs="+", default=list(TABLES))
    parser.add_argument("--match", default="", help="only commands with this word")
    parser.add_argument("--skip", nargs="*", default=[], metavar="WORD", help="not commands with these words")
    chosen = parser.parse_args()
    wanted = [case for case in cases() if case.kind in chosen.only and chosen.match in case.text]
    wanted = [case for case in wanted if not any(word in case.text for word in chosen.skip)]
    good: dict[str, list[bool]] = {kind: [] for kind in TABLES}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        prepare(place)
        with full_disk(place / "full") as mounted:
            print("| command | rc | s | verdict | stderr |\n|---|--:|--:|---|---|")
            for case in wanted:
                if case.kind == "full" and not mounted and "full/" in case.text:
                    continue
                outcome = run(case, place)
                wrong = judge(case, outcome)
                good[case.kind].append(not wrong)
                said = outcome.errors.strip().replace("\n", " / ").replace("|", "\\|")[:200]
                row = f"| `gpi {case.text}` | {outcome.code} | {outcome.seconds:.1f} | {wrong or 'good'} | {said} |"
                print(row.replace(name, "."), flush=True)
        (place / "theirs").chmod(0o755)
    for kind, verdicts in good.items():
        if verdicts:
            print(f"\n{kind}: {sum(verdicts)} of {len(verdicts)} as they must be")
    return 0 if all(all(verdicts) for verdicts in good.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
