"""Activations, LayerNorm and the value network's sizes: in training, in files, in both exports, in other units."""

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpi
from gpi import files, standalone
from gpi.config import Config, as_first_saved, config_of
from gpi.core.critic import MlpCritic
from gpi.core.gaussian import GaussianTheta
from gpi.core.network import Change, Layer, forward, shaped
from gpi.errors import FileError, UsageError
from gpi.export import FORMATS, export
from gpi.rundir import checkpoint
from gpi.rundir.policies import policies_in
from gpi.standalone import ACTIVATIONS, layer_norm, network

FORMS = [*itertools.product(ACTIVATIONS, (False, True))]
TINY: dict[str, Any] = {"seeds": 2, "n": 64, "hidden": (8, 6), "epochs": 1, "minibatches": 4, "steps": 256}


def net_of(activation: str, *, normed: bool) -> tuple[Layer, ...]:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    net = tuple(Layer(draw(m, n), draw(n)) for m, n in itertools.pairwise((5, 8, 6, 2)))
    return shaped(net, activation, layer_norm=normed)


@pytest.mark.parametrize(("activation", "normed"), FORMS)
def test_a_network_is_the_same_in_jax_and_in_numpy(activation: str, normed: bool):
    textbook = {"tanh": np.tanh, "relu": lambda x: np.where(x > 0, x, 0), "silu": lambda x: x / (1 + np.exp(-x))}
    net, x = net_of(activation, normed=normed), np.random.default_rng(1).standard_normal((9, 5)).astype(np.float32)
    out = np.asarray(jax.jit(forward)(net, x))
    layers = [(np.asarray(layer.kernel), np.asarray(layer.bias)) for layer in net]
    np.testing.assert_allclose(network(layers, x, activation, normed=normed), out, rtol=1e-4, atol=1e-5)
    seen = x.astype(np.float64)
    for kernel, bias in layers[:-1]:
        seen = seen @ kernel + bias
        if normed:
            seen = (seen - seen.mean(1, keepdims=True)) / np.sqrt(seen.var(1, keepdims=True) + 1e-5)
        seen = textbook[activation](seen)
    np.testing.assert_allclose(out, seen @ layers[-1][0] + layers[-1][1], rtol=1e-4, atol=1e-5)


def test_layers_are_two_arrays_whatever_is_between_them():
    """So checkpoints name the same arrays, and the rest shapes the compiled program."""
    layer = net_of("silu", normed=True)[0]
    leaves, tree = jax.tree_util.tree_flatten_with_path(layer)
    assert [jax.tree_util.keystr(path, simple=True) for path, _ in leaves] == ["kernel", "bias"]
    assert tree != jax.tree.structure(Layer(layer.kernel, layer.bias))
    assert jax.tree.map(lambda x: x, layer)[2:] == ("silu", True)


@pytest.mark.parametrize("value", [-1e6, -90.0, 0.0, 90.0, 1e6])
def test_no_activation_overflows(value: float):
    x = np.full((1, 4), value, np.float32)
    for activation in ACTIVATIONS.values():
        assert np.isfinite(activation(x, np)).all()
    assert (layer_norm(x) == 0.0).all(), "a row of equal numbers"


@pytest.mark.parametrize(("activation", "normed"), FORMS)
def test_a_change_of_units_leaves_policy_and_value_as_they_were(activation: str, normed: bool):
    """The first layer takes the change back, which comes before any LayerNorm."""
    net = net_of(activation, normed=normed)
    seen = jnp.asarray(np.random.default_rng(2).standard_normal((7, 5)), jnp.float32)
    stretch, shift = jnp.linspace(0.2, 4.0, 5, dtype=jnp.float32), jnp.linspace(-1.0, 2.0, 5, dtype=jnp.float32)
    change = Change(stretch, shift, jnp.float32(3.0))
    before = seen * stretch[None] + shift[None]
    theta, phi = GaussianTheta(net, jnp.zeros(2, jnp.float32)), MlpCritic(net)
    means = [np.asarray(x) for x in (theta.distribution(before).mean, theta.under(change).distribution(seen).mean)]
    np.testing.assert_allclose(*means, rtol=1e-3, atol=1e-4)
    values = [np.asarray(x) for x in (3.0 * phi.value(before), phi.under(change).value(seen))]
    np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-4)
    assert phi.under(change).net[0][2:] == (activation, normed)


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_a_run_with_another_network_resumes_and_exports(backend: str, tmp_path: Path):
    form = {"activation": "relu", "layer_norm": True}
    settings = {"trust": "strict", "checkpoint_every": 2, "backend": backend, "value_hidden": (12,), **form}
    run = gpi.train("geppo", "Pendulum-v1", out=tmp_path / "run", quiet=True, **TINY | settings)
    gpi.resume(run, steps=384, quiet=True)
    assert json.loads((run.dir / "DONE").read_text())["exact"]
    found = checkpoint.load(checkpoint.saved(run.dir)[0], None)
    shapes = {name: x.shape for name, x in found.arrays.items() if name.startswith("state/agent/value/params/")}
    assert shapes["state/agent/value/params/0/kernel"] == (2, 3, 12) and len(shapes) == 4
    policy, saved = run.policy(0), policies_in(found)[0]
    assert policy.form == saved.form == {"kind": "gaussian", **form} and len(policy.layers) == 3
    _, metadata = files.decode((run.dir / "policy-0.safetensors").read_bytes())
    assert json.loads(metadata["gpi"]).items() >= {"format": "gpi-policy-3", **policy.form}.items()
    for kind, out in zip(FORMATS, ("numpy", "a.onnx"), strict=True):
        assert export(policy, tmp_path / out, kind).worst < 1e-5
    assert gpi.load(tmp_path / "numpy").form == policy.form


@pytest.mark.parametrize(("activation", "normed"), FORMS)
def test_every_network_is_exported_as_it_is(activation: str, normed: bool, tmp_path: Path):
    one = np.ones(2, np.float32)
    arrays = {"obs/mean": np.zeros(5, np.float32), "obs/std": np.ones(5, np.float32)}
    for i, layer in enumerate(net_of(activation, normed=normed)):
        arrays |= {f"policy/layer{i}/kernel": np.asarray(layer.kernel), f"policy/layer{i}/bias": np.asarray(layer.bias)}
    arrays |= {"policy/log_std": 0 * one, "action/low": -one, "action/high": one}
    form = {"kind": "gaussian", "activation": activation, "layer_norm": normed}
    policy = standalone.assemble(arrays, {}, form)
    usual = form in standalone.FIRST_FORMS
    assert policy.describe()["format"] == ("gpi-policy-2" if usual else "gpi-policy-3")
    assert ("layer_norm" in policy.describe()) is not usual, "files of the usual form are as they were"
    for kind, out in zip(FORMATS, ("numpy", "a.onnx"), strict=True):
        export(policy, tmp_path / out, kind)
    obs = np.random.default_rng(3).standard_normal((4, 5))
    assert (gpi.load(tmp_path / "numpy")(obs) == policy(obs)).all()


def test_a_form_that_is_not_known_is_refused():
    for form in ({"kind": "other"}, {"activation": "gelu"}, {"layer_norm": 1}):
        with pytest.raises(ValueError, match="a form of policies that is not known here"):
            standalone.assemble({}, {}, {**standalone.FIRST_FORMS[0], **form})


def test_a_form_that_the_file_lacks_is_refused_in_one_line(tmp_path: Path):
    from gpi import policy_file

    about = json.dumps({"format": "gpi-policy-3", "task": "x", "seed": "0", "observation_names": []})
    (tmp_path / "a.safetensors").write_bytes(policy_file.encode({"returns/std": np.array(1.0)}, about))
    with pytest.raises(FileError, match="not a policy of this version"):
        gpi.load(tmp_path / "a.safetensors")


def test_files_of_earlier_versions_lack_these_settings():
    config = Config("cheetah-run")
    assert not {"policy", "activation", "layer_norm", "value_hidden"} & as_first_saved(config).keys()
    changed = Config("cheetah-run", activation="silu", layer_norm=True, value_hidden=(3,), policy="gaussian")
    assert config_of(as_first_saved(changed)) == changed
    for name, value in {"policy": "beta", "activation": "gelu"}.items():
        settings: Any = {name: value}
        with pytest.raises(UsageError, match=f"{name} = {value} must be one of .*; leave it out"):
            Config("cheetah-run", **settings)
