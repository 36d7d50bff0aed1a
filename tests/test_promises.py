"""Files are a promise: those of earlier versions still load, resume and export, however the code is renamed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import gpi
from gpi import cli
from gpi.config import Config, config_of
from gpi.core.agent import Metrics
from gpi.core.audit import Audit
from gpi.errors import FileError
from gpi.export import export
from gpi.files import decode
from gpi.rundir.checkpoint import read_identity
from gpi.rundir.policies import in_force
from gpi.rundir.resume import identity_of, judge_drift
from gpi.rundir.run import read_rows
from gpi.rundir.tables import AUDIT, METRICS, Table
from gpi.training.train import read_job
from gpi.training.trainer import LATER

WRITTEN = Path(__file__).parent / "fixtures" / "runs-4027884"
"""Runs of version 4027884: checkpoints gpi-checkpoint-1, policies gpi-policy-2, a NumPy export."""
RUNS = {"cartpole-geppo": 1280, "pendulum-getrpo": 2000}
KEPT = Path(__file__).parent / "fixtures" / "runs-0856b7c" / "cartpole-keep"
"""A run of version 0856b7c with `--trust keep`: its checkpoint has the memory and the certificates of every agent."""


@pytest.fixture(scope="module", params=RUNS)
def resumed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that an earlier version wrote and this one has resumed."""
    run = Path(shutil.copytree(WRITTEN / request.param, tmp_path_factory.mktemp("old") / request.param))
    gpi.resume(run, steps=RUNS[run.name], allow_drift=True, quiet=True)  # another machine has other versions
    return run


def test_an_old_run_is_resumed(resumed: Path):
    done = json.loads((resumed / "DONE").read_text())
    assert done["complete"] and min(done["steps"]) >= RUNS[resumed.name]
    for name in ("metrics.csv", "audit.csv", "episodes.csv"):
        before, after = read_rows(WRITTEN / resumed.name / name), read_rows(resumed / name)
        assert after[: len(before)] == before and len(after) > len(before)
        assert list(after[-1]) == list(before[0]), "a table keeps the columns that it was begun with"
    for metrics, audit in zip(*(read_rows(resumed / name) for name in ("metrics.csv", "audit.csv")), strict=True):
        assert (metrics["tv"], metrics["penalty"]) == (audit["tv"], audit["penalty"]), "and what they mean"
    assert gpi.audit(resumed).estimate == "abs" and not audit["tv_age_0"], "an estimate that is no longer made is empty"
    assert gpi.audit(resumed).updates == len(read_rows(resumed / "audit.csv")), "without the columns that came later"


def test_a_table_that_an_earlier_version_continued_with_another_estimate_is_counted_in_no_share(
    resumed: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    run = Path(shutil.copytree(resumed, tmp_path / "run"))
    lines = (run / "audit.csv").read_text().splitlines()
    last, at = lines[-1].split(","), lines[0].split(",").index("penalty")
    last[at] = str(0.9 * float(last[at]))
    (run / "audit.csv").write_text("\n".join([*lines[:-1], ",".join(last)]) + "\n")
    assert gpi.audit(run).estimate == "mixed"
    assert cli.main(["audit", str(run), "--out", str(tmp_path / "audit.png")]) == 0
    text = capsys.readouterr().out
    assert "cannot be counted" in text and "%" not in text
    (run / "metrics.csv").unlink()
    assert gpi.audit(run).estimate == "unknown"


def test_an_old_run_that_keeps_what_was_learned_is_resumed_with_its_certificates(tmp_path: Path):
    run = Path(shutil.copytree(KEPT, tmp_path / "keep"))
    gpi.resume(run, steps=1280, allow_drift=True, quiet=True)
    before, after = read_rows(KEPT / "audit.csv"), read_rows(run / "audit.csv")
    assert after[: len(before)] == before and len(after) > len(before)
    assert all(row["penalty"] and "penalty_lost" not in row for row in after) and gpi.audit(run).estimate == "lost"
    assert all(row["kept_return"] for row in (*before[-2:], *after[-2:])), "certified before and after"
    old, new = (max(path.glob("ckpt-*")) for path in (KEPT, run))
    assert old.name < new.name
    names = [list(decode((path / "arrays.safetensors").read_bytes())[0]) for path in (old, new)]
    assert names[0] == [name for name in names[1] if not LATER.fullmatch(name)] != names[1]
    assert any(name.startswith("kept/memory/") for name in names[0])
    assert "withdrawn" not in json.loads((old / "state.json").read_text()) | json.loads((run / "DONE").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_old_policies_load_and_export(name: str, tmp_path: Path):
    run = WRITTEN / name
    policy = gpi.load(run)
    assert export(run, tmp_path / "numpy").worst == 0.0
    obs = np.random.default_rng(0).standard_normal((100, policy.obs_mean.size)).astype(np.float32)
    assert np.array_equal(gpi.load(tmp_path / "numpy")(obs), policy(obs))


def test_an_old_export_acts_as_its_policy():
    policy, exported = gpi.load(WRITTEN / "cartpole-geppo"), gpi.load(WRITTEN / "cartpole-geppo-numpy")
    obs = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    assert np.array_equal(exported(obs), policy(obs))


def test_arrays_of_a_checkpoint_keep_their_names(resumed: Path):
    old, new = (max(run.glob("ckpt-*")) / "arrays.safetensors" for run in (WRITTEN / resumed.name, resumed))
    assert new.parent.name > old.parent.name
    now, then = (decode(path.read_bytes())[0] for path in (new, old))
    assert list(then) == [name for name in now if not LATER.fullmatch(name)]
    assert {name for name in now if LATER.fullmatch(name)} == {
        "state/buffer/raw", "state/normaliser/in_force/centre", "state/normaliser/in_force/scale"
    }  # fmt: skip
    seen = in_force({name: x for name, x in now.items() if not LATER.fullmatch(name)}, "state/normaliser/")
    assert all(np.array_equal(x, now[name]) for name, x in seen.items()), (
        "as NumPy reads a checkpoint of an old version"
    )


@pytest.mark.parametrize("name", RUNS)
def test_what_an_old_checkpoint_says_of_its_origin_still_fits(name: str):
    """Whatever machine this is: settings and environment of an old run are what this version makes of them."""
    job, _ = read_job(WRITTEN / name)
    then = read_identity(max((WRITTEN / name).glob("ckpt-*")))
    now = identity_of(job.config, {key: then[key] for key in ("versions", "runtime", "devices", "environment")})
    assert judge_drift(WRITTEN, then, now, allow_drift=False) == [] and now["config_hash"] == then["config_hash"]


def test_a_setting_that_an_old_file_lacks_has_its_default_and_is_not_drift(tmp_path: Path):
    now = identity_of(Config("cheetah-run"), {"environment": {}})
    then = now | {"config": {name: x for name, x in now["config"].items() if name != "freeze_normaliser"}}
    assert judge_drift(tmp_path, then, now, allow_drift=False) == []
    changed = identity_of(Config("cheetah-run", freeze_normaliser=5), {"environment": {}})
    with pytest.raises(FileError, match="freeze_normaliser was 0, is 5"):
        judge_drift(tmp_path, then, changed, allow_drift=False)
    assert config_of({"task": "cheetah-run"}) == Config("cheetah-run")


def test_a_table_with_a_column_of_a_later_version_is_not_continued(tmp_path: Path):
    path = tmp_path / "audit.csv"
    path.write_text("seed,wisdom\n0,1\n")
    with pytest.raises(FileError, match=r"audit\.csv has a column 'wisdom' that this version does not know"):
        Table(path, ("seed", "iteration"), path.stat().st_size)
    assert path.read_text() == "seed,wisdom\n0,1\n"


def test_the_columns_of_the_tables_are_the_measurements_of_an_update():
    """The names are written out, because reading a run must not start JAX."""
    assert set(METRICS) == {"seed", "iteration", "steps", "episode_return", *Metrics._fields}
    own = set(Audit._fields) - {"tv_age"}
    assert own < set(AUDIT) and set(AUDIT) - own <= {"seed", "iteration", "steps", *Metrics._fields}
