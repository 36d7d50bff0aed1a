"""Measure what a uniformly random policy meets on the 28 tasks, 100,000 samples of each, for the package.

python benchmarks/sparsity.py          # a few minutes on one core; writes src/gpi/analysis/random_policy.json
"""

from gpi.analysis.random_policy import MEASURED
from gpi.envs import dmc
from gpi.study.sparsity import encode, sample

if __name__ == "__main__":
    found = {}
    for task in dmc.TASKS:
        found[task] = one = sample(task)
        returns = f"return {one.mean:7.2f} ± {one.deviation:6.2f} in {one.episodes} episodes"
        print(f"{task:<26} {100 * one.sparsity:7.3f} %   {returns}", flush=True)
    MEASURED.write_bytes(encode(found))
