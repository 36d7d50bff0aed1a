"""The paper's claims that need no experiment: Theorem 4 and figure 1, computed from the mixtures themselves."""

from __future__ import annotations

from typing import NamedTuple

from gpi.study.claims import FAILS, HOLDS
from gpi.theory.mixture import mixture, uniform_mixture

BATCHES = (2, 3, 5, 10, 50)
LARGE = 400
KAPPAS = tuple(j / 20 for j in range(21))


class Exact(NamedTuple):
    """A claim that is decided by computing it: the paper's words, the computed value, and the verdict."""

    name: str
    words: str
    paper: str
    judged: str
    ours: str
    verdict: str


def theory_claims() -> list[Exact]:
    """Return the claims of Theorem 4 and figure 1, each with its computed value and verdict."""
    best = [mixture(B, kappa) for B in BATCHES for kappa in KAPPAS]
    ess, tv = min(one.ess_gain for one in best), min(one.tv_gain for one in best)
    sample = mixture(LARGE, 1.0).ess_gain - uniform_mixture(LARGE, 1.0).ess_gain
    size = mixture(LARGE, 0.0).tv_gain - uniform_mixture(LARGE, 0.0).tv_gain
    policies = sorted({mixture(2, kappa).M for kappa in (0.0, 0.5, 1.0)})

    def decided(holds: bool) -> str:
        return HOLDS if holds else FAILS

    return [
        Exact("theorem-4", "Effective sample size and total TV update size are at least the on-policy ones, for "
              "every kappa", "0 % or more", f"least percent change over B in {BATCHES} and kappa from 0 to 1",
              f"sample size {100 * ess:+.2f} %, update size {100 * tv:+.2f} %", decided(min(ess, tv) >= 0.0)),
        Exact("figure-1-uniform", "For large B non-uniform weights give more than uniform ones", "none",
              f"percentage points more with B = {LARGE}: sample size at kappa = 1, update size at kappa = 0",
              f"{100 * sample:+.1f} and {100 * size:+.1f}", decided(min(sample, size) > 0.0)),
        Exact("policies", "For B = 2 the three kappas use the data of the last 3 or 4 policies", "3 or 4",
              "policies with a weight, at kappa 0, 0.5 and 1", " and ".join(map(str, policies)),
              decided(policies == [3, 4])),
    ]  # fmt: skip
