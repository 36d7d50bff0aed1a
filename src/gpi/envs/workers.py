"""Gymnasium environments in worker processes: each simulates its share of a pool.

Nothing that can carry code crosses between the processes: names and seeds as JSON, numbers as bytes. That is why a
worker must be able to import what makes its environments.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gpi.envs.checks import WorkerError, traceback_of
from gpi.envs.gym import OWN, GymPool, Make, maker
from gpi.envs.pool import Place, Step
from gpi.envs.subprocesses import PATIENCE, begin, ended, spec_of, start
from gpi.errors import EnvironmentFault, GpiError, UsageError

FAULTS: dict[str, type[GpiError]] = {kind.__name__: kind for kind in (EnvironmentFault, UsageError)}


class WorkerPool:
    """A `Pool` of Gymnasium environments in worker processes, which simulate at the same time."""

    compiled = False
    handle = None

    def __init__(self, name: str, make: Make | None, seeds: Sequence[int], processes: int):
        """Start the processes, at most one for each environment."""
        self.num_envs = len(seeds)
        if make is not None:
            require_importable(name, make)
        self.name, self.played = name, 0
        self.shares = [share for share in np.array_split(np.arange(self.num_envs), processes) if len(share)]
        self.workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        try:
            for share in self.shares:
                self.workers.append(start("gpi.envs.workers", {"OMP_NUM_THREADS": "1"}))
                orders = {"path": sys.path, "name": name, "seeds": [int(seeds[i]) for i in share]}
                self.workers[-1][1].send_bytes(json.dumps(orders).encode())
            specs = [json.loads(self._receive(k)) for k in range(len(self.workers))]
            if any(spec != specs[0] for spec in specs):
                raise EnvironmentFault(f"{name}: spaces differ between worker processes; give all instances the same")
        except BaseException:
            self.close()
            raise
        self.spec = spec_of(specs[0])

    def reset(self, handle: Any) -> tuple[Any, np.ndarray]:
        """Start a new episode in every environment."""
        for _, pipe in self.workers:
            self._send(pipe, b"reset")
        return handle, np.concatenate([self._rows(k, self._receive(k)) for k in range(len(self.workers))])

    def step(self, handle: Any, action: np.ndarray) -> tuple[Any, Step]:
        """Step every environment."""
        return handle, self.play(action)

    def play(self, action: np.ndarray) -> Step:
        """Step every environment, all processes at once."""
        self.played += 1
        for share, (_, pipe) in zip(self.shares, self.workers, strict=True):
            self._send(pipe, b"step " + np.ascontiguousarray(action[share]).tobytes())
        parts = []
        for k, share in enumerate(self.shares):
            data, n = self._receive(k), len(share)
            reward = np.frombuffer(data, np.float32, n)
            flags = np.frombuffer(data, np.bool_, 2 * n, 4 * n)
            parts.append((self._rows(k, data[6 * n :]), reward, flags[:n], flags[n:]))
        return Step(*(np.concatenate(part) for part in zip(*parts, strict=True)))  # type: ignore[arg-type]

    def seek(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """Go to a place."""
        for share, (_, pipe) in zip(self.shares, self.workers, strict=True):
            numbers = np.stack([place.resets[share], place.calls[share]])
            self._send(pipe, b"seek " + numbers.tobytes() + np.ascontiguousarray(place.actions[:, share]).tobytes())
        obs, digests = [], []
        for k, share in enumerate(self.shares):
            data = self._receive(k)
            digests.append(np.frombuffer(data, np.int64, len(share)))
            obs.append(self._rows(k, data[8 * len(share) :]))
        return np.concatenate(obs), np.concatenate(digests)

    def close(self) -> None:
        """End the processes."""
        for _, pipe in self.workers:
            pipe.close()  # which they take for the end
        deadline = time.monotonic() + PATIENCE
        for process, _ in self.workers:
            ended(process, deadline)
        self.workers = []

    def _rows(self, k: int, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.float32).reshape(len(self.shares[k]), self.spec.observation_size)

    def _send(self, pipe: Connection, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the process died: receiving will say so
            pipe.send_bytes(message)

    def _receive(self, k: int) -> bytes:
        """A worker's answer; its fault is raised here, with the traceback it had there."""
        process, pipe = self.workers[k]
        try:
            answer = pipe.recv_bytes()
        except (EOFError, OSError):
            share, code = self.shares[k], ended(process, time.monotonic() + PATIENCE)
            how = f"exit code {code}" if code >= 0 else f"by signal {-code}"
            raise EnvironmentFault(
                f"{self.name}: step {self.played} of the pool: the worker process of environments {share[0]} to "
                f"{share[-1]} died ({how}); mend the environment, or give it more memory"
            ) from None
        if answer[:1] == b"\0":
            return answer[1:]
        fault = json.loads(answer[1:])
        raise FAULTS[fault["kind"]](fault["line"]) from WorkerError(fault["traceback"])


def require_importable(name: str, make: Make) -> None:
    """Refuse a function that worker processes could not find."""
    if not importable(name, make):
        raise UsageError(
            f"{name} cannot be imported by worker processes; define it at the top level of a module, "
            "or leave --backend out"
        )


def importable(name: str, make: Make) -> bool:
    """Whether a new process gets the same function by its name."""
    own = OWN.fullmatch(name)
    module = sys.modules.get(own[1]) if own else None
    return own is not None and own[1] != "__main__" and getattr(module, own[2], None) is make


def work(pipe: Connection) -> None:
    """The life of a worker: make the environments, then do as told until the pipe closes."""
    try:
        orders = json.loads(pipe.recv_bytes())
        sys.path[:] = orders["path"]
        pool = GymPool(orders["name"], maker(orders["name"]), orders["seeds"])
        pipe.send_bytes(b"\0" + json.dumps(pool.spec).encode())
        while True:
            pipe.send_bytes(b"\0" + answer(pool, pipe.recv_bytes()))
    except (EOFError, OSError):
        pass
    except GpiError as error:
        fault = {"kind": type(error).__name__, "line": str(error), "traceback": traceback_of(error) or ""}
        with contextlib.suppress(OSError):  # nobody listens any more
            pipe.send_bytes(b"\1" + json.dumps(fault).encode())


def answer(pool: GymPool, message: bytes) -> bytes:
    """What the pool says to one message."""
    spec, n = pool.spec, pool.num_envs
    kind, shape = (np.int32, ()) if spec.discrete else (np.float32, (spec.action_size,))
    if message == b"reset":
        return pool.reset(None)[1].tobytes()
    if message.startswith(b"seek "):
        resets, calls = np.frombuffer(message, np.int64, 2 * n, 5).reshape(2, n)
        data = message[5 + 16 * n :]
        actions = np.frombuffer(data, kind).reshape(len(data) // (4 * n * max(math.prod(shape), 1)), n, *shape)
        obs, digest = pool.seek(Place(resets, calls, np.zeros(n, np.int64), actions))
        return digest.tobytes() + obs.tobytes()
    out = pool.play(np.frombuffer(message, kind, offset=5).reshape(n, *shape))
    return b"".join(np.asarray(x).tobytes() for x in (out.reward, out.terminated, out.truncated, out.obs))


if __name__ == "__main__":
    work(begin())
