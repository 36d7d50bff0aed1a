"""Train, continue, evaluate, audit and load, in a few lines.

python examples/quickstart.py [STEPS]
"""

import sys

import gpi

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_480
run = gpi.train("geppo", "cartpole-balance", seeds=2, steps=steps)
run = gpi.resume(run, steps=2 * steps)  # further; or after a kill, as if never interrupted
print("final return of each seed:", run.returns)

result = gpi.evaluate(run, episodes=5)
print(f"evaluation: {result.mean:.1f}, 95 % interval {result.interval()}")

summary = gpi.audit(run)
print(f"updates inside eq (11): {summary.inside('penalty'):.1%} of {summary.updates}")

policy = gpi.load(run.dir, seed=1)  # NumPy in, NumPy out; normaliser and action scaling inside
print("an action:", policy([0.0, 1.0, 0.0, 0.0, 0.0]))
print("the mixture it used:", gpi.mixture(B=2, kappa=1.0).nu)
