"""Trainers for tests that look inside: compiled whole, or only as far as they collect."""

import jax

from gpi.config import Config
from gpi.training.job import Job, resolve
from gpi.training.session import make_environments
from gpi.training.trainer import Trainer


def trainer_of(config: Config, devices: int = 2) -> Trainer:
    """Return a trainer that is ready to train."""
    trainer = uncompiled(resolve(config), devices)
    trainer.compile()
    return trainer


def uncompiled(job: Job, devices: int = 2) -> Trainer:
    """Return a trainer that is not compiled yet."""
    return Trainer(job, make_environments(job), jax.local_devices()[: min(devices, job.config.seeds)])


def collecting(trainer: Trainer) -> Trainer:
    """Return the trainer, compiled for collecting only: it never learns."""
    trainer.collector.use(trainer.collector.lower(trainer.learner.acting).compile())
    return trainer
