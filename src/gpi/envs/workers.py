"""Gymnasium environments in worker processes, each of which simulates its share of a pool.

Only names and seeds as JSON and numbers as bytes pass between the processes, nothing that can carry code. That is why a
worker must be able to import what makes its environments.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from gpi.envs.faults import WorkerError, traceback_of
from gpi.envs.gym import GymPool
from gpi.envs.importing import OWN, Make, maker
from gpi.envs.pool import Notes, Step
from gpi.envs.replay import Position
from gpi.envs.subprocesses import PATIENCE, connect_to_parent, spec_from_json, start_process, wait_or_kill
from gpi.errors import EnvironmentFault, GpiError, UsageError

FAULTS: dict[str, type[GpiError]] = {kind.__name__: kind for kind in (EnvironmentFault, UsageError)}


class WorkerPool:
    """A `HostPool` of Gymnasium environments in worker processes, which simulate at the same time."""

    def __init__(self, name: str, make: Make | None, seeds: Sequence[int], processes: int, step_timeout: float = 0.0):
        """Start the processes, at most one per environment; a reset or step may take `step_timeout` seconds, if set."""
        self.num_envs, self.step_timeout = len(seeds), step_timeout
        if make is not None:
            require_importable(name, make)
        self.name, self.steps, self.notes = name, 0, Notes()
        self.shares = [share for share in np.array_split(np.arange(self.num_envs), processes) if len(share)]
        self.workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self.answers: list[select.poll] = []  # made once: `Connection.poll` makes one at every call
        try:
            for share in self.shares:
                self.workers.append(start_process("gpi.envs.workers", {"OMP_NUM_THREADS": "1"}))
                self.answers.append(select.poll())
                self.answers[-1].register(self.workers[-1][1].fileno(), select.POLLIN)
                request = {"path": sys.path, "name": name, "seeds": [int(seeds[i]) for i in share.tolist()]}
                self.workers[-1][1].send_bytes(json.dumps(request).encode())
            specs = [json.loads(self._receive(k)) for k in range(len(self.workers))]
            if any(spec != specs[0] for spec in specs):
                raise EnvironmentFault(f"{name}: spaces differ between worker processes; give all instances the same")
        except BaseException:
            self.close()
            raise
        self.spec = spec_from_json(specs[0])

    def reset(self) -> np.ndarray:
        """Start a new episode in every environment."""
        for _, pipe in self.workers:
            self._send(pipe, b"reset")
        return np.concatenate([self._rows(k, self._receive(k, 1)) for k in range(len(self.workers))])

    def step(self, action: np.ndarray) -> Step[np.ndarray]:
        """Step every environment, all processes at once."""
        self.steps += 1
        for share, (_, pipe) in zip(self.shares, self.workers, strict=True):
            self._send(pipe, b"step " + np.ascontiguousarray(action[share]).tobytes())
        parts = []
        for k, share in enumerate(self.shares):
            data, n = self._receive(k, 1), len(share)
            reward = np.frombuffer(data, np.float32, n)
            flags = np.frombuffer(data, np.bool_, 3 * n, 4 * n).reshape(3, n)
            parts.append((self._rows(k, data[7 * n :]), reward, *flags))
        return Step._make(np.concatenate(part) for part in zip(*parts, strict=True))

    def seek(self, position: Position) -> tuple[np.ndarray, np.ndarray]:
        """Bring a newly made pool to a position."""
        for share, (_, pipe) in zip(self.shares, self.workers, strict=True):
            counts = np.stack([position.resets[share], position.calls[share]])
            self._send(pipe, b"seek " + counts.tobytes() + np.ascontiguousarray(position.actions[:, share]).tobytes())
        obs, digests = [], []
        for k, share in enumerate(self.shares):
            data = self._receive(k, 1 + int(position.calls[share].max()))
            digests.append(np.frombuffer(data, np.int64, len(share)))
            obs.append(self._rows(k, data[8 * len(share) :]))
        return np.concatenate(obs), np.concatenate(digests)

    def close(self) -> None:
        """End the processes."""
        for _, pipe in self.workers:
            pipe.close()  # end of file tells the worker to exit
        deadline = time.monotonic() + PATIENCE
        for process, _ in self.workers:
            wait_or_kill(process, deadline)
        self.workers = []

    def _rows(self, k: int, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.float32).reshape(len(self.shares[k]), self.spec.observation_size)

    def _send(self, pipe: Connection, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the process died: receiving will say so
            pipe.send_bytes(message)

    def _await(self, k: int, calls: int) -> None:
        """Raise unless a worker answers in the time that its environments have for `calls` calls one after another."""
        share, limit = self.shares[k], self.step_timeout * len(self.shares[k]) * calls
        if limit and not self.answers[k].poll(1000 * limit):
            who = f"environment {share[0]}" if len(share) == 1 else f"environments {share[0]} to {share[-1]}"
            each = f", {self.step_timeout:g} for each call" if limit > self.step_timeout else ""
            raise EnvironmentFault(
                f"{self.name}: step {self.steps} of the pool: {who} did not return within {limit:g} seconds{each}; "
                "fix the environment, or allow more: --step-timeout"
            )

    def _receive(self, k: int, calls: int = 0) -> bytes:
        """Return a worker's answer, or raise the fault that it reports, with the worker's traceback.

        A worker that makes its environments may take any time; `calls` resets or steps may not.
        """
        process, pipe = self.workers[k]
        self._await(k, calls)
        try:
            answer = pipe.recv_bytes()
        except (EOFError, OSError):
            share, code = self.shares[k], wait_or_kill(process, time.monotonic() + PATIENCE)
            how = f"exit code {code}" if code >= 0 else f"by signal {-code}"
            raise EnvironmentFault(
                f"{self.name}: step {self.steps} of the pool: the worker process of environments {share[0]} to "
                f"{share[-1]} died ({how}); fix the environment, or give it more memory"
            ) from None
        if answer[:1] == b"\0":
            return answer[1:]
        if answer[:1] == b"\2":  # notes come before the answer
            self.notes = json.loads(answer[1:]) | self.notes
            return self._receive(k, calls)
        fault = json.loads(answer[1:])
        raise FAULTS[fault["kind"]](fault["line"]) from WorkerError(fault["traceback"])


def require_importable(name: str, make: Make) -> None:
    """Raise UsageError for a function that worker processes could not find."""
    if not importable(name, make):
        raise UsageError(
            f"{name} cannot be imported by worker processes; define it at the top level of a module, "
            "or leave --backend out"
        )


def importable(name: str, make: Make) -> bool:
    """Return whether a new process would find the same function by its name."""
    own = OWN.fullmatch(name)
    module = sys.modules.get(own[1]) if own else None
    return own is not None and own[1] != "__main__" and getattr(module, own[2], None) is make


def work(pipe: Connection) -> None:
    """Run a worker: make the environments, then answer messages until the pipe closes."""
    try:
        request = json.loads(pipe.recv_bytes())
        sys.path[:] = request["path"]
        pool = GymPool(request["name"], maker(request["name"]), request["seeds"])
        reply, sent = json.dumps(pool.spec).encode(), 0
        while True:
            if len(pool.notes) > sent:
                sent = len(pool.notes)
                pipe.send_bytes(b"\2" + json.dumps(pool.notes).encode())
            pipe.send_bytes(b"\0" + reply)
            reply = answer(pool, pipe.recv_bytes())
    except (EOFError, OSError):
        pass
    except GpiError as error:
        fault = {"kind": type(error).__name__, "line": str(error), "traceback": traceback_of(error) or ""}
        with contextlib.suppress(OSError):  # the parent is gone
            pipe.send_bytes(b"\1" + json.dumps(fault).encode())


def answer(pool: GymPool, message: bytes) -> bytes:
    """Carry out a message's request on the pool, and return the answer."""
    spec, n = pool.spec, pool.num_envs
    kind, shape = (np.int32, ()) if spec.discrete else (np.float32, (spec.action_size,))
    if message == b"reset":
        return pool.reset().tobytes()
    if message.startswith(b"seek "):
        resets, calls = np.frombuffer(message, np.int64, 2 * n, 5).reshape(2, n)
        data = message[5 + 16 * n :]
        actions = np.frombuffer(data, kind).reshape(len(data) // (4 * n * max(math.prod(shape), 1)), n, *shape)
        obs, digest = pool.seek(Position(resets, calls, np.zeros(n, np.int64), actions))
        return digest.tobytes() + obs.tobytes()
    out = pool.step(np.frombuffer(message, kind, offset=5).reshape(n, *shape))
    return b"".join(x.tobytes() for x in (out.reward, out.terminated, out.truncated, out.valid, out.obs))


if __name__ == "__main__":
    work(connect_to_parent())
