"""Watch a run from Python: print, evaluate as it goes, and stop when it is good enough.

python examples/callbacks.py [STEPS]
"""

import sys

import gpi
from gpi.callbacks import Evaluate, PrintEvery, Report


def entropy_left(report: Report) -> bool:
    """A callback is any function of a report; True ends the run, and `gpi.resume` could go on."""
    return bool(report.metrics["entropy"].max() < 0.02)


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
evaluation = Evaluate(every=2, episodes=20, stop_at=475.0)
callbacks = [PrintEvery(5), evaluation, entropy_left]
run = gpi.train("trpo", "CartPole-v1", seeds=3, steps=steps, quiet=True, callbacks=callbacks)

for steps, result in evaluation.results:
    print(f"{steps:>7,} steps: {result.mean:.1f} in evaluation, seeds {result.means}")
print(f"evaluations: {run.dir / 'evaluations.csv'}")
