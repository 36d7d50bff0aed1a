"""All six algorithms solve tiny environments whose optimal values and actions are known."""

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import PROBES, Probe

from gpi.core import normaliser as normalize
from gpi.core.plan import ALGORITHMS
from gpi.core.policy import Gaussian, distribution, value
from gpi.training.config import Config
from gpi.training.trainer import Trainer

# Tests of one algorithm share a worker, and with it a compiled program.
GROUPED = [pytest.param(name, marks=pytest.mark.xdist_group(f"probes-{name}")) for name in ALGORITHMS]
GAMMA = 0.5
ENVS, MEMBERS = 8, 2


def solve(algorithm: str, probe: str) -> Trainer:
    config = Config(
        task=f"probe/{probe}", algorithm=algorithm, seeds=MEMBERS, n=256, num_envs=ENVS, reset_each_batch=False,
        gamma=GAMMA, lr=3e-3, value_lr=3e-3, minibatches=8, hidden=(16,),
    )  # fmt: skip
    pool = Probe(probe, MEMBERS * ENVS, horizon=3 if probe == "time-limit" else None)
    trainer = Trainer(config, pool, jax.local_devices()[:MEMBERS])
    trainer.warm_up()
    for it in islice(trainer.iterations(10**9), 40):
        assert all(np.isfinite(x).all() for x in it.metrics), "a NaN reward of an auto-reset got through"
    return trainer


# Every algorithm is tried on every probe, but on the two that need all of it in the quick tests.
QUICK = ("observation-action", "time-limit")
TRIED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROBES]


@pytest.mark.parametrize("probe", TRIED)
@pytest.mark.parametrize("algorithm", GROUPED)
def test_probe_is_solved(algorithm: str, probe: str, x64: None):
    trainer = solve(algorithm, probe)
    pool = trainer.pool
    assert isinstance(pool, Probe)
    seen = np.unique(np.round(np.asarray(trainer.feed.obs), 1))[:, None]
    states = jnp.asarray([[0.0], [1.0]] if probe == "delayed" else seen, jnp.float32)
    for p in range(MEMBERS):
        member = jax.tree.map(lambda x, p=p: x[p], jax.device_get(trainer.state))
        read = normalize.normalise_obs(normalize.lens(member.normaliser.obs), states)
        scale = np.asarray(normalize.std(member.normaliser.returns), np.float32)
        best = pool.optimal_action(states)
        if best is None:
            ours = scale * np.asarray(value(member.agent.value.params, read))
            np.testing.assert_allclose(ours, pool.optimal_value(states, GAMMA), atol=0.1)
        else:
            pi = distribution(member.agent.policy.params, read)
            assert isinstance(pi, Gaussian)
            np.testing.assert_allclose(pi.mean, best, atol=0.2)
            assert np.exp(pi.log_std[0]) < 0.8, "a policy that knows the best action need not explore as at first"
