"""What a full replay costs: the share of an iteration that its ring's write takes, and the bytes of its checkpoints.

    python benchmarks/replay.py [--seeds 5] [--transitions 1000000] [--pairs 30] [--n 1024]

Cheetah-run's sizes, a ring of a million transitions for each of five seeds that is full and wraps. The learner's
program is timed with the ring and without, in turn, from the same samples; the ratio is the median over pairs. The
critic learns nothing from its ring: the write is what is measured. Then two checkpoints are written, with the ring and
without, after `--new` batches: the bytes that the ring adds are compared with the bytes of the transitions themselves.
The exit code is 0 if the write takes less than 2 % of an iteration and a checkpoint at most 1.2 times the transitions'
bytes.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpi.config import Config
from gpi.core.plan import ALGORITHMS, Algorithm
from gpi.rundir import checkpoint, segments
from gpi.training.job import resolve
from gpi.training.session import make_environments
from gpi.training.trainer import Trainer

SHARE, BYTES = 0.02, 1.2  # the goals


def trainer_of(algorithm: str, chosen: argparse.Namespace) -> Trainer:
    """Return a compiled population."""
    job = resolve(Config("cheetah-run", algorithm, seeds=chosen.seeds, n=chosen.n))
    trainer = Trainer(job, make_environments(job), jax.local_devices()[:1])
    trainer.compile()
    return trainer


def timed(trainer: Trainer, raw: Any) -> float:
    """Return the seconds of one update."""
    began = time.perf_counter()
    trainer.learner.fetch(*trainer.learner.learn(raw, trainer.batches))
    jax.block_until_ready(trainer.learner.state)
    trainer.batches += 1
    return time.perf_counter() - began


def fill(trainer: Trainer, raw: Any) -> int:
    """Fill the ring to its last slot but one, as if its batches had come; return its slots."""
    state = trainer.learner.state
    [ring] = state.replay
    slots = ring.rows.reward.shape[1]
    rows = jax.tree.map(lambda x, new: jnp.broadcast_to(jnp.asarray(new)[:, None], x.shape), ring.rows, raw)
    full = ring._replace(rows=rows, count=jnp.full_like(ring.count, slots - 1))
    trainer.learner.state = jax.device_put(state._replace(replay=(full,)), trainer.learner.sharded)
    trainer.batches = slots - 1
    return slots


def saved_bytes(trainer: Trainer, run: Path, new: int) -> int:
    """Return the bytes that a checkpoint writes, when `new` batches have come since the last."""
    since = trainer.batches - new
    listed = segments.add(run, [], *trainer.new_batches(since))
    path = checkpoint.save(run, 1, trainer.snapshot(), {}, {}, listed=listed)
    return sum(file.stat().st_size for file in (*path.iterdir(), *run.glob("replay/*")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="that each seed keeps")
    parser.add_argument("--n", type=int, default=1024, help="samples per iteration")
    parser.add_argument("--pairs", type=int, default=30, help="updates with the ring and without")
    parser.add_argument("--new", type=int, default=50, help="batches between two checkpoints")
    chosen = parser.parse_args()
    ALGORITHMS["with-ring"] = Algorithm("ppo", "reuse", replay=chosen.transitions)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        plain, kept = (trainer_of(name, chosen) for name in ("geppo", "with-ring"))
        raw = jax.tree.map(np.asarray, plain.collect())
        slots = fill(kept, raw)
        for trainer in (plain, kept):
            timed(trainer, raw)
        pairs = [(timed(plain, raw), timed(kept, raw)) for _ in range(chosen.pairs)]
        share = statistics.median(b / a for a, b in pairs) - 1.0
        seconds = statistics.median(a for a, _ in pairs)
        print(
            f"{chosen.seeds} seeds, {slots} slots of {chosen.n}: ring full, {trainer.batches - slots} batches wrapped"
        )
        print(f"an update without {1e3 * seconds:.1f} ms, with the ring {share:+.2%} (median of {chosen.pairs} pairs)")
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            beyond = saved_bytes(kept, Path(two), chosen.new) - saved_bytes(plain, Path(one), chosen.new)
        transitions = chosen.new * sum(x.nbytes for x in jax.tree.leaves(raw))
        print(f"a checkpoint {beyond / 1e6:.2f} MB beyond, new transitions {transitions / 1e6:.2f} MB: "
              f"{beyond / transitions:.3f} times")  # fmt: skip
    return 0 if share < SHARE and beyond <= BYTES * transitions else 1


if __name__ == "__main__":
    sys.exit(main())
