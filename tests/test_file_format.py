"""The format of files: arrays that come back bit for bit, strict JSON, and plain files read up to a limit."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from safetensors import SafetensorError

from checkpoints import SPECS, arrays_of, refusal, specs_of
from gpi import errors, files
from gpi.errors import FileError, UsageError
from gpi.files import ArraySpec


def test_every_error_has_its_exit_code():
    codes = {c.__name__: c.exit_code for c in errors.GpiError.__subclasses__()}
    assert codes == {
        "UsageError": 2, "FileError": 3, "LockedError": 4, "DiskError": 5, "EnvironmentFault": 6, "DivergedError": 7,
    }  # fmt: skip
    assert issubclass(UsageError, ValueError)


def test_arrays_come_back_bit_for_bit():
    arrays = arrays_of(1) | {"nan": np.array([np.nan, -0.0, np.inf]), "fortran": np.asfortranarray(np.eye(3)[:2])}
    data = files.encode(arrays, {"a": "ä\n"})
    found, metadata = files.decode(data, specs_of(arrays))
    assert metadata == {"a": "ä\n"} and list(found) == list(arrays)
    assert all(found[name].tobytes() == arrays[name].tobytes() for name in arrays)
    assert all(x.flags.writeable and x.flags.aligned and x.flags.owndata for x in found.values())
    assert files.encode(found, metadata) == data and int.from_bytes(data[:8], "little") % 8 == 0


def test_safetensors_reads_ours_and_we_read_theirs():
    arrays = arrays_of(2)  # in an order that leaves some of them unaligned
    theirs = safetensors.numpy.load(files.encode(arrays, {"by": "gpi"}))
    ours, metadata = files.decode(safetensors.numpy.save(arrays, {"by": "them"}), SPECS)
    assert metadata == {"by": "them"}
    for name, array in arrays.items():
        assert theirs[name].dtype == ours[name].dtype == array.dtype
        assert theirs[name].shape == ours[name].shape == array.shape
        assert theirs[name].tobytes() == ours[name].tobytes() == array.tobytes()


def test_we_accept_no_damaged_header_that_safetensors_refuses():
    data, rng = files.encode(arrays_of(3)), np.random.default_rng(0)
    end, accepted = 8 + int.from_bytes(data[:8], "little"), 0
    for _ in range(2000):
        damaged = bytearray(data)
        damaged[rng.integers(end)] ^= 1 << rng.integers(8)
        try:
            files.decode(bytes(damaged))
        except FileError:
            continue
        accepted += 1  # a letter of a name changed: the hash, or the names expected, tell
        try:
            safetensors.numpy.load(bytes(damaged))
        except SafetensorError as error:
            pytest.fail(f"we are laxer: {error}")
    assert 0 < accepted < 2000


def test_arrays_that_a_file_cannot_hold_are_not_written():
    for array in (np.zeros(2, np.float16), np.array([object()]), np.zeros(2, ">f4"), np.array(["a"])):
        with pytest.raises(UsageError, match="dtype"):
            files.encode({"x": array})
    with pytest.raises(UsageError):
        files.encode({"__metadata__": np.zeros(2)})
    with pytest.raises(UsageError, match="header"):
        files.encode({f"{i:0100}": np.zeros(0) for i in range(8000)})


def test_no_array_is_made_before_all_are_as_expected(monkeypatch: pytest.MonkeyPatch):
    data = files.encode(arrays_of(4))
    monkeypatch.setattr(files, "_array", lambda *_: pytest.fail("an array was made"))
    shape, dtype, *_ = SPECS["theta/kernel"]
    wrongs = (
        ArraySpec(shape[::-1], dtype),
        ArraySpec((*shape, 1), dtype),
        ArraySpec(shape, np.dtype(np.int32)),
    )
    for wrong in wrongs:
        assert "theta/kernel" in refusal(lambda wrong=wrong: files.decode(data, {**SPECS, "theta/kernel": wrong}))
    assert "'more'" in refusal(lambda: files.decode(data, {**SPECS, "more": ArraySpec((1,), np.dtype(np.float32))}))
    assert "'key'" in refusal(lambda: files.decode(data, {k: v for k, v in SPECS.items() if k != "key"}))


def test_finiteness_is_checked_where_asked():
    data = files.encode({"good": np.ones(2), "bad": np.array([1.0, np.nan])})
    for finite in (True, ["bad"], ["absent"]):
        refusal(lambda finite=finite: files.decode(data, None, finite))
    for finite in (False, (), ["good"]):
        assert np.isnan(files.decode(data, None, finite)[0]["bad"][1])


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"1", b"null", b'"a"', b"{", b"{}{}", b"{'a':1}", b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e999}',
     b'{"a":1,"a":1}', b'{"b":{"a":1,"a":2}}', b'\xef\xbb\xbf{"a":1}', '{"a":1}'.encode("utf-16"), b'{"a":"\xff"}',
     b'{"a":"\xc0\xaf"}', b'{"a":"\x00"}', b'{"a":["\\ud800"]}', b'{"\\udc80":1}',
     b'{"a":' + b"9" * 5000 + b"}", b'{"a":' + b"[" * 16 + b"]" * 16 + b"}",
     b'{"a":' * 500_000, b"[" * 1_000_000, b'{"a":"' + b"x" * (1 << 20) + b'"}', b'{"a":1}//', b'{"a":01}'],
)  # fmt: skip
def test_json_is_strict(text: bytes):
    assert refusal(lambda: files.parse_json(text, "state.json")).startswith("state.json ")


def test_json_comes_back():
    value = {"a": [1, 2.5, None, True, "ä\U0001f600"], "b": {"c": 2**100}, "d": 1 / 3}
    assert files.parse_json(files.dump_json(value), "x") == value
    deep = b'{"a":' + b"[" * 14 + b"1" + b"]" * 14 + b"}"
    assert files.parse_json(deep, "x")
    with pytest.raises(ValueError):
        files.dump_json({"a": float("nan")})


def test_a_plain_file_is_read_up_to_its_limit(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"12345")
    with files.directory(tmp_path) as fd:
        assert files.read(tmp_path, "a", 5) == files.read(fd, "a", 9) == b"12345"
    assert "at most 4" in refusal(lambda: files.read(tmp_path, "a", 4))
    refusal(lambda: files.read(tmp_path / "none", "a", 9))
    refusal(lambda: files.read(Path("/proc/self"), "status", 1 << 20))  # it has more bytes than its size says
    for name in ("", ".", "..", "../a", f"{tmp_path}/a", "a\0", "absent", "absent\n"):
        refusal(lambda name=name: files.read(tmp_path, name, 9))


def test_an_optional_array_may_be_missing_but_not_wrong():
    optional = {**SPECS, "later": ArraySpec((2,), np.dtype(np.float32), optional=True)}
    data = files.encode(arrays_of(4))
    assert "later" not in files.decode(data, optional, finite=["later"])[0]
    assert len(data) in files.sizes(optional)
    for bad in (np.zeros(3, np.float32), np.zeros(2)):
        assert "'later'" in refusal(lambda bad=bad: files.decode(files.encode(arrays_of(4) | {"later": bad}), optional))
    wrong = files.encode(arrays_of(4) | {"later": np.array([1.0, np.nan], np.float32)})
    assert "'later'" in refusal(lambda: files.decode(wrong, optional, finite=["later"]))
