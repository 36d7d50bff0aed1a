"""What runs come to, as numbers: their audit, what seeds learned and lost, what promises were worth; no drawing."""

from gpi.analysis.audit import COUNTED, ESTIMATES, MEANING, bounds_of, equation_of, summarise
from gpi.analysis.random_policy import SAMPLES, RandomPolicy, parse_measurements, random_returns, scale_of
from gpi.analysis.retention import (
    BIN,
    BINS,
    BINS_LIMIT,
    COUNT,
    ERRORS,
    MEAN,
    SQUARE,
    bin_of,
    curve_of,
    joined,
    retention_at,
)
from gpi.analysis.student_t import LEVEL, reach_of, student, t_quantile
from gpi.rundir.run import FINAL_STEPS, final_performance, final_window

__all__ = [
    "BIN",
    "BINS",
    "BINS_LIMIT",
    "COUNT",
    "COUNTED",
    "ERRORS",
    "ESTIMATES",
    "FINAL_STEPS",
    "LEVEL",
    "MEAN",
    "MEANING",
    "SAMPLES",
    "SQUARE",
    "RandomPolicy",
    "bin_of",
    "bounds_of",
    "curve_of",
    "equation_of",
    "final_performance",
    "final_window",
    "joined",
    "parse_measurements",
    "random_returns",
    "reach_of",
    "retention_at",
    "scale_of",
    "student",
    "summarise",
    "t_quantile",
]
