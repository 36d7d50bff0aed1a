"""A Ray cluster for a study: a private one on this machine, or the user's; and checks that its nodes can do the work.

Anyone who reaches the ports of a Ray cluster can run code there. So a private cluster listens to this machine alone and
requires a secret token; the user's is refused without a token, unless the user trusts the network.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import ipaddress
import json
import math
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpi.errors import UsageError
from gpi.requirements import satisfies
from gpi.rundir.lock import take
from gpi.standalone import Facts
from gpi.study.directory import Layout
from gpi.study.engine.locks import lives
from gpi.terminal import plural

VERSIONS = ">=2.57"  # older ones leave processes behind when a worker is killed
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray then takes the loopback address, and listens to nothing else
STORE = 80 << 20  # bytes of Ray's object store: jobs exchange files, not objects
PREFIX, OWNER = "gpi-ray-", "owner"  # of directories of private clusters, and the file that their runner has locked
ROOM = 40  # characters of a directory in which Ray's sockets still have a name that the kernel takes
SECONDS = 60.0  # for a node to answer, and
REACH = 5.0  # ... for its port to


class Where(NamedTuple):
    """The cluster that the user wants."""

    address: str = ""
    """host:port of its head, or `auto`; empty: a private one on this machine."""
    trusted: bool = False
    """Whether the user trusts everybody who can reach it."""


class Node(NamedTuple):
    """A node of a cluster."""

    id: str
    address: str
    cpus: int
    gpus: float


def imported() -> Any:
    """Return the module of Ray, or raise UsageError if it is not here or too old."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("Ray is not installed; run: pip install 'gpi-rl[ray]'") from None
    if not satisfies(version, VERSIONS):
        raise UsageError(f"Ray {version} is too old, it must be {VERSIONS}; run: pip install 'gpi-rl[ray]'")
    ray: Any = importlib.import_module("ray")
    with suppress(ImportError):  # Ray prints its nodes' errors, in colour, among a runner's lines: it has no option
        inner: Any = importlib.import_module("ray._private.worker")
        inner.print_to_stdstream = lambda *_, **__: None
    return ray


@contextmanager
def own_cluster(cores: int, gpus: int) -> Iterator[Any]:
    """Start Ray on this machine for as long as the block lasts."""
    place = short_place()
    remove_dead(Path(place))
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    owner = take(directory / f".{OWNER}")
    os.rename(directory / f".{OWNER}", directory / OWNER)  # by this name it is locked from the beginning
    try:
        token = directory / "token"
        fd = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file:
            file.write(os.urandom(32).hex().encode())
        guarded = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_TMPDIR": str(directory)}
        os.environ.update({**QUIET, **ALONE, **guarded})
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
            os.environ.pop(name, None)
        own = {"include_dashboard": False, "object_store_memory": STORE, "num_cpus": cores, "num_gpus": gpus}
        with connected("Ray does not start here", **own) as ray:
            yield ray
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if owner is not None:
            os.close(owner)


def remove_dead(place: Path) -> None:
    """Remove the directories of private clusters whose runners were killed: they hold a token and logs."""
    for path in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid() and not lives(path / OWNER):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def other_cluster(where: Where) -> Iterator[Any]:
    """Connect to a cluster that runs, for as long as the block lasts; it stays."""
    require_address(where)
    os.environ.update({**QUIET, **(ALONE if is_loopback(where.address) else {})})
    with connected(f"cannot use --address {where.address}", address=where.address) as ray:
        yield ray


@contextmanager
def connected(what: str, **options: Any) -> Iterator[Any]:
    """Start Ray or connect to it, until the end of a block; raise UsageError, with `what` is wrong, if that fails."""
    ray = imported()
    try:
        with hushed():
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        ray.shutdown()
        remedy = "all nodes need the same token, Python and Ray" if "address" in options else "leave out --engine ray"
        raise UsageError(f"{what}: {first_line(error)}; {remedy}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def hushed() -> Iterator[None]:
    """Discard all output to standard error: Ray's own lines, some twenty before it gives up a cluster."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def first_line(error: BaseException) -> str:
    """Return what an error of Ray says, on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def short_place() -> str:
    """Return a directory for temporary files whose name leaves room for those of Ray's sockets."""
    for place in (tempfile.gettempdir(), "/var/tmp"):
        if len(place) <= ROOM - len(f"/{PREFIX}12345678") and os.access(place, os.W_OK):
            return place
    raise UsageError(f"{tempfile.gettempdir()} is too long a name for Ray's sockets; set TMPDIR to a short one")


def require_address(where: Where) -> None:
    """Raise UsageError unless an address can be used, answers, and is safe to use."""
    address = where.address
    host, _, port = address.rpartition(":")
    if address != "auto" and ("://" in address or not host or not port.isdecimal()):
        raise UsageError(
            f"--address {address} must be host:port of the head node, or auto; run this on one of the nodes"
        )
    if not is_loopback(address) and not where.trusted:
        require_token()
    if address != "auto":
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH).close()
        except (OSError, OverflowError) as error:
            raise UsageError(f"no Ray cluster answers at --address {address}: {error}; is it started?") from None


def is_loopback(address: str) -> bool:
    """Return whether an address reaches this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)} if host else set()
        return bool(found) and all(ipaddress.ip_address(one).is_loopback for one in found)
    except (OSError, ValueError):
        return False


def require_token() -> None:
    """Raise UsageError unless Ray authenticates by a token that no other user can read."""
    remedy = "start the nodes and this with RAY_AUTH_MODE=token, or add --i-trust-this-network"
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        raise UsageError(f"anyone who reaches a Ray cluster without a token can run code there; {remedy}")
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise UsageError(f"Ray's token {path} cannot be read: {error.strerror}; copy it from the head node") from None
    if mode & 0o077:
        raise UsageError(f"Ray's token {path} can be read by others (mode {mode:o}); run: chmod 600 {path}")


def nodes_of(ray: Any) -> list[Node]:
    """Return the nodes that live."""
    return [
        Node(one["NodeID"], one["NodeManagerAddress"], int(one["Resources"].get("CPU", 0)),
             float(one["Resources"].get("GPU", 0)))
        for one in ray.nodes() if one["Alive"]
    ]  # fmt: skip


def usable(nodes: Sequence[Node], layout: Layout) -> list[Node]:
    """Return the nodes that can run a job."""
    return [node for node in nodes if node.cpus >= layout.cores and (layout.platform != "gpu" or node.gpus > 0)]


def require_usable(nodes: Sequence[Node], layout: Layout) -> list[Node]:
    """Return the nodes that can run a job; raise UsageError if none can, as Ray would wait for one for ever."""
    found = usable(nodes, layout)
    if not found:
        most = max((node.cpus for node in nodes), default=0)
        needs = f"{plural(layout.cores, 'core')}{' and a GPU' * (layout.platform == 'gpu')}"
        raise UsageError(
            f"a job needs {needs}, no node of {len(nodes)} has that (cores: {most} at most); add one that does"
        )
    return found


def gpu_share(nodes: Sequence[Node], layout: Layout) -> float:
    """Return the share of a GPU that a job asks for: as many share it as the node has cores for, 0 without GPUs.

    Ray gives a job a part of one GPU, never of two, and counts in ten-thousandths.
    """
    shares = [1.0 / math.ceil(node.cpus // layout.cores / node.gpus) for node in usable(nodes, layout) if node.gpus > 0]
    return math.floor(1e4 * min(shares)) / 1e4 if layout.platform == "gpu" and shares else 0.0


def slots(nodes: Sequence[Node], layout: Layout, share: float) -> Counter[str]:
    """Return how many jobs each node can run at the same time."""
    return Counter({
        node.id: min(node.cpus // layout.cores, int(node.gpus) * int(1.0 / share) if share else node.cpus)
        for node in usable(nodes, layout)
    })  # fmt: skip


def on_node(ray: Any, task: Callable[[str], str], node: Node, **options: Any) -> Any:
    """Return a task of Ray's that only this node may run."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    here = strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
    return ray.remote(scheduling_strategy=here, **options)(task)


def ask(ray: Any, task: Callable[[str], str], node: Node, text: str, gpus: float = 0.0) -> Facts:
    """Return what a task answers on one node; raise UsageError if it does not."""
    asked = on_node(ray, task, node, num_cpus=0, num_gpus=gpus, max_retries=0).remote(text)
    try:
        return json.loads(ray.get(asked, timeout=SECONDS))
    except ray.exceptions.RayError as error:
        why = "it does not answer" if isinstance(error, ray.exceptions.GetTimeoutError) else first_line(error)
        raise UsageError(
            f"node {node.address} cannot be used: {why}; every node needs the same gpi-rl, or must leave the cluster"
        ) from error
