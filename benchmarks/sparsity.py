"""Measure the sparsity of the 28 tasks, 100,000 samples of a uniformly random policy each, for the package.

python benchmarks/sparsity.py          # a few minutes on one core; writes src/gpi/study/sparsity.json
"""

import importlib.metadata
import json

from gpi.envs import dmc
from gpi.study.sparsity import MEASURED, SAMPLES, sparsity

if __name__ == "__main__":
    shares = {}
    for task in dmc.TASKS:
        shares[task] = sparsity(task)
        print(f"{task:<26} {100 * shares[task]:7.3f} %", flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("envpool", "numpy")}
    MEASURED.write_text(json.dumps({"samples": SAMPLES, "versions": versions, "sparsity": shares}, indent=2) + "\n")
