"""Files damaged by accident or made to do harm: accidents, forged headers and manifests, and odd kinds of files."""

import bz2
import gzip
import io
import json
import lzma
import marshal
import os
import pickle
import shutil
import socket
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from checkpoints import NAMES, arrays_of, state_of
from gpi import files
from gpi.standalone import sha256


def make_socket(path: Path, _: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
    finally:
        os.chdir(here)


ODD: dict[str, Callable[[Path, Path], Any]] = {
    "symlink": lambda path, target: path.symlink_to(target),
    "dangling": lambda path, target: path.symlink_to(target.parent / "nothing"),
    "loop": lambda path, target: path.symlink_to(path),
    "device": lambda path, target: path.symlink_to("/dev/zero"),
    "passwd": lambda path, target: path.symlink_to("/etc/passwd"),
    "hardlink": lambda path, target: path.hardlink_to(target),
    "fifo": lambda path, target: os.mkfifo(path),
    "directory": lambda path, target: path.mkdir(),
    "socket": make_socket,
}


class Payload:
    """Unpickled, it leaves a file behind."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def payloads(root: Path) -> dict[str, bytes]:
    """Return payloads that other loaders have run or unpacked."""
    evil = Payload(f"touch {root / 'pwned'}")
    found = {f"pickle{protocol}": pickle.dumps(evil, protocol) for protocol in range(6)}
    archive, tarball, bomb, npy, npz = (io.BytesIO() for _ in range(5))
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", found["pickle2"])
    with tarfile.open(fileobj=tarball, mode="w") as file:
        member = tarfile.TarInfo("../../pwned")
        member.size = 4
        file.addfile(member, io.BytesIO(b"evil"))
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("theta.npy", bytes(1 << 26))
    np.save(npy, np.array([evil], object), allow_pickle=True)
    np.savez(npz, theta=np.array([evil], object), allow_pickle=True)
    script = f"import os; os.system('touch {root / 'pwned'}')"
    return found | {
        "zip": archive.getvalue(), "tar": tarball.getvalue(), "zip bomb": bomb.getvalue(), "npy": npy.getvalue(),
        "npz": npz.getvalue(), "7z": b"7z\xbc\xaf\x27\x1c\x00\x04" + found["pickle4"],
        "gzip bomb": gzip.compress(bytes(1 << 26)), "bz2 bomb": bz2.compress(bytes(1 << 24)),
        "xz bomb": lzma.compress(bytes(1 << 24)), "marshal": marshal.dumps(compile(script, "x", "exec")),
        "python": script.encode(), "yaml": f"!!python/object/apply:os.system ['touch {root / 'pwned'}']".encode(),
        "elf": b"\x7fELF\x02\x01\x01" + bytes(57), "nothing": b"",
    }  # fmt: skip


def forge(path: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None, **contents: bytes) -> None:
    """Replace `arrays` or `state`, change the manifest, and make all hashes right again."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    for name, data in contents.items():
        file = {"arrays": "arrays.safetensors", "state": "state.json"}[name]
        (path / file).write_bytes(data)
        manifest["files"][file] = {"size": len(data), "sha256": sha256(data)}
    change(manifest)
    (path / "manifest.json").write_bytes(files.seal(manifest, files.dump_json))


def with_header(text: bytes | dict[str, Any], length: int | None = None) -> bytes:
    """Return the good arrays under another header."""
    data = files.encode(arrays_of(512))
    body = data[8 + int.from_bytes(data[:8], "little") :]
    text = json.dumps(text).encode() if isinstance(text, dict) else text
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def good_header() -> dict[str, Any]:
    data = files.encode(arrays_of(512))
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


Attack = Callable[[Path], Any]


def lying_fields(texts: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield headers that lie about the shape, the offsets or the dtype of one array."""
    huge, shape = 2**63, [3, 5]
    lies: dict[str, list[Any]] = {
        "shape": [[huge], [2 * huge], [huge, 2], [2**32, 2**32], [0, huge], [0, 2**40, 2**40], [-3, -5], [-15], [15.0],
                  [True, 15], ["3", 5], [[3, 5]], [], [15], [5, 3], None, "3,5", {"0": 3}, [1] * 17 + shape,
                  [15] + [1] * 100, [huge] * 40_000, [2**59] * 40_000, 15],
        "data_offsets": [[-60, 0], [0, -60], [60, 0], [4, 64], [0, 61], [0, huge], [huge, huge], [0, 2 * huge],
                         [0.0, 60.0], [False, 60], ["0", "60"], [0], [0, 60, 60], [], None, 60, [[0, 60]], {"0": 60}],
        "dtype": ["F64", "F16", "BF16", "I32", "U32", "O", "object", "|O", "<f4", "f32", "", None, 5, ["F32"], {}],
    }  # fmt: skip
    for field, values in lies.items():
        for value in [*values, *texts.values()]:
            header = good_header()
            header["theta/kernel"][field] = value
            yield f"{field} {str(value)[:30]}", with_header(header)
    for field in lies:
        header = good_header()
        del header["theta/kernel"][field]
        yield f"no {field}", with_header(header)


def lying_layouts() -> Iterator[tuple[str, bytes]]:
    """Yield headers whose arrays overlap, leave holes, come in another order, or have no bytes but a huge shape."""
    for second in ([60, 60], [0, 4], [59, 63], [61, 65], [56, 60]):
        header = good_header()
        header["adam/count"]["data_offsets"] = second
        yield f"second at {second}", with_header(header)
    for empty in ([0, 2**59, 2**59], [2**59, 0, 2**59], [-1, 0]):
        header = good_header()
        header["empty"]["shape"] = empty
        yield f"empty {empty}", with_header(header)
    yield "order", with_header(dict(reversed(good_header().items())))
    yield "fewer", with_header({k: v for k, v in good_header().items() if k != "bytes"})


def lying_entries(texts: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield headers with malformed entries, with other names, or with metadata that are not text."""
    for value in (None, [], 5, "F32", {}, {**good_header()["theta/kernel"], "loader": "pickle"}, *texts.values()):
        yield f"entry {str(value)[:30]}", with_header({**good_header(), "theta/kernel": value})
    for name in ("../../etc/passwd", "/etc/passwd", "", "__class__", "theta/kernel\0", "\ud800", *texts.values()):
        header = good_header()
        yield f"name {name[:30]!a}", with_header({name if k == "key" else k: v for k, v in header.items()})
        header[name] = {"dtype": "F32", "shape": [0], "data_offsets": [header["bytes"]["data_offsets"][1]] * 2}
        yield f"more {name[:30]!a}", with_header(header)
    for value in (None, [], "x", {"a": 1}, {"a": {}}, {"a": None}):
        yield f"metadata {value}", with_header({"__metadata__": value, **good_header()})


def broken_headers() -> Iterator[tuple[str, bytes]]:
    """Yield headers that are not valid JSON, or that have the wrong length."""
    text = json.dumps(good_header()).encode()
    inner = text[1:-1]
    for label, header in {
        "twice": b"{" + inner + b"," + inner + b"}", "bom": b"\xef\xbb\xbf" + text,
        "field twice": text.replace(b'"dtype"', b'"dtype":"F32","dtype"', 1),
        "utf-16": text.decode().encode("utf-16"), "bad utf-8": text.replace(b"key", b"k\xff"),
        "deep list": b'{"a":' + b"[" * 200_000, "deep dict": b'{"a":' * 200_000,
        "deep closed": b'{"a":' * 999 + b"1" + b"}" * 999,
        "17 deep": b'{"a":' + b"[" * 17 + b"]" * 17 + b"," + inner + b"}", "list": b"[" + text + b"]", "null": b"null",
        "empty": b"", "spaces": b" " * 64, "rest": text + b"x", "second": text + text, "comment": text + b"//",
        "NaN": b'{"a":NaN,' + inner + b"}", "infinite": text.replace(b"[3, 5]", b"[3, 1e999]"), "nul": text + b"\0",
        "long int": text.replace(b"[3, 5]", b"[3, " + b"9" * 5000 + b"]"), "cut": text[:-1],
        "long name": b'{"' + b"n" * 900_000 + b'":5,' + inner + b"}", "too long": text + b" " * (1 << 20),
        "long float": text.replace(b"[3, 5]", b"[3, 5." + b"0" * 900_000 + b"]"),
        "many": b"{" + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(15_000))
                + b"," + inner + b"}",
    }.items():  # fmt: skip
        yield f"header {label}", with_header(header)
    for length in (0, 1, 7, len(text) - 1, len(text) + 1, 1 << 20, (1 << 20) + 1, 2**31, 2**32, 2**63, 2**64 - 1):
        yield f"length {length}", with_header(text, length)
    yield "8 bytes", bytes(8)
    yield "7 bytes", bytes(7)


def wrong_arrays() -> Iterator[tuple[str, bytes]]:
    """Yield well-formed files with numbers that are not finite, other dtypes, or a boolean of 2."""
    arrays = arrays_of(512)
    for value in (np.nan, np.inf, -np.inf):
        for name in ("theta/kernel", "normaliser/mean"):
            bad = arrays[name].copy()
            bad.flat[-1] = value
            yield f"{value} in {name}", files.encode({**arrays, name: bad})
    for name in arrays:
        for dtype in (np.float64, np.uint8, np.int64):
            if arrays[name].dtype != dtype:
                yield f"{name} as {dtype.__name__}", files.encode({**arrays, name: arrays[name].astype(dtype)})
    data = bytearray(files.encode(arrays))
    start = 8 + int.from_bytes(data[:8], "little") + good_header()["buffer/valid"]["data_offsets"][0]
    data[start] = 2
    yield "bool of 2", bytes(data)


def bad_headers(texts: dict[str, str]) -> dict[str, list[tuple[str, bytes]]]:
    """Return files of arrays with a false header or content, by kind."""
    return {
        "fields": [*lying_fields(texts)],
        "layouts": [*lying_layouts()],
        "entries": [*lying_entries(texts)],
        "forms": [*broken_headers()],
        "arrays": [*wrong_arrays()],
    }


def bad_manifests(texts: dict[str, str]) -> Iterator[tuple[str, Attack]]:
    """Yield manifests with right hashes and wrong content."""

    def setting(*keys: str, value: Any) -> Attack:
        def change(manifest: dict[str, Any]) -> None:
            for key in keys[:-1]:
                manifest = manifest[key]
            manifest[keys[-1]] = value

        return lambda path: forge(path, change)

    odd: list[Any] = [None, [], {}, "", 5.0, True, -1, 0, 2**63, 2**64, "512", 512.0, *texts.values()]
    file = ("files", "arrays.safetensors")
    for value in odd:
        for keys in (("schema",), ("iteration",), ("files",), file, (*file, "size"), (*file, "sha256")):
            yield f"{'.'.join(keys)} = {str(value)[:30]}", setting(*keys, value=value)
        if value != {}:
            yield f"identity = {str(value)[:30]}", setting("identity", value=value)
    for schema in ("gpi-checkpoint-3", "gpi-checkpoint-0", "gpi-checkpoint-1 "):
        yield schema, setting("schema", value=schema)
    size = len(files.dump_json(state_of(512)))
    yield "size as float", setting("files", "state.json", "size", value=float(size))
    yield "iteration + 1", setting("iteration", value=513)
    yield "more", setting("more", value=1)
    yield "more about a file", setting(*file, "loader", value="pickle")
    yield "more files", setting("files", "../../../etc/passwd", value={"size": 1, "sha256": "0"})
    yield "hash of zeros", setting("files", "state.json", value={"size": size, "sha256": "0" * 64})
    for key in ("schema", "iteration", "files", "identity"):
        yield f"no {key}", lambda path, key=key: forge(path, lambda manifest: manifest.pop(key))
    for key in NAMES[::2]:
        yield f"no {key}", lambda path, key=key: forge(path, lambda manifest: manifest["files"].pop(key))


def bad_json(good: bytes) -> dict[str, bytes]:
    """Return files that are not the strict JSON we write."""
    inner = good.strip()[1:-1]
    return {
        "twice": b"{" + inner + b"," + inner + b"}", "bom": b"\xef\xbb\xbf" + good,
        "utf-16": good.decode().encode("utf-16"), "utf-8": good[:-2] + b',"a":"\xff"}',
        "NaN": b'{"a":NaN,' + inner + b"}",
        "inf": b'{"a":-1e999,' + inner + b"}", "deep": b'{"a":' + b"[" * 300_000 + b"]" * 300_000 + b"}", "list": b"[]",
        "17 deep": b'{"a":' + b"[" * 17 + b"]" * 17 + b"," + inner + b"}", "large": good + b" " * (1 << 20),
        "long int": b'{"a":' + b"9" * 5000 + b"," + inner + b"}", "number": b"1", "cut": good[:-3],
    }  # fmt: skip


def sparse(path: Path, name: str, consistent: bool = False) -> None:
    """Make a file of 8 GB that takes no space, with a manifest that agrees if `consistent`."""
    os.truncate(path / name, 1 << 33)
    if consistent:
        forge(path, lambda manifest: manifest["files"][name].update(size=1 << 33))


def bad_files() -> Iterator[tuple[str, Attack]]:
    """Yield attacks with links, pipes and the like instead of plain files."""

    def swap(path: Path, name: str, make: Callable[[Path, Path], Any]) -> None:
        target = path.parent / f"outside-{name}"
        (path / name).rename(target)  # whoever follows the link finds the right bytes
        make(path / name, target)

    for name in NAMES:
        for label, make in ODD.items():
            yield f"{name} is {label}", lambda path, name=name, make=make: swap(path, name, make)
        yield f"{name} of 8 GB", lambda path, name=name: sparse(path, name)
    yield "8 GB of arrays as declared", lambda path: sparse(path, "arrays.safetensors", consistent=True)
    yield "8 GB of state as declared", lambda path: sparse(path, "state.json", consistent=True)


def bad_directories() -> Iterator[tuple[str, Attack]]:
    """Yield attacks with links, pipes and the like instead of the checkpoint, or beside its files."""

    def replace(path: Path, make: Callable[[Path, Path], Any]) -> None:
        path.rename(path.parent / "moved")
        make(path, path.parent / "moved")

    for label, make in ODD.items():
        if label != "hardlink":
            yield f"checkpoint is {label}", lambda path, make=make: replace(path, make)
    for name in ("evil.py", "__init__.py", ".hidden", "arrays.safetensors.pkl", "conftest.py", "\n"):
        yield f"beside {name!a}", lambda path, name=name: (path / name).write_text("import os")
    yield "link beside", lambda path: (path / "more").symlink_to("/")
    yield "many beside", lambda path: [(path / f"{i}").touch() for i in range(2000)]


def bad_contents(raw: dict[str, bytes]) -> Iterator[tuple[str, Attack]]:
    """Yield payloads instead of each file, instead of the header, and after the arrays."""
    for name, data in raw.items():
        behind = with_header(good_header()) + data + b"x"
        yield f"{name} for arrays", lambda path, data=data: forge(path, arrays=data)
        yield f"{name} for a header", lambda path, data=data: forge(path, arrays=with_header(data))
        yield f"{name} for state", lambda path, data=data: forge(path, state=data)
        yield f"{name} for manifest", lambda path, data=data: (path / "manifest.json").write_bytes(data)
        yield f"{name} after arrays", lambda path, behind=behind: forge(path, arrays=behind)


def bad_texts() -> Iterator[tuple[str, Attack]]:
    """Yield states and manifests that are not strict JSON."""

    def spoil_manifest(path: Path, label: str) -> None:
        (path / "manifest.json").write_bytes(bad_json((path / "manifest.json").read_bytes())[label])

    for label, data in bad_json(files.dump_json(state_of(512))).items():
        yield f"state: {label}", lambda path, data=data: forge(path, state=data)
        yield f"manifest: {label}", lambda path, label=label: spoil_manifest(path, label)


def attacks(root: Path) -> dict[str, list[tuple[str, Attack]]]:
    """Return all attacks by kind, each with a name of its own; those that succeed make `root`/pwned."""
    raw = payloads(root)
    texts = {name: raw[name].decode("latin-1") for name in ("pickle0", "pickle4", "python", "yaml")}
    forged = {
        kind: [(f"arrays: {label}", lambda path, data=data: forge(path, arrays=data)) for label, data in headers]
        for kind, headers in bad_headers(texts).items()
    }
    return {
        "payloads": [*bad_contents(raw)],
        **forged,
        "manifests": [*bad_manifests(texts)],
        "texts": [*bad_texts()],
        "files": [*bad_files()],
        "directories": [*bad_directories()],
    }


T = TypeVar("T")


def evenly(items: list[T], number: int | None) -> list[T]:
    """Return `number` of the items at even distances, or all of them."""
    if number is None or number >= len(items):
        return items
    return [items[i * len(items) // number] for i in range(number)]


KINDS = ("flip", "flip", "flips", "truncate", "zeros", "append", "insert", "cut", "swap", "other", "all", "missing",
         "extra", "empty", "renamed", "repeat")  # fmt: skip


def corrupt(rng: np.random.Generator, path: Path, other: Path) -> str:
    """Damage the checkpoint `path`, whose neighbour is `other`, by one accident; return which."""
    name = NAMES[rng.integers(3)]
    file, data = path / name, bytearray((path / name).read_bytes())
    begin, end = sorted(rng.integers(len(data) + 1, size=2))
    kind = str(rng.choice(KINDS))
    if kind == "missing":
        file.unlink()
    elif kind in ("empty", "all", "renamed"):  # nothing, or a whole and valid checkpoint under another's name
        shutil.rmtree(path)
        path.mkdir() if kind == "empty" else shutil.copytree(other, path)
    elif kind == "extra":
        (path / ("extra" if rng.random() < 0.5 else f"{name}.tmp")).write_bytes(data)
    elif kind == "swap":
        target = path / NAMES[(NAMES.index(name) + 1) % 3]
        file.write_bytes(target.read_bytes())
        target.write_bytes(data)
    elif kind == "other":
        file.write_bytes((other / name).read_bytes())
    else:
        damage(rng, kind, data, begin, end)
        file.write_bytes(data)
    return f"{name} {kind} {begin}:{end}"


def damage(rng: np.random.Generator, kind: str, data: bytearray, begin: int, end: int) -> None:
    """Change the bytes of one file."""
    if kind in ("flip", "flips"):
        for index in rng.integers(len(data), size=1 if kind == "flip" else 9):
            data[index] ^= 1 << rng.integers(8)
    elif kind == "truncate":
        del data[begin:]
    elif kind == "zeros":
        data[begin:end] = bytes(end - begin)
    elif kind == "append":
        data += [b"\n", b" ", b"\0", bytes(512), bytes(data)][rng.integers(5)]
    elif kind in ("insert", "repeat"):
        data[begin:begin] = data[begin:end] if kind == "repeat" else b" "
    elif kind == "cut":
        del data[begin:end]
