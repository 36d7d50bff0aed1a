"""Results and packs: what a run says in few numbers, read with the suspicion that policies are read with."""

import copy
import dataclasses
import hashlib
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import gpi
import hostile
import made_runs
from gpi import files
from gpi.analysis.retention import BIN, bin_of, curve_of, joined
from gpi.config import Config, expanded
from gpi.errors import FileError, UsageError
from gpi.rundir.run import final_performance
from gpi.study import results
from gpi.study.definition import load_study
from gpi.study.frame import results_of
from gpi.study.gathered import gathered
from gpi.study.results import Result, encode_pack, merged, parse_pack, read_pack, read_result, write_pack
from gpi.training.job import resolve
from own_runs import TINY

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CUT = Path(__file__).parent / "fixtures" / "cut-runs.tar.xz"


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of the study as they were cut down and kept."""
    out = tmp_path_factory.mktemp("cut")
    with tarfile.open(CUT) as tar:
        tar.extractall(out, filter="data")
    return [out / "pendulum-swingup" / arm for arm in ("ppo", "geppo-kappa1")]


def test_a_result_says_what_the_run_says(cut: list[Path]):
    result, run = read_result(cut[1]), gpi.Run(cut[1])
    assert result.config.algorithm == "geppo" and list(result.seeds) == [0, 1, 2, 3, 4] and result.complete
    assert result.audit["updates"] == 4885 and result.versions["envpool"] == "1.2.5" and result.devices == ("cuda:0",)
    for p, seed in enumerate(result.seeds):
        steps, returns = run.episodes(seed)
        assert result.final[p] == final_performance(steps, returns, 1_000_000)
        count, mean, square = result.curve[p].T
        assert count.sum() == len(returns) and len(count) == 101
        inside = returns[(steps > 7 * BIN) & (steps <= 8 * BIN)]
        np.testing.assert_allclose(
            (count[7], mean[7], square[7]), (len(inside), inside.mean(), (inside**2).mean()), rtol=1e-6
        )


def test_a_run_of_its_own_directory_is_read_too(walk: tuple[gpi.Run, object, object]):
    result = read_result(walk[0].dir)
    assert result.config.seeds == TINY["seeds"] and result.steps == tuple(walk[0].steps.values()) and result.complete
    assert result.audit["updates"] == gpi.audit(walk[0]).updates


def test_an_empty_bin_is_zero_and_a_last_episode_has_a_place():
    curve = curve_of(np.array([1, BIN, BIN + 1, 3 * BIN]), np.array([1.0, 3.0, 5.0, 7.0]), 3)
    np.testing.assert_array_equal(curve, [[2, 2, 5], [1, 5, 25], [1, 7, 49]])
    assert not curve_of(np.array([]), np.array([]), 2).any()


def test_a_short_run_has_points_of_a_hundredth_and_says_what_its_final_performance_is_over(tmp_path: Path):
    assert [bin_of(x) for x in (1_000_000, 999_999, 50_000, 6_000, 99)] == [10_000, 5_000, 500, 50, 1]
    made_runs.make_run(tmp_path / "a", made_runs.job(steps=50_000).config)
    short = read_result(tmp_path / "a")
    assert (short.bin, short.final_steps) == (500, 10_000) and short.curve.shape == (2, 100, 3)
    assert parse_pack(encode_pack([short]))[0].final_steps == 10_000
    steps, curves = results_of([short]).curves("cheetah-run", "ppo", 100)
    np.testing.assert_allclose(curves[0], gpi.Run(tmp_path / "a").episodes(0)[1], rtol=1e-6)
    assert steps[0] == 250.0
    made_runs.make_run(tmp_path / "b", made_runs.job(steps=20_000).config)
    steps, curves = results_of([read_result(tmp_path / "b")]).curves("cheetah-run", "ppo", 100)
    assert len(steps) == 40 and np.isfinite(curves).all(), "as many as there are episodes"
    for wrong in ({"bin": 7}, {"bin": 500.0}, {"final_steps": 0}, {"final_steps": "x"}):
        with pytest.raises(FileError, match="no results have"):
            parse_pack(encode_pack([dataclasses.replace(short, **wrong)]))


def test_long_runs_have_the_packs_of_earlier_versions(cut: list[Path]):
    result = read_result(cut[0])
    about = json.loads(files.decode(encode_pack([result]))[0]["0/about"].tobytes())
    assert not {"bin", "final_steps"} & set(about) and (result.bin, result.final_steps) == (BIN, 204_800)


def test_what_an_earlier_version_kept_of_a_run_is_read_again(tmp_path: Path):
    study = made_runs.make_study(tmp_path / "a", made_runs.job())
    run, found = study.run(study.jobs[0]), gathered(study.path)
    facts = (run / "episodes.csv").stat()
    parts = [(run / name).read_bytes() for name in ("config.json", "DONE")]
    parts.append(f"{facts.st_size} {facts.st_mtime_ns}".encode())
    old = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    [kept] = (study.path / "cache").iterdir()
    kept.unlink()
    write_pack(study.path / "cache" / f"{old}.safetensors", [dataclasses.replace(found[0], final=found[0].final + 1)])
    np.testing.assert_array_equal(gathered(study.path)[0].final, found[0].final)


def test_a_run_that_an_earlier_version_read_is_the_same_run(tmp_path: Path):
    made_runs.make_run(tmp_path / "a", made_runs.job(steps=50_000).config)
    now = read_result(tmp_path / "a")
    windows = {"curve": joined(now.curve, 20).astype(np.float32), "bin": BIN, "final_steps": 204_800}
    before = dataclasses.replace(now, final=now.final + 1, audit={"updates": 3}, **windows)
    assert merged([before], [now]) == [now] == merged([now], [before])
    other = before.curve.copy()
    other[1, 3, 1] += 0.1
    with pytest.raises(UsageError, match="two different results"):
        merged([now], [dataclasses.replace(before, curve=other)])


def test_a_pack_holds_results_bit_for_bit(cut: list[Path], tmp_path: Path):
    several = [read_result(path) for path in cut]
    write_pack(tmp_path / "p.safetensors", several)
    again = read_pack(tmp_path / "p.safetensors")
    assert encode_pack(again) == encode_pack(several) == (tmp_path / "p.safetensors").read_bytes()
    for a, b in zip(several, again, strict=True):
        assert a.config == b.config and a.steps == b.steps and a.audit == b.audit and a.key == b.key
        np.testing.assert_array_equal(a.curve, b.curve)
        np.testing.assert_array_equal(a.final, b.final)
    whole = (tmp_path / "p.safetensors").stat().st_size / 2 * 336
    assert whole < 10e6, "the paper's study is below 10 MB"


def test_the_preset_of_the_paper_is_what_its_study_was_made_with(cut: list[Path]):
    """Whatever the defaults become."""
    for result in map(read_result, cut):
        jobs = [job.config for job in load_study("paper").jobs if job.task == "pendulum-swingup"]
        assert dataclasses.replace(result.config, threads=0) in jobs
        named = {"task": "pendulum-swingup", "algorithm": result.config.algorithm, "preset": "paper"}
        assert resolve(Config(**expanded(named))).config in jobs


def changed(result: Result, **fields: object) -> Result:
    config = copy.copy(result.config)
    for name in fields.keys() & config.__dict__.keys():
        object.__setattr__(config, name, fields[name])  # unchecked, as a hostile pack has it
    return dataclasses.replace(result, config=config, **{k: v for k, v in fields.items() if k not in config.__dict__})  # type: ignore[arg-type]


def test_parts_of_a_study_become_one_and_contradictions_are_refused(cut: list[Path]):
    ppo, geppo = (read_result(path) for path in cut)
    assert merged([ppo], [geppo, ppo]) == [ppo, geppo]
    later = changed(ppo, seed=5)
    assert merged([ppo], [later]) == [ppo, later], "more seeds are another block"
    with pytest.raises(UsageError, match="two different results of pendulum-swingup, ppo, seeds 0 to 4"):
        merged([ppo], [changed(ppo, final=ppo.final + 1.0)])
    with pytest.raises(UsageError, match="two different results"):
        merged([ppo], [changed(ppo, seed=4, final=ppo.final + 1.0)])
    with pytest.raises(UsageError, match=r"results of EnvPool 1\.2\.5 and 1\.3\.0"):
        merged([ppo], [changed(geppo, versions=geppo.versions | {"envpool": "1.3.0"})])


def test_settings_that_make_no_other_arm(cut: list[Path]):
    ppo, geppo = (read_result(path) for path in cut)
    assert changed(ppo, kappa=0.0).key == ppo.key and changed(geppo, kappa=0.0).key != geppo.key
    assert changed(geppo, threads=7, seeds=3).key == geppo.key and changed(geppo, lr=1.0).key != geppo.key


def test_a_damaged_or_hostile_pack_is_refused_as_a_whole(cut: list[Path], tmp_path: Path):
    good, path = encode_pack([read_result(cut[0])]), tmp_path / "p.safetensors"
    rng = np.random.default_rng(0)
    bad = [good[:n] for n in (0, 7, 8, 100, len(good) - 1)] + [good + b"\0", b"PK\x03\x04" + good, good[::-1]]
    for _ in range(200):
        flipped = bytearray(good)
        flipped[rng.integers(len(good))] ^= 1 << rng.integers(8)
        bad.append(bytes(flipped))
    for data in bad:
        path.write_bytes(data)
        with pytest.raises(FileError, match=r"^pack .*p\.safetensors: ") as error:
            read_pack(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("forge", [
    {"config": {"task": "x", "seeds": 10**9}}, {"config": {"task": "x", "algorithm": "evil"}}, {"config": []},
    {"steps": [1, 2]}, {"steps": [True] * 5}, {"steps": [-1] * 5}, {"devices": [1]}, {"versions": {"envpool": 3}},
    {"audit": None}, {"versions": None},
], ids=str)  # fmt: skip
def test_a_forged_description_is_refused(forge: dict[str, object], cut: list[Path], monkeypatch: pytest.MonkeyPatch):
    result = read_result(cut[0])
    real = json.dumps

    def dumps(value: object, **options: object) -> str:
        return real(value | forge if isinstance(value, dict) and "audit" in value else value, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(results.json, "dumps", dumps)
        forged = encode_pack([result])
    with pytest.raises(FileError):
        parse_pack(forged)


ESCAPE = "\x1b]0;OWNED\x07\x1b[31mred\r\x1b[2K"


@pytest.mark.parametrize(("fields", "line"), [
    ({"kappa": -1.0}, "kappa = -1.0 must be in [0, 1]"), ({"B": 0}, "B = 0 must be at least 1"),
    ({"B": 10**300}, "must be at most 10000"), ({"n": -5}, "n = -5 must be"), ({"gamma": 2.0}, "gamma = 2.0 must be"),
    ({"hidden": (64,) * 100_000}, "a setting has 100,000 values"), ({"trust": "<b>x</b>"}, "must be one of paper"),
    ({"trust": ESCAPE}, "must be one of paper"), ({"task": ESCAPE}, "all of them printable"),
    ({"task": "\u202egnir"}, "all of them printable"), ({"task": "x" * 200_000}, "at most 200 letters"),
    ({"seed": 2**21}, "seed = 2097152 must be"), ({"lr": 1e300}, "must be at most 1e+30"),
    ({"final": np.full(5, 1.7e308)}, "returns must be within"),
    ({"final": np.full(5, -1e160)}, "returns must be within"),
    ({"curve": np.zeros((5, 0, 3), np.float32)}, "its curve has 0 bins, its steps make 101"),
    ({"curve": np.full((5, 101, 3), -1.0, np.float32)}, "counts episodes"),
    ({"curve": np.full((5, 101, 3), 0.5, np.float32)}, "counts episodes"),
    ({"curve": np.full((5, 101, 3), [1.0, 1e20, 0.0], np.float32)}, "returns must be within"),
    ({"curve": np.full((5, 101, 3), [1.0, 1.0, -1.0], np.float32)}, "squares positive"),
    ({"audit": {}}, "its audit says 'updates' = None"), ({"audit": {"updates": "<b>"}}, "'updates' = '<b>'"),
    ({"audit": {"updates": 3, "kl_violations": -1}}, "'kl_violations' = -1"),
    ({"audit": {"updates": 3, "worst": {"kl": {"ratio": 10**400}}}}, "must be at most 1e+30"),
    ({"versions": {"envpool": ESCAPE}}, "all of them printable"),
    ({"versions": {ESCAPE: "1"}}, "all of them printable"),
    ({"devices": ("x",) * 2_000}, "at most 1,000 are taken"), ({"devices": (ESCAPE,)}, "all of them printable"),
], ids=lambda x: str(x)[:40])  # fmt: skip
def test_a_pack_holds_nothing_that_breaks_a_report_or_a_terminal(
    fields: dict[str, object], line: str, cut: list[Path], tmp_path: Path
):
    write_pack(tmp_path / "p.safetensors", [changed(read_result(cut[0]), **fields)])
    with pytest.raises(FileError, match=r"^pack .*: result 0 cannot be used: ") as error:
        read_pack(tmp_path / "p.safetensors")
    said = str(error.value)
    assert line in said and said.isprintable() and len(said) < 400 + len(str(tmp_path)), said


def test_seeds_are_as_many_as_a_report_can_compare(cut: list[Path], monkeypatch: pytest.MonkeyPatch):
    one = read_result(cut[0])

    def seeds(number: int, first: int = 0) -> Result:
        arrays = {name: np.repeat(getattr(one, name)[:1], number, axis=0) for name in ("curve", "final")}
        config = dataclasses.replace(one.config, seed=first, seeds=number)
        return dataclasses.replace(one, config=config, steps=one.steps[:1] * number, **arrays)

    assert len(parse_pack(encode_pack([seeds(1_000), seeds(1_000, 1_000)]))) == 2
    with pytest.raises(FileError, match="it has 1,001 seeds, at most 1,000 are taken"):
        parse_pack(encode_pack([seeds(1_001)]))
    with pytest.raises(UsageError, match=r"pendulum-swingup, ppo has 2,000 seeds, at most 1,000 are compared"):
        merged([seeds(1_000)], [seeds(1_000, 1_000)])
    monkeypatch.setattr(results, "ALL_SEEDS", 1_999)
    with pytest.raises(FileError, match="it has 2,000 seeds, at most 1,999 are taken"):
        parse_pack(encode_pack([seeds(1_000), seeds(1_000, 1_000)]))


def test_hostile_headers_are_refused(tmp_path: Path):
    path = tmp_path / "p.safetensors"
    texts = {name: name * 3 for name in ("dtype", "shape", "data_offsets")}
    bad = [data for attacks in hostile.bad_headers(texts).values() for _, data in attacks]
    assert len(bad) > 50
    for data in [*bad, *hostile.payloads(tmp_path).values(), b"hello"]:
        path.write_bytes(data)
        with pytest.raises(FileError, match=r"^pack ") as error:
            read_pack(path)
        assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_a_pack_says_how_tv_was_estimated_and_of_an_earlier_one_only_what_is_certain(cut: list[Path]):
    places = ("study/kappa1", "kept/keep8", "kept/paper8")
    packs = {place: read_pack(BENCHMARKS / f"{place}.safetensors") for place in places}
    found = {name: {one.audit["estimate"] for one in pack} for name, pack in packs.items()}
    assert found == {"study/kappa1": {"abs"}, "kept/keep8": {"lost"}, "kept/paper8": {"lost"}}
    paper = packs["kept/paper8"]  # in the format that says it: from the settings it would not be certain
    early = encode_pack(paper, results.FIRST)
    assert {one.audit["estimate"] for one in parse_pack(early)} == {"unknown"}
    assert encode_pack(parse_pack(early), results.FIRST) == early and encode_pack(parse_pack(early)) != early
    assert merged(paper, parse_pack(early)) == paper, "one result, whichever pack it is in"
