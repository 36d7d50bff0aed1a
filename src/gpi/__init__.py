"""Generalized Policy Improvement: PPO, TRPO and VMPO with theoretically supported sample reuse.

Importing this package changes no global setting and does not start JAX.
"""

from gpi import study as study
from gpi.api import audit, resume, train
from gpi.config import Config
from gpi.errors import GpiError, UsageError
from gpi.evaluation import Evaluation, evaluate
from gpi.run import Run
from gpi.rundir.policies import load
from gpi.standalone import Policy
from gpi.theory.mixture import Mixture, mixture, uniform_mixture

__version__ = "0.1.0"
__all__ = [
    "Config", "Evaluation", "GpiError", "Mixture", "Policy", "Run", "UsageError", "audit", "evaluate", "load",
    "mixture", "resume", "train", "uniform_mixture",
]  # fmt: skip
