"""`train` and `resume`: decide what to run, from settings or from a run directory, and run it in a session."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

from gpi import files
from gpi.config import Config, config_of, decided, unpromised, validate_new, without_effect
from gpi.envs import tasks
from gpi.envs.checks import BEFORE_TRAINING, Effort, check
from gpi.envs.envpool import import_envpool
from gpi.envs.pool import Repeats
from gpi.errors import FileError, UsageError
from gpi.rundir import lock, segments
from gpi.rundir.done import read_done
from gpi.rundir.run import Run, open_run
from gpi.rundir.tables import slowest
from gpi.standalone import Facts
from gpi.terminal import counted
from gpi.training import devices
from gpi.training.job import Job, require_not_fewer, resolve
from gpi.training.memory import require_disk, require_memory
from gpi.training.progress import Progress
from gpi.training.session import Session

if TYPE_CHECKING:
    from gpi.callbacks import Callback
    from gpi.envs.importing import Make


class UserCode(NamedTuple):
    """The user's own code in a run; it is never stored in the run directory."""

    make: Make | None = None  # makes the user's own environments
    callbacks: Sequence[Callback] = ()


def train(
    config: Config, out: Path | None = None, user: UserCode | None = None, *, quiet: bool = False,
    typed: Iterable[str] = (),
) -> tuple[Run, int | None]:  # fmt: skip
    """Train a population and write its run directory; return it, and the signal that cut it short, if one did.

    Of the settings in `typed`, which the user has given one by one, those without effect are named.
    """
    make, callbacks = user or UserCode()
    config, notes = without_envpool(config, make)
    job = resolve(decided(config), make, callbacks)
    simulator = tasks.simulator(job.task, config.backend)
    job = dataclasses.replace(job, config=dataclasses.replace(job.config, backend=simulator))
    validate_new(job.config, job.task.return_range)
    require_memory(job)
    notes += require_disk(job, out or Path())
    notes += [*without_effect(job.config, typed), *unpromised(job.config)]
    directory = out or lock.make_new(default_directory(job.config))
    with lock.claim(directory), Progress(job.config.seeds, quiet=quiet) as progress:
        for note in notes:
            progress.say(f"note: {note}")
        devices.prepare(job.config)
        job = check_environment(job, progress)
        if job.uncertified:
            unknown = not math.isfinite(job.return_range[0])
            remedy = "; name them: --return-range LOW,HIGH" if unknown and job.repeats != "unseeded" else ""
            progress.say(f"note: trust = keep certifies and undoes nothing here: {job.uncertified}{remedy}")
        return Session(job, directory, progress).start()


def resume(
    directory: Path, steps: int | None = None, user: UserCode | None = None,
    *, env: str = "", allow_drift: bool = False, quiet: bool = False,
) -> tuple[Run, int | None]:  # fmt: skip
    """Continue an interrupted run, bit for bit, as if it had never been interrupted; or extend a finished one."""
    make, callbacks = user or UserCode()
    open_run(directory, "config.json")
    with lock.hold(directory):
        job, about = read_job(directory, make, callbacks)
        require_named(directory, job.config, env, make)
        if make is None and tasks.falls_back(job.config.task, job.config.backend):
            import_envpool()  # the run was made with it; here it is missing, which is said in one line
        if steps is not None:
            resolved = resolve(dataclasses.replace(job.config, steps=steps), make, callbacks)
            job = dataclasses.replace(resolved, repeats=job.repeats)
        with Progress(job.config.seeds, quiet=quiet) as progress:
            done = read_done(directory)
            if done is not None and done["complete"] and reached(done, job):
                require_not_fewer(directory, job, about, slowest(job.seeds, done["steps"], done["frozen"]))
                more = f"to train it further, name more: --steps {2 * job.config.steps}"
                if replay_lost(job, done):
                    segments.discard(directory)  # a kill after DONE was written leaves them
                    more = LOST
                progress.say(f"{directory} is complete; {more}")
                return Run(directory), None
            if done is not None and replay_lost(job, done):
                raise UsageError(f"{directory} cannot be trained further: {LOST}")
            require_memory(job)
            require_disk(job, directory)
            threads = about["runtime"]["PJRT_NPROC"]
            if threads or "jax" not in sys.modules:  # else the run has the devices of a JAX that others had started
                devices.prepare(job.config, threads)
            return Session(job, directory, progress).resume(about, allow_drift=allow_drift)


LOST = "its replay was deleted at its end; `gpi train --keep-replay` keeps it"


def replay_lost(job: Job, done: Facts) -> bool:
    """Return whether a run's end has deleted what its critic kept beyond the M slots."""
    ended = done["complete"] and not done.get("stopped")
    return bool(ended and job.config.replayed and not job.config.keep_replay)


def default_directory(config: Config) -> Path:
    """Return the path of a directory under runs/, named by time, algorithm and task."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    task = re.sub(r"[^A-Za-z0-9._-]+", "-", config.short_task)
    return Path("runs") / f"{stamp}-{config.algorithm}-{task}"


def without_envpool(config: Config, make: Make | None) -> tuple[Config, list[str]]:
    """Return the settings of a new run, which record Gymnasium where EnvPool is missing, and a line that says so."""
    if make is not None or not tasks.falls_back(config.task, config.backend):
        return config, []
    note = f"EnvPool is not installed here: {config.task} runs on Gymnasium, which is slower"
    return dataclasses.replace(config, backend="gymnasium"), [note]


def check_environment(job: Job, progress: Progress) -> Job:
    """Raise if training cannot work, before anything starts; return the job with the verdict on its environments."""
    config, alone = job.config, len(job.seeds) * job.config.num_envs == 1
    with counted("steps of the check", BEFORE_TRAINING, quiet=progress.quiet) as show:
        effort = Effort(BEFORE_TRAINING, episodes=0, alone=alone, show=show)
        options = {"allow_images": config.allow_images, "step_timeout": config.step_timeout}
        found = check(job.task, job.make, effort, **options)
    progress.note(found.notes)
    return dataclasses.replace(job, repeats=found.repeats)


def require_named(directory: Path, config: Config, env: str, make: Make | None) -> None:
    """Raise unless the user names their own code again: gpi never imports code named in a file."""
    own = tasks.find(config.task, config.backend, make if ":" in config.task else None).own
    if (env and env != config.task) or (make is not None and not own):
        other = env or tasks.name_of(make) if make else env
        raise UsageError(f"{directory} was trained in {config.task}, not in {other}; name that, or train again")
    if own and not env and make is None:
        raise UsageError(tasks.ask_for_name(directory, config.task))


def reached(done: Facts, job: Job) -> bool:
    """Return whether every seed that can still learn has taken the requested steps."""
    if len(done["steps"]) != len(job.seeds):
        found = f"{len(done['steps'])} counts of steps for {len(job.seeds)} seeds"
        raise FileError(f"DONE cannot be used: it has {found}; remove it to resume")
    alive = [seed for seed in job.seeds if str(seed) not in done["frozen"]]
    return not alive or slowest(job.seeds, done["steps"], done["frozen"]) >= job.config.steps


def read_job(directory: Path, make: Make | None = None, callbacks: Sequence[Callback] = ()) -> tuple[Job, Facts]:
    """Return the job of a run directory and what config.json says around its settings, all of it checked."""
    try:
        about = files.parse_json(files.read(directory, "config.json", files.JSON_LIMIT), "config.json")
        threads = about["runtime"]["PJRT_NPROC"]
        if not isinstance(threads, str) or not re.fullmatch(r"[0-9]{0,4}", threads):
            raise UsageError(f"PJRT_NPROC = {str(threads)[:80]!r} must be a number of threads")
        repeats = about.get("repeats", "exact")
        if repeats not in get_args(Repeats):
            raise UsageError(f"repeats = {str(repeats)[:80]!r} must be one of {', '.join(get_args(Repeats))}")
        return dataclasses.replace(resolve(config_of(about["config"]), make, callbacks), repeats=repeats), about
    except (UsageError, FileError, KeyError, TypeError) as error:
        raise FileError(f"{directory}: config.json cannot be used: {error}") from error
