"""Put a trained policy on a machine that has nothing but NumPy.

python examples/deploy.py [STEPS]
"""

import importlib.util
import sys

import numpy as np

import gpi
from gpi.export import export

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
run = gpi.train("geppo", "Pendulum-v1", seeds=2, steps=steps, quiet=True)
best = max(run.returns, key=lambda seed: run.returns[seed])
done = export(run.dir, run.dir / "deployed", format="numpy", seed=best)
print(f"seed {best} agrees within {done.worst:.1e} on {done.observations:,} observations: {run.dir / 'deployed'}")

# On the other machine: the three files, Python and NumPy. `policy.py` is short; read it.
spec = importlib.util.spec_from_file_location("policy", run.dir / "deployed" / "policy.py")
assert spec is not None and spec.loader is not None
policy_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(policy_module)
policy = policy_module.load(run.dir / "deployed")
print("torque for a pendulum that hangs still:", policy(np.array([-1.0, 0.0, 0.0])))
