"""All six algorithms solve tiny environments whose optimal values and actions are known."""

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpi.config import Config, plan_of
from gpi.core import normaliser
from gpi.core.plan import ALGORITHMS
from gpi.envs.tasks import Task
from gpi.training.collect import CompiledCollector
from gpi.training.job import Job
from gpi.training.trainer import Trainer
from probes import PROBES, Probe

GAMMA = 0.5
ENVS, MEMBERS = 8, 2


def solve(algorithm: str, probe: str) -> Trainer:
    config = Config(
        task=f"probe/{probe}", algorithm=algorithm, seeds=MEMBERS, n=256, num_envs=ENVS, reset_each_batch=False,
        gamma=GAMMA, lr=3e-3, value_lr=3e-3, minibatches=8, hidden=(16,),
    )  # fmt: skip
    pool = Probe(probe, MEMBERS * ENVS, horizon=3 if probe == "time-limit" else None)
    job = Job(config, Task(config.task, "envpool", own=False), plan_of(config), range(MEMBERS))
    trainer = Trainer(job, pool, jax.local_devices()[:MEMBERS])
    trainer.compile()
    trainer.warm_up()
    for it in islice(trainer.iterations(10**9), 40):
        assert all(np.isfinite(x).all() for x in it.metrics), "NaN in the metrics"
    return trainer


# Every algorithm is tried on every probe; in the quick tests, each on one of the two that need every part of it.
QUICK = {"on_policy": "time-limit", "reuse": "observation-action"}
TRIED = [
    pytest.param(
        name, probe, marks=[pytest.mark.xdist_group(f"probes-{name}")] + [pytest.mark.slow] * (probe != QUICK[one.plan])
    )
    for name, one in ALGORITHMS.items() for probe in PROBES
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "probe"), TRIED)
def test_probe_is_solved(algorithm: str, probe: str, x64: None):
    trainer = solve(algorithm, probe)
    collector = trainer.collector
    assert isinstance(collector, CompiledCollector) and isinstance(collector.pool, Probe)
    pool = collector.pool
    seen = np.unique(np.round(np.asarray(collector.obs), 1))[:, None]
    states = jnp.asarray([[0.0], [1.0]] if probe == "delayed" else seen, jnp.float32)
    for p in range(MEMBERS):
        member = jax.tree.map(lambda x, p=p: x[p], jax.device_get(trainer.learner.state))
        read = normaliser.normalise_obs(normaliser.scaling_of(member.learned.normaliser.obs), states)
        scale = np.asarray(normaliser.std(member.learned.normaliser.returns), np.float32)
        best = pool.optimal_action(states)
        if best is None:
            ours = scale * np.asarray(member.learned.agent.value.value(read))
            np.testing.assert_allclose(ours, pool.optimal_value(states, GAMMA), atol=0.1)
        else:
            pi = member.learned.agent.policy.params.distribution(read)
            np.testing.assert_allclose(pi.mean, best, atol=0.2)
            assert np.exp(pi.log_std[0]) < 0.8, "a policy that knows the best action need not explore as at first"
