"""Rough estimates before a study runs: how long it takes, and how much it writes."""

from __future__ import annotations

from gpi import config as run_settings
from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.study.definition import Job, Study

SIMULATION = {
    "pendulum": 20, "reacher": 22, "point_mass": 22, "acrobot": 25, "cartpole": 27, "cheetah": 35, "finger": 35,
    "hopper": 70, "ball_in_cup": 80, "fish": 95, "swimmer-swimmer6": 155, "walker": 155, "swimmer-swimmer15": 400,
    "manipulator": 400, "humanoid": 450,
}  # fmt: skip
"""Seconds of one core for a million steps of a domain or task; Intel Xeon, EnvPool 1.2.5, one core per process, the
three last extrapolated from their share of the suite."""
OTHER = 100  # of a task that is not in the suite
LEARNING = {"ppo": 65, "trpo": 70, "vmpo": 75}
"""Seconds of one core for learning from a million steps by each rule without reuse; three times that with M = 4."""
START = 40  # seconds of one core until the first iteration
ROW = 420  # bytes of an iteration and seed in metrics.csv and audit.csv
EPISODE = 32  # bytes in episodes.csv
CHECKPOINTS = 4  # three, and one while it is written


def core_seconds(job: Job) -> float:
    """Return about how many seconds of one core a job takes without a GPU."""
    config = job.config
    domain = config.short_task.partition("-")[0]
    simulation = SIMULATION.get(config.short_task, SIMULATION.get(domain, OTHER))
    algorithm = ALGORITHMS[config.algorithm]
    reuse = 0.5 + 0.5 * len(run_settings.plan_of(config).nu) / config.B
    learning = LEARNING.get(algorithm.rule, 70) * reuse * config.epochs / 10
    return START + config.seeds * config.steps / 1e6 * (simulation + learning)


def disk_bytes(job: Job) -> int:
    """Return about how many bytes the run directory of a job has at its end."""
    config, plan = job.config, run_settings.plan_of(job.config)
    spec = dmc.TASKS.get(config.short_task)
    observations = spec.observation_size if spec else 32
    tables = config.steps // plan.steps * ROW + config.steps // (spec.horizon or 200 if spec else 200) * EPISODE
    buffer = 4 * len(plan.nu) * plan.steps * (2 * observations + 12)
    return config.seeds * (tables + CHECKPOINTS * buffer) + 2**17


def time_in_words(seconds: float) -> str:
    """Return a rough time: minutes below two hours, never 0."""
    return f"{max(1.0, seconds / 60):,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} hours"


def size_in_words(size: float) -> str:
    """Return a rough number of bytes: MB below 1 GB, never 0."""
    return f"{max(1.0, size / 1e6):,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def hours(study: Study, cores: int) -> float:
    """Return about how many hours a study takes on this many cores, all of them busy, without a GPU."""
    return sum(core_seconds(job) for job in study.jobs) / cores / 3600
