"""`train` and `resume`: one run from its configuration, or its directory, to its end."""

from __future__ import annotations

import dataclasses
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpi import files
from gpi.envs import tasks
from gpi.errors import FileError, UsageError
from gpi.rundir import run as record
from gpi.rundir.run import Run
from gpi.training import devices as runtime
from gpi.training.config import Config, config_of, resolved
from gpi.training.progress import Progress
from gpi.training.session import Attempt, Guests

if TYPE_CHECKING:  # a run must set JAX and EnvPool up before it starts them
    from gpi.envs.gym import Make


def default_directory(config: Config) -> Path:
    """A new directory under runs/, named by time, algorithm and task."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    task = re.sub(r"[^A-Za-z0-9._-]+", "-", config.task.removeprefix("dmc/"))
    return Path("runs") / f"{stamp}-{config.algorithm}-{task}"


def train(
    config: Config,
    out: Path | None = None,
    quiet: bool = False,
    guests: Guests = Guests(),  # noqa: B008 (immutable)
) -> tuple[Run, int | None]:
    """Train a population and write its run directory; returns it, and the signal that cut it short, if one did."""
    config = resolved(config, guests.make)
    directory = out or default_directory(config)
    with record.claim(directory):
        progress = Progress(config.seeds, open_null() if quiet else None)
        start_jax(config)
        try:
            check_environment(config, guests, progress)
        except BaseException:
            progress.close()
            raise
        return Attempt(config, directory, {}, progress, guests).carry_on()


def start_jax(config: Config, threads: str = "") -> None:
    """Set what JAX reads only when it starts, unless it runs already; before any code of the user's starts it."""
    if "jax" not in sys.modules:
        runtime.prepare(config, threads)


def check_environment(config: Config, guests: Guests, progress: Progress) -> None:
    """Find a broken environment before anything is begun; those of EnvPool are known."""
    task = tasks.find(config.task, config.backend, guests.make)
    if task.backend in ("gymnasium", "processes"):
        from gpi.envs.checks import check

        for note in check(task, guests.make, alone=config.seeds * config.num_envs == 1).notes:
            progress.say(f"note: {note}")


def resume(
    directory: Path, steps: int | None = None, allow_drift: bool = False, quiet: bool = False,
    env: str = "", guests: Guests = Guests(),  # noqa: B008 (immutable)
) -> tuple[Run, int | None]:  # fmt: skip
    """Continue an interrupted run to the bit as if it had never been; or extend a finished one to more steps."""
    record.open_run(directory, "config.json")
    with record.hold(directory):
        config, about = read_config(directory, guests.make)
        named_again(directory, config, env, guests)
        if steps is not None:
            config = resolved(dataclasses.replace(config, steps=steps), guests.make)
        progress = Progress(config.seeds, open_null() if quiet else None)
        done = finished(directory)
        if done is not None and done["complete"] and reached(done, config):
            progress.say(f"{directory} is complete; to train it further, name more: --steps {2 * config.steps}")
            progress.close()
            return Run(directory), None
        start_jax(config, about["runtime"]["PJRT_NPROC"])
        attempt = Attempt(config, directory, about, progress, guests)
        return attempt.carry_on(resuming=True, allow_drift=allow_drift)


def named_again(directory: Path, config: Config, env: str, guests: Guests) -> None:
    """A user's own code is never imported because a file says so: they name it again."""
    own = tasks.find(config.task, config.backend, guests.make if ":" in config.task else None).own
    if (env and env != config.task) or (guests.make is not None and not own):
        other = env or tasks.name_of(guests.make) if guests.make else env
        raise UsageError(f"{directory} was trained in {config.task}, not in {other}; name that, or train anew")
    if own and not env and guests.make is None:
        raise UsageError(tasks.name_it(directory, config.task))


def reached(done: dict[str, Any], config: Config) -> bool:
    """Whether every seed that can still learn has taken the steps asked for."""
    alive = [steps for p, steps in enumerate(done["steps"]) if str(config.seed + p) not in done["frozen"]]
    return all(steps >= config.steps for steps in alive)


def read_config(directory: Path, make: Make | None = None) -> tuple[Config, dict[str, Any]]:
    """A run's settings and what config.json says around them; nothing in it is believed unchecked."""
    try:
        about = files.parse_json(files.read(directory, "config.json", files.JSON_LIMIT), "config.json")
        threads = about["runtime"]["PJRT_NPROC"]
        if not isinstance(threads, str) or not re.fullmatch(r"[0-9]{0,4}", threads):
            raise UsageError(f"PJRT_NPROC = {str(threads)[:80]!r} must be a number of threads")
        return config_of(about["config"], make), about
    except (UsageError, FileError, KeyError, TypeError) as error:
        raise FileError(f"{directory}: config.json cannot be used: {error}") from error


def finished(directory: Path) -> dict[str, Any] | None:
    """What DONE says, if the run ended."""
    if not (directory / "DONE").exists():
        return None
    done = files.parse_json(files.read(directory, "DONE", files.JSON_LIMIT), "DONE")
    steps, frozen = done.get("steps"), done.get("frozen")
    plain = type(done.get("complete")) is bool and isinstance(steps, list) and isinstance(frozen, dict)
    if not plain or not all(type(count) is int for count in done["steps"]):
        raise FileError(f"{directory}: DONE cannot be used: it lacks complete, steps or frozen; remove it to resume")
    return done


def open_null() -> Any:
    """A stream nobody reads."""
    import io

    return io.StringIO()
