"""What the audit costs: training with it beside training without it, iteration by iteration in turn.

    python benchmarks/audit_cost.py [--iterations 40] [--only geppo]
    python benchmarks/audit_cost.py --trust keep     # instead, what a trust mode costs beside `paper`, both audited

Both train the same five seeds on cheetah-run in one process and take turns, because shared machines are noisy; the cost
is the median over pairs of iterations of the ratio of their times, collecting and writing audit.csv included. Without
the audit, zeros stand in its place: nothing that only the audit needs is computed. The promise is at most 5 % of
training time. Figures are appended to benchmarks/audit_cost.jsonl.
"""

import argparse
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

from gpi.config import Config
from gpi.core.plan import ALGORITHMS, TRUST_MODES
from gpi.rundir.tables import RunTables
from gpi.training import devices as runtime
from gpi.training.job import resolve
from gpi.training.session import make_environments

RECORD = Path(__file__).with_name("audit_cost.jsonl")
PROMISE = 0.05


def measure(algorithm: str, trust: str, iterations: int, directory: Path) -> list[tuple[float, float]]:
    """Seconds of each pair of iterations: with and without the audit or, where one is named, a trust mode and paper."""
    import jax
    import jax.numpy as jnp

    from gpi.core.iteration import Learn, audited, guarded, iteration
    from gpi.training import learner
    from gpi.training.trainer import Trainer

    def unaudited(state: Any, raw: Any, hyper: Any, batch: Any, static: Any) -> Any:
        new, trace = iteration(state, raw, hyper, batch, static)
        full = audited(iteration)
        audit = jax.eval_shape(lambda s, r, h, k: full(s, r, h, k, static)[2], state, raw, hyper, batch)
        return new, trace, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), audit)

    def start(learn: Learn, name: str, settings: dict[str, Any]) -> tuple[Any, RunTables]:
        job = resolve(Config("cheetah-run", algorithm, **settings))
        learner.PROGRAMS.clear()  # kept by their settings, which do not tell the two apart
        with patch.object(learner, "learn", learn):
            trainer = Trainer(job, make_environments(job), runtime.learning_devices(job.config))
            trainer.compile()
        trainer.warm_up()
        (directory / name).mkdir()
        return trainer.iterations(10**9), RunTables(directory / name, job)

    with jax.enable_x64(True):
        whole = guarded(audited(iteration))
        sides = [
            start(whole, "with", {"trust": trust or "paper"}),
            start(whole if trust else guarded(unaudited), "without", {}),
        ]
        if not trust:
            sides[1][1].tables["audit"].add = lambda rows: None
        pairs = []
        for i in range(iterations + 3):
            pair = [0.0, 0.0]
            for side in (0, 1) if i % 2 else (1, 0):
                its, tables = sides[side]
                began = time.perf_counter()
                tables.add(next(its))
                pair[side] = time.perf_counter() - began
            pairs.append((pair[0], pair[1]))
    return pairs[3:]


def main() -> None:
    """Measure, print, record."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--iterations", type=int, default=40)
    options.add_argument("--trust", choices=TRUST_MODES, default="", help="what this mode costs beside paper")
    options.add_argument("--only", choices=ALGORITHMS, help="one algorithm (default: all six)")
    chosen = options.parse_args()
    runtime.prepare(Config("cheetah-run"))
    lines = []
    for algorithm in [chosen.only] if chosen.only else ALGORITHMS:
        with tempfile.TemporaryDirectory() as directory:
            pairs = measure(algorithm, chosen.trust, chosen.iterations, Path(directory))
        costs = [a / b - 1.0 for a, b in pairs]
        low, _, high = quantiles(costs, n=4)
        seconds = [median(pair[i] for pair in pairs) for i in (0, 1)]
        what = chosen.trust or "audit"
        verdict = f"; at most {PROMISE:.0%}: {'kept' if median(costs) <= PROMISE else 'BROKEN'}"
        print(
            f"{algorithm:8} {1e3 * seconds[0]:6.1f} ms with, {1e3 * seconds[1]:6.1f} ms without: {what} "
            f"costs {median(costs):+.1%} (quartiles {low:+.1%} to {high:+.1%}){'' if chosen.trust else verdict}",
            flush=True,
        )
        lines.append({"algorithm": algorithm, "with_s": seconds[0], "without_s": seconds[1], "cost": median(costs)})
    facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count(), "load": os.getloadavg()}
    with RECORD.open("a", encoding="utf-8") as file:
        print(json.dumps(facts | {"trust": chosen.trust, "versions": runtime.versions(), "results": lines}), file=file)


if __name__ == "__main__":
    main()
