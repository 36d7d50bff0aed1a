"""Theorem 4: the closed form against golden values, an independent convex solver and the KKT conditions."""
# pyright: reportAttributeAccessIssue=false
# (Clarabel is a compiled module without type stubs.)

import csv
import functools
import io
import math
from dataclasses import astuple

import clarabel
import numpy as np
import pytest
from scipy import sparse

from gpi.errors import UsageError
from gpi.theory.mixture import (
    Mixture,
    delta,
    effective_sample_size,
    eps_gpi,
    mean_age,
    mixture,
    nu,
    on_policy,
    tv_update_size,
    uniform_mixture,
)

KAPPAS = (0.0, 5e-324, 1e-17, 1e-9, 0.1, 0.3, 0.5, 0.7, 0.9, 1 - 1e-9, 1 - 2**-53, 1.0)
GRID = [(B, kappa) for B in (*range(1, 65), 100, 257, 500) for kappa in KAPPAS]

# published/gpi_mixture_reference.csv; c = t + 1. Its truncated mixtures are left out: we truncate nothing.
REFERENCE = """\
B,kappa,c,M,eps_mult,eps_gpi,delta_gpi,ess_gain_pct,tv_gain_pct
2,0.0,3.1547,3,0.70291,0.14058,0.009882,0.0,40.6
2,0.5,3.9245,3,0.60475,0.12095,0.007314,27.1,20.9
2,1.0,5.0,4,0.5,0.1,0.005,66.7,0.0
3,0.0,4.4365,4,0.53923,0.10785,0.005815,-0.0,61.8
3,0.5,5.9606,5,0.43021,0.08604,0.003702,35.7,29.1
3,1.0,8.0,7,0.33333,0.06667,0.002222,86.7,0.0
4,0.0,5.8284,5,0.43613,0.08723,0.003804,0.0,74.5
4,0.5,7.9741,7,0.33406,0.06681,0.002232,39.6,33.6
4,1.0,11.0,10,0.25,0.05,0.00125,96.4,0.0
5,0.0,7.1623,7,0.36562,0.07312,0.002674,-0.0,82.8
5,0.5,9.9784,9,0.27316,0.05463,0.001492,41.8,36.6
5,1.0,14.0,13,0.2,0.04,0.0008,102.2,0.0
8,0.0,11.164,11,0.24609,0.04922,0.001211,-0.0,96.9
8,0.5,15.9872,15,0.17659,0.03532,0.000624,45.1,41.3
8,1.0,23.0,22,0.125,0.025,0.000313,110.8,0.0
10,0.0,13.8313,13,0.202,0.0404,0.000816,0.0,102.0
10,0.5,19.9906,19,0.14292,0.02858,0.000408,46.1,42.9
10,1.0,29.0,28,0.1,0.02,0.0002,113.7,0.0
"""


@pytest.mark.parametrize(
    ("kappa", "expected_nu", "age", "eps", "ess"),
    [
        (0.0, [0.622008, 0.333333, 0.044658], 1.422650, 0.140583, 2048.0),
        (0.5, [0.506538, 0.333333, 0.160128], 1.653590, 0.120949, 2603.4),
        (1.0, [0.4, 0.3, 0.2, 0.1], 2.0, 0.1, 3413.3),
    ],
)
def test_golden_values_of_the_design(kappa, expected_nu, age, eps, ess):
    m = mixture(2, kappa, eps=0.2, n=1024)
    assert m.nu == pytest.approx(expected_nu, abs=5e-7)
    assert len(expected_nu) == m.M
    assert m.mean_age == pytest.approx(age, abs=5e-7)
    assert m.eps_gpi == pytest.approx(eps, abs=5e-7)
    assert m.ess == pytest.approx(ess, abs=0.05)


@pytest.mark.parametrize(
    "row", list(csv.DictReader(io.StringIO(REFERENCE))), ids=lambda r: f"B{r['B']}-kappa{r['kappa']}"
)
def test_reference_table(row):
    m = mixture(int(row["B"]), float(row["kappa"]), eps=0.2)
    assert int(row["M"]) == m.M
    # The table's c at kappa = 0.5 comes from a search that stopped early: it is off by up to 2e-4.
    assert m.nu[0] / (m.nu[0] - m.nu[1]) + 1 == pytest.approx(float(row["c"]), abs=3e-4)
    assert 1 / m.mean_age == pytest.approx(float(row["eps_mult"]), abs=6e-6)
    assert m.eps_gpi == pytest.approx(float(row["eps_gpi"]), abs=6e-6)
    assert m.delta_gpi == pytest.approx(float(row["delta_gpi"]), abs=6e-7)
    assert 100 * m.ess_gain == pytest.approx(float(row["ess_gain_pct"]), abs=0.06)
    assert 100 * m.tv_gain == pytest.approx(float(row["tv_gain_pct"]), abs=0.06)


def test_guarantees_of_theorem_4_hold_to_the_letter():
    for B, kappa in GRID:
        for eps, n in ((0.2, 1024), (0.13, 997)):
            m = mixture(B, kappa, eps, n)
            assert m.ess >= B * n, (B, kappa)
            assert m.tv_size >= eps / 2, (B, kappa)
            assert m.ess_gain >= 0 and m.tv_gain >= 0, (B, kappa)
            assert min(m.nu) > 0 and len(m.nu) == m.M, (B, kappa)
            assert math.fsum(m.nu) == pytest.approx(1, rel=1e-12), (B, kappa)
            assert math.fsum(p * p for p in m.nu) <= (1 + 1e-12) / B, (B, kappa)
            assert np.dot(m.nu, np.arange(1, m.M + 1)) <= (1 + 1e-12) * B, (B, kappa)


def test_kappa_trades_sample_size_for_update_size():
    for B in (2, 3, 8, 64):
        ess = [mixture(B, kappa).ess for kappa in KAPPAS]
        tv_size = [mixture(B, kappa).tv_size for kappa in KAPPAS]
        assert ess == pytest.approx(sorted(ess)) and tv_size == pytest.approx(sorted(tv_size, reverse=True))
        assert ess[0] == pytest.approx(B * 1024) and tv_size[-1] == pytest.approx(0.1)
        assert nu(B, 1.0) == pytest.approx([2 * (3 * B - 2 - i) / (3 * B - 2) / (3 * B - 1) for i in range(3 * B - 2)])


def test_fields_are_the_equations():
    m = mixture(4, 0.3, eps=0.1, n=100)
    i = np.arange(m.M)
    p = np.array(m.nu)
    assert m.mean_age == mean_age(m.nu) == pytest.approx(p @ (i + 1))
    assert m.eps_gpi == eps_gpi(m.nu, 0.1) == pytest.approx(0.1 / (p @ (i + 1)))
    assert m.delta_gpi == delta(m.eps_gpi) == pytest.approx(m.eps_gpi**2 / 2)
    assert m.ess == effective_sample_size(m.nu, 100) == pytest.approx(100 / (p @ p))
    assert m.tv_size == tv_update_size(m.nu, 4, 0.1) == pytest.approx(4 * m.eps_gpi / 2)
    assert m.ess_gain == pytest.approx(m.ess / 400 - 1)
    assert m.tv_gain == pytest.approx(m.tv_size / 0.05 - 1)


@pytest.mark.parametrize("kappa", KAPPAS)
def test_on_policy_is_the_mixture_of_one(kappa):
    one = Mixture((1.0,), 1, 1.0, 0.2, delta(0.2), 1024.0, 0.1, 0.0, 0.0)
    assert mixture(1, kappa) == uniform_mixture(1, kappa) == on_policy(1) == one
    assert on_policy(2) == mixture(1, kappa, n=2048)


def test_numpy_scalars_give_plain_python():
    m = mixture(np.int64(3), np.float32(0.5), np.float64(0.2), np.int32(64))  # type: ignore[arg-type]
    assert m == mixture(3, 0.5, 0.2, 64)
    assert all(type(x) in (float, int, tuple) for x in astuple(m))
    assert all(type(x) is float for x in m.nu)


def test_uniform_is_the_best_feasible_uniform_and_no_better_than_optimal():
    for B in (2, 3, 5, 16):
        c_ess, c_tv = 1 / B - 1 / (2 * B - 1), B - (B + 1) / 2
        assert uniform_mixture(B, 0.0).M == B and uniform_mixture(B, 1.0).M == 2 * B - 1
        for kappa in KAPPAS:
            m = uniform_mixture(B, kappa)
            objective = {M: kappa / M / c_ess + (1 - kappa) * (M + 1) / 2 / c_tv for M in range(B, 2 * B)}
            assert m.nu == (1 / m.M,) * m.M
            assert objective[m.M] == pytest.approx(min(objective.values()))
            assert m.ess_gain > -1e-12 and m.tv_gain > -1e-12
            s, c = scales(B)
            assert eq_12(nu(B, kappa), kappa, s, c) <= eq_12(m.nu, kappa, s, c) + 1e-12


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        *(((2, kappa), "kappa", kappa) for kappa in (-0.1, 1.5, math.nan, math.inf, "0.5", None, True)),
        *(((B, 0.5), "B", B) for B in (0, -1, 2.0, 2.5, math.nan, "2", None, True)),
        *(((2, 0.5, eps), "eps", eps) for eps in (0, -0.2, math.nan, math.inf, "0.2", None, False)),
        *(((2, 0.5, 0.2, n), "n", n) for n in (0, -5, 1024.0, math.nan, "64", None, True)),
    ],
)
@pytest.mark.parametrize("family", [mixture, uniform_mixture])
def test_bad_input_gets_one_line_with_value_rule_and_remedy(family, arguments, name, value):
    with pytest.raises(UsageError) as error:
        family(*arguments)
    line = str(error.value)
    assert line.startswith(f"{name} must be ") and f"got {value!r}; use " in line and "\n" not in line


def test_figure_1_is_drawn(tmp_path):
    from gpi.report.mixture import figure_1

    for name, own in (("plain.png", {}), ("own.png", {"B": 4, "kappa": 0.3})):
        figure_1(tmp_path / name, **own)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def eq_12(p, kappa: float, c_ess: float, c_tv: float) -> float:
    p = np.asarray(p)
    return float(kappa * (p @ p) / c_ess + (1 - kappa) * (p @ np.arange(1, p.size + 1)) / c_tv)


@functools.cache
def scales(B: int) -> tuple[float, float]:
    """Return c_ESS and c_TV: what each guarantee of eq (12) leaves to spare at the other end of kappa."""
    p, q = np.array(nu(B, 1.0)), np.array(nu(B, 0.0))
    return float(1 / B - p @ p), float(B - q @ np.arange(1, q.size + 1))


@functools.cache
def constraints(B: int):
    """Eq (12)'s constraints for Clarabel, A x + s = b: Σν = 1, ν ≥ 0, Σν(i+1) ≤ B, ‖ν‖ ≤ 1/√B; M̄ = 3B + 2 is large."""
    size = 3 * B + 2
    eye, ages = sparse.eye(size, format="csc"), np.arange(1.0, size + 1)
    rows = [np.ones((1, size)), -eye, ages[None], sparse.csc_matrix((1, size)), -eye]
    A = sparse.vstack([sparse.csc_matrix(row) for row in rows], format="csc")
    b = np.concatenate([[1], np.zeros(size), [B, 1 / math.sqrt(B)], np.zeros(size)])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(size + 1), clarabel.SecondOrderConeT(size + 1)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.presolve_enable = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    return eye, ages, (A, b, cones, settings)


def solve(B: int, quadratic: float, linear: float) -> float:
    """Return the minimum of quadratic·Σν² + linear·Σν(i+1) under eq (12)'s constraints, by interior points."""
    eye, ages, problem = constraints(B)
    solution = clarabel.DefaultSolver(eye * (2 * quadratic), linear * ages, *problem).solve()
    assert str(solution.status) in ("Solved", "AlmostSolved"), (B, quadratic, linear, solution.status)
    return solution.obj_val


def kkt_residual(p: np.ndarray, B: int, kappa: float, c_ess: float, c_tv: float) -> float:
    """Return the largest violation of eq (12)'s KKT conditions; multipliers are fitted on the support."""
    M = p.size
    padded = np.concatenate([p, np.zeros(B + 2)])
    ages = np.arange(1.0, padded.size + 1)
    slack_ess, slack_tv = 1 / B - p @ p, B - padded @ ages
    gradient = 2 * kappa * padded / c_ess + (1 - kappa) * ages / c_tv
    columns = [np.ones_like(ages)]
    if slack_ess < 1e-9 / B:
        columns.append(2 * padded)
    if slack_tv < 1e-9 * B:
        columns.append(ages)
    jacobian = np.stack(columns, axis=1)
    multipliers = np.linalg.lstsq(jacobian[:M], -gradient[:M], rcond=None)[0]
    stationarity = gradient + jacobian @ multipliers  # the multiplier of ν_i ≥ 0: zero on the support, positive outside
    return max(
        np.abs(stationarity[:M]).max(),
        np.maximum(0, -stationarity[M:]).max(),
        np.maximum(0, -multipliers[1:]).max(initial=0),
        abs(p.sum() - 1),
        max(0.0, -slack_ess * B),
        max(0.0, -slack_tv / B),
        max(0.0, -p.min()),
    )


@pytest.mark.parametrize("B", [2, 3, 7, 20, 64])
def test_scaling_coefficients_agree_with_the_convex_solver(B):
    c_ess, c_tv = scales(B)
    assert 1 / B - c_ess == pytest.approx(solve(B, 1, 0), rel=1e-8)
    assert B - c_tv == pytest.approx(solve(B, 0, 1), rel=1e-8)


def test_kkt_residual_sees_a_wrong_mixture():
    for kappa in (0.0, 0.5, 1.0):
        p = np.array(nu(4, kappa))
        assert kkt_residual(p, 4, kappa, *scales(4)) < 1e-12
        bent = p * (1 + 1e-6 * np.arange(p.size) ** 2)
        assert kkt_residual(bent / bent.sum(), 4, kappa, *scales(4)) > 1e-8


@pytest.mark.parametrize("cases", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_cases_agree_with_the_convex_solver(cases):
    rng = np.random.default_rng(cases)
    for case in range(cases):
        B = int(rng.integers(1, 65))
        kappa = (0.0, 1.0)[case % 2] if case % 10 < 2 else float(rng.uniform())
        p = np.array(nu(B, kappa))
        if B == 1:  # c_ESS = c_TV = 0, and E[i+1] ≤ 1 leaves one feasible mixture
            assert p.tolist() == [1.0]
            continue
        c_ess, c_tv = scales(B)
        optimum = solve(B, kappa / c_ess, (1 - kappa) / c_tv)
        assert eq_12(p, kappa, c_ess, c_tv) == pytest.approx(optimum, rel=1e-8), (B, kappa)
        assert p @ p <= (1 + 1e-12) / B and p @ np.arange(1, p.size + 1) <= (1 + 1e-12) * B, (B, kappa)
        assert abs(p.sum() - 1) <= 1e-12, (B, kappa)
        assert kkt_residual(p, B, kappa, c_ess, c_tv) < 1e-10, (B, kappa)
