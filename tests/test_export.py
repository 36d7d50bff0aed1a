"""Policies without gpi: every exported form acts as the trained policy does, or does not act at all."""

import ast
import importlib.util
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import gpi
from gpi import export, files, policy_file, standalone
from gpi.core import normaliser as normalisers
from gpi.core.categorical import Categorical, CategoricalTheta
from gpi.core.gaussian import Gaussian, GaussianTheta
from gpi.core.network import Layer
from gpi.core.policy import Theta
from gpi.envs.dmc import TASKS
from gpi.envs.pool import Spec
from gpi.errors import DiskError, FileError, GpiError, UsageError
from gpi.standalone import CategoricalPolicy, GaussianPolicy, Policy

COUNT, TOLERANCE = 10_000, 1e-5
BIG = (67, 64, 64, 21)  # humanoid-run's network
FAR = {"low": (0.1, -300.0, 1000.0), "high": (0.7, 40.0, 1001.0)}  # bounds of no power of two, and far from zero


class Trained(NamedTuple):
    """The parts of a trained policy, with random numbers."""

    theta: Theta
    normaliser: normalisers.Normaliser
    spec: Spec


def trained(sizes: tuple[int, ...], seed: int = 0, *, discrete: bool = False, **facts: Any) -> Trained:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    # Gains as a network has after training: most hidden units far from linear, some actions beyond their bounds.
    net = tuple(
        Layer(draw(m, n) * np.float32(1.5 / m**0.5), draw(n) * np.float32(0.3)) for m, n in itertools.pairwise(sizes)
    )
    count: Any = np.float64(5000.0)
    std: Any = 10.0 ** rng.uniform(-3, 2, sizes[0])
    mean: Any = rng.normal(0.0, 10.0, sizes[0])
    obs, returns = normalisers.Stats(count, mean, std**2 * (count - 1)), normalisers.Stats(count, count, count)
    log_std = None if discrete else draw(sizes[-1]) * np.float32(0.3) - np.float32(1.0)
    if not discrete:
        facts = {"low": (-1.0,) * sizes[-1], "high": (1.0,) * sizes[-1], **facts}
    spec = Spec("dmc/x-y", sizes[0], sizes[-1], None, discrete=discrete, **facts)
    theta = CategoricalTheta(net) if log_std is None else GaussianTheta(net, log_std)
    with jax.enable_x64(True):
        return Trained(theta, normalisers.with_all_in_force(obs, returns), spec)


def saved(made: Trained, path: Path) -> Path:
    with jax.enable_x64(True):
        about = {"task": "dmc/x-y", "algorithm": "geppo", "seed": "3", "steps": "1024"}
        policy_file.save(path, made.theta, made.normaliser, made.spec, about)
    return path


def policy_of(sizes: tuple[int, ...], tmp_path: Path, **facts: Any) -> Policy:
    return gpi.load(saved(trained(sizes, **facts), tmp_path / "policy.safetensors"))


def test_a_policy_reads_with_the_statistics_in_force_not_with_all_that_was_seen(tmp_path: Path):
    made = trained((5, 8, 3))
    behind = jax.tree.map(lambda x: 1.5 * x, made.normaliser.in_force)
    policy = gpi.load(saved(made._replace(normaliser=made.normaliser._replace(in_force=behind)), tmp_path / "policy"))
    np.testing.assert_array_equal(policy.obs_mean, behind.centre)
    np.testing.assert_array_equal(policy.obs_std, behind.scale)


@pytest.fixture
def box(tmp_path: Path) -> Policy:
    return policy_of((5, 8, 3), tmp_path, **FAR)


@pytest.fixture
def choice(tmp_path: Path) -> Policy:
    return policy_of((5, 8, 3), tmp_path, discrete=True, start=2)


@jax.jit
def outputs(theta: Theta, normaliser: normalisers.Normaliser, obs: Any) -> jax.Array:
    dist = theta.distribution(normalisers.normalise_obs(normaliser.in_force, obs))
    assert isinstance(dist, Categorical | Gaussian)
    return dist.logits if isinstance(dist, Categorical) else dist.mean


def by_jax(made: Trained, obs: np.ndarray) -> np.ndarray:
    """Return the outputs that training computes: means clipped as environments clip them, or logits."""
    with jax.enable_x64(True):
        out = np.asarray(outputs(made.theta, made.normaliser, obs))
    return out if made.spec.discrete else np.clip(out, -1.0, 1.0)


def imported(directory: Path) -> Any:
    """Return the exported policy.py, imported as by a program that does not know gpi."""
    spec = importlib.util.spec_from_file_location("exported", directory / "policy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def session(path: Path, level: str = "ORT_ENABLE_ALL") -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4  # errors are raised; on the terminal they would only disturb
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def one_line(kind: type[Exception], call: Callable[[], Any], match: str = ".") -> None:
    with pytest.raises(kind, match=match) as caught:
        call()
    assert str(caught.value).isprintable() and 20 < len(str(caught.value)) < 500, caught.value


# --- agreement ----------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    **{name: ((spec.observation_size, 64, 64, spec.action_size), {}) for name, spec in TASKS.items()},
    "Pendulum": ((3, 64, 64, 1), {"low": (-2.0,), "high": (2.0,)}),
    "low as ours": ((3, 8, 2), {"low": (-1.0, -1.0), "high": (1.0, 2.0)}),
    "high as ours": ((3, 8, 2), {"low": (-1.0, -2.0), "high": (1.0, 1.0)}),
    "far bounds": ((6, 32, 3), FAR),
    "no hidden layer": ((7, 2), {}),
    "CartPole": ((4, 64, 64, 2), {"discrete": True}),
    "LunarLander": ((8, 64, 64, 4), {"discrete": True}),
    "counted from 3": ((6, 16, 16, 16, 5), {"discrete": True, "start": 3}),
    "counted from -1": ((2, 8, 3), {"discrete": True, "start": -1}),
    "no choice": ((3, 8, 1), {"discrete": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_numpy_and_onnx_act_as_jax_does(name: str, tmp_path: Path):
    sizes, facts = CASES[name]
    made = trained(sizes, sum(name.encode()), **facts)
    policy = gpi.load(saved(made, tmp_path / "policy.safetensors"))
    obs = export.observations_around(policy, COUNT, seed=1)
    truth = by_jax(made, obs)
    scale = np.maximum(1.0, np.abs(truth).max(1, keepdims=True))
    written = export.export(policy, tmp_path / "numpy"), export.export(policy, tmp_path / "p.onnx", "onnx")
    assert written[0].worst == 0.0 and all(w.worst <= TOLERANCE and w.observations == COUNT for w in written)
    exported = imported(tmp_path / "numpy").load(tmp_path / "numpy")
    onnx = session(tmp_path / "p.onnx").run(["action", "unscaled"], {"observation": obs})
    for action, unscaled in ((policy(obs), policy.unscaled(obs)), (exported(obs), exported.unscaled(obs)), onnx):
        assert unscaled.dtype == np.float32 and np.abs((unscaled - truth) / scale).max() <= TOLERANCE
        if made.spec.discrete:
            ranked = np.sort(truth, axis=1)
            clear = sizes[-1] == 1 or ranked[:, -1] - ranked[:, -2] > 3 * TOLERANCE * scale[:, 0]
            assert action.dtype == np.int64 and action.shape == (COUNT,)
            assert np.mean(clear) > 0.99 and (action == truth.argmax(1) + made.spec.start)[clear].all()
            continue
        low, high = np.array(made.spec.low, np.float32), np.array(made.spec.high, np.float32)
        half, wanted = (high - low) / 2, (low + high) / 2 + (high - low) / 2 * truth
        assert action.dtype == np.float32 and (low <= action).all() and (action <= high).all()
        assert (np.abs(action - wanted) <= TOLERANCE * half + np.spacing(np.maximum(abs(low), abs(high)))).all()


def test_observations_that_are_compared_reach_the_clip_and_the_middle(box: Policy):
    far = np.abs((export.observations_around(box) - box.obs_mean) / box.obs_std)
    assert len(far) == COUNT and 0.1 < np.mean(far > standalone.CLIP) < 0.5 and np.mean(far < 0.5) > 0.2
    raw = np.abs(box.unscaled(export.observations_around(box)))
    assert 0.05 < np.mean(raw == 1.0) < 0.95, "actions at their bounds and between them"


def test_bounds_of_one_leave_the_clipped_mean_bit_for_bit(tmp_path: Path):
    policy = policy_of(BIG, tmp_path)
    obs = export.observations_around(policy, 1000)
    assert policy(obs).tobytes() == policy.unscaled(obs).tobytes()
    x = np.clip((obs - policy.obs_mean) / policy.obs_std, -10.0, 10.0)
    for kernel, bias in policy.layers[:-1]:
        x = np.tanh(x @ kernel + bias)
    mean = np.clip(x @ policy.layers[-1][0] + policy.layers[-1][1], -1.0, 1.0)
    assert policy(obs).tobytes() == mean.tobytes() and mean.dtype == np.float32


def test_rounding_never_passes_a_bound(tmp_path: Path):
    rng = np.random.default_rng(0)
    low = rng.standard_normal(1000).astype(np.float32)
    high = low + rng.random(1000).astype(np.float32)
    assert ((low + high) / 2 + (high - low) / 2 > high).any(), "bounds that rounding would pass"
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    for side, bound in ((9.0, high), (-9.0, low)):
        layers = ((np.zeros((1, 1000), np.float32), np.full(1000, side, np.float32)),)
        policy = GaussianPolicy(layers, zero, one, np.zeros(1000, np.float32), low, high, {})
        export.export(policy, tmp_path / f"{side}.onnx", "onnx")
        for action in (
            policy(zero),
            session(tmp_path / f"{side}.onnx").run(["action"], {"observation": zero[None]})[0],
        ):
            assert (low <= action).all() and (action <= high).all()
            np.testing.assert_allclose(action.reshape(1000), bound, rtol=1e-5, atol=1e-6)


def test_one_network_serves_a_policy_and_a_population(box: Policy):
    """Leading axes broadcast: training on the host evaluates all members of a population at once."""
    others = [skewed(box, change) for change in ("weights", "logits")]
    members = [box, *others]
    obs = np.stack([export.observations_around(policy, 4, seed) for seed, policy in enumerate(members)])
    layers = [
        (np.stack([kernel for kernel, _ in same]), np.stack([bias for _, bias in same])[:, None])
        for same in zip(*(policy.layers for policy in members), strict=True)
    ]
    mean, std = (np.stack([getattr(policy, name) for policy in members])[:, None] for name in ("obs_mean", "obs_std"))
    out = standalone.network(layers, standalone.normalise(obs, mean, std))
    alone = [policy.unscaled(rows) for policy, rows in zip(members, obs, strict=True)]
    assert out.dtype == np.float32 and np.abs(np.stack(alone)).max() == 1.0
    np.testing.assert_allclose(np.clip(out, -1.0, 1.0), alone, atol=1e-6)


# --- acting -------------------------------------------------------------------------------------------------------


def test_one_observation_and_many(box: Policy, choice: Policy):
    obs = export.observations_around(box, 6)
    assert box(obs[0]).shape == (3,) and box(obs).shape == (6, 3) and box(obs.reshape(2, 3, 5)).shape == (2, 3, 3)
    assert box(obs[:0]).shape == (0, 3) and choice(obs[:0]).shape == (0,)
    np.testing.assert_allclose([box(row) for row in obs], box(obs), rtol=1e-5)
    assert (box(obs[0].tolist()) == box(obs[0])).all() and (box(obs[0].astype(np.float64)) == box(obs[0])).all()
    assert type(choice(obs[0])) is int and choice(obs).dtype == np.int64
    assert [choice(row) for row in obs] == choice(obs).tolist() and choice(obs.reshape(2, 3, 5)).shape == (2, 3)
    assert (box(np.ones(5, np.int32)) == box([True] * 5)).all()
    assert type(box) is GaussianPolicy and type(choice) is CategoricalPolicy
    assert (box.kind, box.discrete, box.action_size) == ("gaussian", False, 3)
    assert (choice.kind, choice.discrete, choice.action_size) == ("categorical", True, 3)
    assert (choice.log_std, choice.low, choice.high, choice.start, box.start) == (None, None, None, 2, 0)


BAD = {
    "a number": 1.0, "too few": [0.0] * 4, "too many": np.zeros((3, 6)), "nothing": [], "None": None,
    "NaN": [0.0, 0.0, np.nan, 0.0, 0.0], "infinite": np.full((2, 5), -np.inf), "beyond float32": [0.0] * 4 + [1e39],
    "one NaN of many": np.where(np.arange(50).reshape(10, 5) == 49, np.nan, 0.0),
    "text": "acted", "numbers as text": ["1.0"] * 5, "Nones": [None] * 5, "ragged": [[0.0] * 5, [0.0] * 4],
    "a dictionary": {"position": [0.0] * 5}, "complex": [1j] * 5, "dates": np.zeros(5, "datetime64[s]"),
    "objects": [object()] * 5, "bytes": b"12345",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_observation_is_refused_in_one_line(box: Policy, choice: Policy, name: str):
    rng = np.random.default_rng(0)
    for policy in (box, choice):
        one_line(ValueError, lambda policy=policy: policy(BAD[name]), "observation .*;")
        one_line(ValueError, lambda policy=policy: policy.sample(BAD[name], rng), "observation .*;")
        one_line(ValueError, lambda policy=policy: policy.unscaled(BAD[name]), "observation .*;")


def test_the_largest_finite_observations_are_clipped(box: Policy):
    most = np.finfo(np.float32).max
    assert (box(np.full(5, most)) == box(box.obs_mean + 1e6 * box.obs_std)).all()


def test_samples_are_distributed_as_in_training(tmp_path: Path):
    policy = policy_of((5, 8, 3), tmp_path, low=(-3.0,) * 3, high=(5.0,) * 3)
    assert isinstance(policy, GaussianPolicy)
    obs = next(o for o in export.observations_around(policy, 500) if np.abs(policy.unscaled(o)).max() < 0.5)
    policy.log_std[:] = np.log([0.1, 0.05, 2.0])
    found = policy.sample(np.broadcast_to(obs, (40_000, 5)), np.random.default_rng(0))
    assert found.dtype == np.float32 and found.min() == -3.0 and found.max() == 5.0, "the third is clipped"
    np.testing.assert_allclose(found[:, :2].mean(0), policy(obs)[:2], atol=0.01)
    np.testing.assert_allclose(found[:, :2].std(0), [0.4, 0.2], rtol=0.02)  # a deviation of the unit, times four
    assert abs(np.corrcoef(found[:, 0], found[:, 1])[0, 1]) < 0.03
    again = policy.sample(obs, np.random.default_rng(7)), policy.sample(obs, np.random.default_rng(7))
    assert (again[0] == again[1]).all() and again[0].shape == (3,)


def test_sampled_choices_are_distributed_as_the_softmax_says(choice: Policy):
    obs = export.observations_around(choice, 10)[1]
    chance = np.exp(choice.unscaled(obs)) / np.exp(choice.unscaled(obs)).sum()
    found = choice.sample(np.broadcast_to(obs, (40_000, 5)), np.random.default_rng(0))
    assert found.dtype == np.int64 and type(choice.sample(obs, np.random.default_rng(0))) is int
    np.testing.assert_allclose(np.bincount(found - 2, minlength=3) / 40_000, chance, atol=0.01)
    assert chance.min() > 0.02, "a case that can fail"


# --- without gpi --------------------------------------------------------------------------------------------------

ALONE = """
import sys
allowed, before = sys.stdlib_module_names | {"numpy", "policy"}, set(sys.modules)
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ImportError(f"{name} is not allowed here")
sys.meta_path.insert(0, Block())
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import policy
act = policy.load(sys.argv[1])
import numpy
more = {name.partition(".")[0] for name in set(sys.modules) - before} - allowed
assert not more and not {"jax", "gpi"} & set(sys.modules), more
print(numpy.asarray(act([0.5] * act.obs_mean.size)).tolist())
"""


def test_an_export_acts_where_there_is_only_numpy(box: Policy, choice: Policy, tmp_path: Path):
    for name, policy in (("box", box), ("choice", choice)):
        export.export(policy, tmp_path / name)
        command = [sys.executable, "-c", ALONE, str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == np.asarray(policy([0.5] * 5)).tolist()


def test_the_exported_code_is_ours_and_imports_numpy_only(box: Policy, tmp_path: Path):
    export.export(box, tmp_path / "out")
    source = (tmp_path / "out" / "policy.py").read_bytes()
    assert source == Path(standalone.__file__).read_bytes()
    used = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            used |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add(str(node.module).partition(".")[0])
    assert used - {"__future__"} <= {"numpy"} | sys.stdlib_module_names and "numpy" in used
    assert gpi.Policy is standalone.Policy and type(box) is GaussianPolicy


def test_an_export_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # even so, comparing must leave no __pycache__
    names = ("position", "position", "velocity", "velocity", "velocity")
    policy = policy_of((5, 8, 3), tmp_path, observation_names=names, **FAR)
    facts = {"task": "dmc/x-y", "algorithm": "geppo", "seed": "3", "steps": "1024", "observation_names": list(names)}
    assert policy.about == facts
    written = export.export(tmp_path / "policy.safetensors", tmp_path / "new" / "out")
    assert [file.name for file in written.files] == ["policy.safetensors", "policy.py", "policy.json"]
    assert sorted(file.name for file in (tmp_path / "new" / "out").iterdir()) == sorted(f.name for f in written.files)
    found = imported(tmp_path / "new" / "out").load(tmp_path / "new" / "out")
    assert found.about == facts and found.log_std.tobytes() == policy.log_std.tobytes()  # pyright: ignore
    described = json.loads((tmp_path / "new" / "out" / "policy.json").read_text())
    assert described["format"] == "gpi-policy-2" and described["kind"] == "gaussian" and described["sizes"] == [5, 8, 3]
    assert described["training"] == facts and described["arrays"]["policy/layer0/kernel"] == "float32[5, 8]"
    np.testing.assert_allclose(described["low"], FAR["low"], rtol=1e-6)
    export.export(policy, tmp_path / "p.onnx", "onnx")
    loaded = session(tmp_path / "p.onnx")
    about = loaded.get_modelmeta().custom_metadata_map
    assert {key: about[key] for key in ("task", "algorithm", "seed", "steps")}.items() <= facts.items()
    assert about["format"] == "gpi-policy-2" and json.loads(about["description"])["training"] == facts
    assert [(x.name, x.type, x.shape) for x in (*loaded.get_inputs(), *loaded.get_outputs())] == [
        (name, "tensor(float)", ["N", size]) for name, size in (("observation", 5), ("action", 3), ("unscaled", 3))
    ]


def test_a_run_directory_is_exported_by_seed(tmp_path: Path):
    for seed in (3, 5):
        saved(trained((2, 4, 1), seed), tmp_path / f"policy-{seed}.safetensors")
    for seed, chosen in ((None, 3), (5, 5)):
        export.export(tmp_path, tmp_path / f"out{seed}", seed=seed)
        export.export(str(tmp_path), str(tmp_path / f"{seed}.onnx"), "onnx", seed)
        obs, want = np.ones((1, 2), np.float32), gpi.load(tmp_path, chosen)
        assert (standalone.load(tmp_path / f"out{seed}")(obs) == want(obs)).all()
        onnx = session(tmp_path / f"{seed}.onnx").run(["action"], {"observation": obs})
        np.testing.assert_allclose(onnx[0], want(obs), atol=TOLERANCE)


# --- ONNX refuses too ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_onnx_does_not_act_on_values_that_are_not_finite(box: Policy, choice: Policy, tmp_path: Path, level: str):
    for name, policy in (("box", box), ("choice", choice)):
        export.export(policy, tmp_path / f"{name}.onnx", "onnx")
        acting = session(tmp_path / f"{name}.onnx", level)
        obs = export.observations_around(policy, 7)
        for wanted in (["action"], ["unscaled"], None):
            for bad, row in ((np.nan, 0), (np.inf, 3), (-np.inf, 6)):
                broken = obs.copy()
                broken[row, 4] = bad
                with pytest.raises(Exception, match="observation_must_be_finite"):
                    acting.run(wanted, {"observation": broken})
                with pytest.raises(Exception, match="observation_must_be_finite"):
                    acting.run(wanted, {"observation": np.full((7, 5), bad, np.float32)})
            acting.run(wanted, {"observation": obs})
        for wrong in (obs[0], obs[:, :4], obs[None], obs.astype(np.float64)):
            with pytest.raises(Exception, match="INVALID_ARGUMENT"):
                acting.run(None, {"observation": wrong})
        assert len(acting.run(None, {"observation": obs[:0]})[0]) == 0


def test_nothing_in_the_graph_can_be_left_out(box: Policy, choice: Policy, tmp_path: Path):
    """A runtime may drop nodes that no output needs: the guard must not be one."""
    import onnx

    for policy, name in ((box, "box.onnx"), (choice, "choice.onnx")):
        export.export(policy, tmp_path / name, "onnx")
        model = onnx.load(tmp_path / name)
        needed: set[str] = set()
        for node in reversed(model.graph.node):
            if {"action", "unscaled"} & set(node.output) or needed & set(node.output):
                needed |= set(node.input)
        assert needed >= {"observation", "observation_must_be_finite"}
        assert {out for node in model.graph.node for out in node.output} <= needed | {"action", "unscaled"}
        assert model.opset_import[0].version == 13 and not any(t.external_data for t in model.graph.initializer)


# --- damaged and forged files -------------------------------------------------------------------------------------


def test_a_damaged_export_is_refused_in_one_line(box: Policy, tmp_path: Path):
    out, rng = tmp_path / "out", np.random.default_rng(0)
    export.export(box, out)
    for name in ("policy.safetensors", "policy.json"):
        good = (out / name).read_bytes()
        damaged = [good[:n] for n in (0, 1, 7, 8, 100, len(good) // 2)] + [good + b"0", good + good, good[::-1]]
        damaged += [b"[]", b"{}", b"null", b"\xff" * 30, b"[" * 10**5, b'{"format": "gpi-policy-2"}', b'{"format": {}}']
        for index in rng.permutation(len(good) - 1)[:400]:  # all but the line's end
            flipped = bytearray(good)
            flipped[index] ^= 1 << rng.integers(8)
            damaged.append(bytes(flipped))
        for data in damaged:
            (out / name).write_bytes(data)
            one_line(ValueError, lambda: standalone.load(out), "^no policy can be loaded from .*; export it again$")
        (out / name).unlink()
        one_line(ValueError, lambda: standalone.load(out), name)
        (out / name).write_bytes(good)
    assert (standalone.load(out)([1.0] * 5) == box([1.0] * 5)).all()


def test_a_damaged_policy_file_is_refused_in_one_line(box: Policy, tmp_path: Path):
    good, rng = (tmp_path / "policy.safetensors").read_bytes(), np.random.default_rng(0)
    for index in rng.permutation(len(good))[:200]:
        flipped = bytearray(good)
        flipped[index] ^= 1 << rng.integers(8)
        (tmp_path / "p.safetensors").write_bytes(flipped)
        one_line(FileError, lambda: gpi.load(tmp_path / "p.safetensors"), "^policy .*p.safetensors: ")


def forge(out: Path, described: dict[str, Any], data: bytes) -> None:
    """Write files with the right hashes: an attacker can compute them too."""
    import hashlib

    described = {key: value for key, value in described.items() if key != "sha256"}
    described["file"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (out / "policy.safetensors").write_bytes(data)
    (out / "policy.json").write_text(json.dumps(standalone.seal(described)))


def test_another_version_is_refused_and_named(box: Policy, tmp_path: Path):
    out = tmp_path / "out"
    export.export(box, out)
    described, data = json.loads((out / "policy.json").read_bytes()), (out / "policy.safetensors").read_bytes()
    forge(out, described, data)
    standalone.load(out)
    for version in ("gpi-policy-1", "gpi-policy-4", "x" * 10**4, "a\nb", None, 2, ["gpi-policy-2"]):
        forge(out, described | {"format": version}, data)
        one_line(ValueError, lambda: standalone.load(out), "its format is .* reads 'gpi-policy-2'")
    arrays, metadata = files.decode((tmp_path / "policy.safetensors").read_bytes())
    for version in ("gpi-policy-1", "gpi-policy-4", None, 2):
        text = json.dumps(json.loads(metadata["gpi"]) | {"format": version})
        (tmp_path / "p.safetensors").write_bytes(policy_file.encode(arrays, text))
        one_line(
            FileError, lambda: gpi.load(tmp_path / "p.safetensors"), "expected gpi-policy-2 or gpi-policy-3, found "
        )


MISFITS: dict[str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray | None]]] = {
    "a kernel of another shape": lambda a: {"policy/layer0/kernel": a["policy/layer0/kernel"][:-1]},
    "a kernel transposed": lambda a: {"policy/layer0/kernel": a["policy/layer0/kernel"].T},
    "a bias with an axis more": lambda a: {"policy/layer0/bias": a["policy/layer0/bias"][None]},
    "no bias": lambda a: {"policy/layer1/bias": None},
    "a layer left out": lambda a: {"policy/layer0/kernel": None, "policy/layer0/bias": None},
    "no layers": lambda a: {name: None for name in a if "layer" in name},
    "no layers, and sizes that agree": lambda a: {name: None for name in a if "layer" in name} | {
        name: np.full(5, x, np.float32) for name, x in
        (("policy/log_std", 0.0), ("action/low", -2.0), ("action/high", 2.0))},
    "no normaliser": lambda a: {"obs/mean": None},
    "no deviations": lambda a: {"obs/std": None},
    "no bounds": lambda a: {"action/low": None},
    "bounds of another size": lambda a: {"action/low": a["action/low"][:2]},
    "both kinds": lambda a: {"action/start": np.array(0)},
    "neither kind": lambda a: {"policy/log_std": None, "action/low": None, "action/high": None},
    "an array more": lambda a: {"more": np.zeros(1, np.float32)},
    "a number too wide": lambda a: {"obs/mean": a["obs/mean"].astype(np.float64)},
    "NaN": lambda a: {"policy/layer1/bias": a["policy/layer1/bias"] * np.float32(np.nan)},
    "NaN in the normaliser": lambda a: {"obs/mean": a["obs/mean"] * np.float32(np.nan)},
    "bounds too far out": lambda a: {name: np.full(3, x, np.float32) for name, x in
                                     (("action/low", 2e38), ("action/high", 3e38))},
    "infinite bounds": lambda a: {"action/high": a["action/high"] + np.float32(np.inf)},
    "bounds too far apart": lambda a: {name: np.full(3, x, np.float32) for name, x in
                                       (("action/low", -3e38), ("action/high", 3e38))},
    "bounds exchanged": lambda a: {"action/low": a["action/high"], "action/high": a["action/low"]},
    "a deviation of zero": lambda a: {"obs/std": a["obs/std"] * np.float32(0)},
    "weights that overflow": lambda a: {"policy/layer0/kernel": a["policy/layer0/kernel"] * 0 + np.float32(1e37)},
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_arrays_that_do_not_fit_are_refused(box: Policy, tmp_path: Path, name: str):
    out = tmp_path / "out"
    export.export(box, out)
    described = json.loads((out / "policy.json").read_bytes())

    def changed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {key: x.copy("C") for key, x in (arrays | MISFITS[name](arrays)).items() if x is not None}

    arrays = changed(box.arrays())
    assert standalone.assemble(box.arrays(), {})
    described["arrays"] = {key: f"{x.dtype}{list(x.shape)}" for key, x in arrays.items()}
    forge(out, described, files.encode(arrays))
    one_line(ValueError, lambda: standalone.load(out), "export it again$")
    arrays, metadata = files.decode((tmp_path / "policy.safetensors").read_bytes())
    (tmp_path / "p.safetensors").write_bytes(policy_file.encode(changed(arrays), metadata["gpi"]))
    one_line(FileError, lambda: gpi.load(tmp_path / "p.safetensors"), "^policy .*p.safetensors: ")


def test_the_description_must_name_the_arrays(box: Policy, tmp_path: Path):
    out = tmp_path / "out"
    export.export(box, out)
    described, data = json.loads((out / "policy.json").read_bytes()), (out / "policy.safetensors").read_bytes()
    forge(out, described | {"arrays": described["arrays"] | {"obs/mean": "float32[6]"}}, data)
    one_line(ValueError, lambda: standalone.load(out), "other arrays than policy.json says")
    forge(out, {key: described[key] for key in described if key != "arrays"}, data)
    one_line(ValueError, lambda: standalone.load(out), "arrays")


def test_a_policy_file_describes_itself_in_text_only(box: Policy, tmp_path: Path):
    arrays, metadata = files.decode((tmp_path / "policy.safetensors").read_bytes())
    for change in ({"task": 1}, {"observation_names": "ab"}, {"observation_names": [1]}, {"observation_names": None}):
        text = json.dumps(json.loads(metadata["gpi"]) | change)
        (tmp_path / "p.safetensors").write_bytes(policy_file.encode(arrays, text))
        one_line(FileError, lambda: gpi.load(tmp_path / "p.safetensors"))
    for returns in (None, np.zeros(2), np.zeros((), np.float32)):
        forged = {key: x for key, x in (arrays | {"returns/std": returns}).items() if x is not None}
        (tmp_path / "p.safetensors").write_bytes(policy_file.encode(forged, metadata["gpi"]))
        one_line(FileError, lambda: gpi.load(tmp_path / "p.safetensors"), "returns/std")


# --- exports that are refused -------------------------------------------------------------------------------------


def test_nothing_is_replaced(box: Policy, tmp_path: Path):
    full, file, link = tmp_path / "full", tmp_path / "a.onnx", tmp_path / "b.onnx"
    full.mkdir()
    for path in (full / "mine", file):
        path.write_text("mine")
    link.symlink_to(tmp_path / "absent")
    for out, kind in ((full, "numpy"), (file, "numpy"), (link, "numpy"), (file, "onnx"), (link, "onnx")):
        one_line(UsageError, lambda out=out, kind=kind: export.export(box, out, kind), "remove it or name another")
    one_line(UsageError, lambda: export.export(box, tmp_path / "c", "onnx"), "end in .onnx")
    one_line(UsageError, lambda: export.export(box, tmp_path / "c", "torch"), "numpy, onnx")
    one_line(UsageError, lambda: export.export(tmp_path / "absent", tmp_path / "c"), "does not exist")
    one_line(DiskError, lambda: export.export(box, file / "c"))
    assert (full / "mine").read_text() == file.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"full", "a.onnx", "b.onnx", "policy.safetensors"}
    (full / "mine").unlink()
    assert export.export(box, full).files[0].parent == full, "an empty directory will do"


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_without_onnx_there_is_a_remedy(box: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str):
    monkeypatch.setitem(sys.modules, module, None)
    remedy = re.escape('pip install "gpi-rl[onnx]"')
    one_line(UsageError, lambda: export.export(box, tmp_path / "new" / "p.onnx", "onnx"), remedy)
    assert not (tmp_path / "new").exists()
    export.export(box, tmp_path / "numpy")


def test_a_policy_made_by_hand_must_fit_together(box: Policy, tmp_path: Path):
    box.obs_std[2] = 0.0
    for kind in export.FORMATS:
        one_line(UsageError, lambda kind=kind: export.export(box, tmp_path / "a.onnx", kind), "cannot be exported")


def skewed(policy: Policy, change: str) -> Policy:
    """Return a policy that is almost the given one."""
    arrays = {name: x.copy() for name, x in policy.arrays().items()}
    if change == "start":
        arrays["action/start"] += 1
    elif change == "bounds":
        arrays["action/high"] *= np.float32(1.0001)
    else:
        arrays["policy/layer1/bias"] += np.float32(3e-5)
    return standalone.assemble(arrays, policy.about)


@pytest.mark.parametrize("kind", export.FORMATS)
@pytest.mark.parametrize("change", ["weights", "bounds", "start", "logits"])
def test_an_export_that_acts_differently_is_not_kept(
    box: Policy, choice: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, change: str
):
    policy = choice if change in ("start", "logits") else box
    name = f"encode_{kind}"
    right = getattr(export, name)
    monkeypatch.setattr(export, name, lambda policy: right(skewed(policy, change)))
    what = "chooses other actions" if change in ("start", "bounds") else r"differs by [23]\.\de-05"
    one_line(GpiError, lambda: export.export(policy, tmp_path / "new" / "a.onnx", kind), what)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"]


def test_an_export_with_other_outputs_is_not_kept(box: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bad: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda x: x.astype(np.float64), lambda x: x[:, :2], lambda x: x * np.float32(np.nan),
    ]  # fmt: skip
    for change in bad:
        for side in (0, 1):

            def act_of(_: Path, change: Any = change, side: int = side) -> export.Act:
                return lambda obs: tuple(
                    change(x) if i == side else x for i, x in enumerate((box(obs), box.unscaled(obs)))
                )  # pyright: ignore

            monkeypatch.setattr(export, "load_numpy", act_of)
            one_line(GpiError, lambda: export.export(box, tmp_path / "out"), "instead of finite")
            assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(box: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write = files.write

    def fill(path: Path, data: bytes) -> None:
        if path.suffix in (".json", ".onnx"):
            raise DiskError(f"{path} cannot be written: No space left on device; free space on that disk")
        write(path, data)

    monkeypatch.setattr(files, "write", fill)
    for kind in export.FORMATS:
        one_line(DiskError, lambda kind=kind: export.export(box, tmp_path / "new" / "a.onnx", kind))
        assert not (tmp_path / "new").exists()
