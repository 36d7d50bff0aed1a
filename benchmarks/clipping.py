"""Where a still normaliser moves the policy (docs/guarantee.md): only where observations are clipped?

    python benchmarks/clipping.py finger-turn_easy cheetah-run --seeds 5 --steps 100000

Trains with `--trust keep` and looks at every update: `normaliser_tv` as audited, and whether any observation of the
batch was more than ten standard deviations out under the statistics before or after, so that it was clipped.
"""

import argparse
from typing import Any

import jax
import numpy as np

from gpi.config import Config
from gpi.core.normaliser import CLIP, Normaliser
from gpi.training import devices
from gpi.training.job import resolve
from gpi.training.session import make_environments
from gpi.training.trainer import Trainer

LIMIT = 1e-4  # what `normaliser_tv` must stay below


def farthest(normaliser: Normaliser, raw: Any, p: int) -> float:
    """Standard deviations by which the farthest observation of a member's batch is out."""
    scaling = jax.tree.map(lambda x: x[p], normaliser.in_force)
    return float(np.abs((raw.obs[p][raw.valid[p]] - np.asarray(scaling.centre)) / np.asarray(scaling.scale)).max())


def updates(config: Config) -> np.ndarray:
    """Train; return of every update whether observations were clipped, and `normaliser_tv`, `[updates, 2]`."""
    job = resolve(config)
    trainer = Trainer(job, make_environments(job), jax.local_devices()[: config.seeds])
    trainer.compile()
    trainer.warm_up()
    rows = []
    before = trainer.learner.snapshot().learned.normaliser
    for it in trainer.iterations(config.steps):
        after = trainer.learner.snapshot().learned.normaliser
        undone = it.kept.undone if it.kept else np.zeros(config.seeds, np.bool_)
        for p in np.flatnonzero(~undone).tolist():  # one that went back has other statistics than this update's
            out = max(farthest(x, it.raw, p) for x in (before, after))
            rows.append((out > CLIP, it.audit.normaliser_tv[p]))
        before = after
    return np.array(rows)


def row(task: str, algorithm: str, found: np.ndarray) -> list[str]:
    """One line of the table."""
    clipped, moved = found[:, 0] > 0, found[:, 1]
    cells = [task, algorithm, f"{len(found):,}", f"{clipped.mean():.1%}"]
    for some in (moved[clipped], moved[~clipped]):
        cells += [f"{np.sum(some > LIMIT):,}", f"{some.max(initial=0.0):.1e}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--algorithm", default="geppo")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000)
    parsed = parser.parse_args()
    configs = [
        Config(task, parsed.algorithm, seeds=parsed.seeds, steps=parsed.steps, trust="keep") for task in parsed.tasks
    ]
    devices.prepare(configs[0])
    print(
        "| task | algorithm | updates | clipped | above 1e-4, clipped | largest | above 1e-4, not clipped | largest |"
    )
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    with jax.enable_x64(True):
        for config in configs:
            print(f"| {' | '.join(row(config.task, config.algorithm, updates(config)))} |", flush=True)


if __name__ == "__main__":
    main()
