"""Every route gives numpy's solution on well-posed systems, and a true status on the others."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from linalg_cases import dense_oracle, dense_rows, head_rows, random_targets

from fastntk.base.errors import BudgetError, InputError
from fastntk.linalg import DenseRows, Dual, Eigen, MatrixFree, PrimalCholesky, choose, solve
from fastntk.linalg.condition import inverse_one_norm

SYSTEMS = {
    "tall": lambda: dense_rows(12, 3, 10),
    "wide": lambda: dense_rows(3, 2, 15),
    "head, tall": lambda: head_rows(n=20),
    "head, wide": lambda: head_rows(n=3, body=30),
}
ROUTES = ["auto", "primal", "eigen", "dual", "matrix-free", "cg", "lsmr"]


def oracle(rows, targets, damping):
    J = dense_oracle(rows)
    t = targets.numpy().reshape(J.shape[0], *targets.shape[2:])
    return np.linalg.solve(J.T @ J + damping * np.eye(J.shape[1]), J.T @ t)


def error(value, expected):
    return float(np.linalg.norm(value.numpy() - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("more", [(), (3,)])
def test_all_routes_give_the_same(system, route, more):
    rows = SYSTEMS[system]()
    targets = random_targets(*rows.shape[:2], *more)
    damping = 1e-2 * float(rows.column_norms2().mean())
    solution = solve(rows, targets, damping=damping, solver=route, tol=1e-11)
    expected = oracle(rows, targets, damping)
    assert tuple(solution.value.shape) == expected.shape
    assert solution.value.dtype == torch.float64
    assert error(solution.value, expected) < 1e-8
    assert solution.status == "ok"
    assert solution.residual <= 1e-11


@pytest.mark.parametrize(
    ("method", "preconditioner"),
    [("cg", "none"), ("cg", "jacobi"), ("cg", "nystrom"), ("lsmr", "none"), ("lsmr", "jacobi")],
)
def test_preconditioners_change_the_way_not_the_solution(method, preconditioner):
    rows = dense_rows(20, 3, 40, rank=15)
    targets = random_targets(20, 3)
    solver = MatrixFree(method=method, preconditioner=preconditioner, rank=15, tol=1e-12)
    solution = solver.solve(rows, targets, damping=0.5)
    assert error(solution.value, oracle(rows, targets, 0.5)) < 1e-8
    assert solution.status == "ok"
    assert preconditioner in solution.message


def test_a_good_sketch_saves_iterations():
    rng = np.random.default_rng(0)
    scales = np.r_[np.full(10, 1e3), np.ones(50)]
    basis = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    rows = DenseRows(torch.from_numpy((rng.standard_normal((100, 60)) * scales) @ basis).view(50, 2, 60))
    targets = random_targets(50, 2)
    counts = {}
    for name in ("jacobi", "nystrom"):
        solution = MatrixFree(preconditioner=name, rank=20).solve(rows, targets, damping=10.0)
        assert solution.status == "ok"
        counts[name] = solution.iterations
    assert counts["nystrom"] < counts["jacobi"]


def test_factorise_once_solve_often():
    rows = dense_rows(12, 3, 10)
    factor = PrimalCholesky().factorise(rows.gram(torch.float64), 0.3)
    dual = Dual().factorise(rows, 0.3)
    for seed in range(3):
        targets = random_targets(12, 3, seed=seed)
        expected = oracle(rows, targets, 0.3)
        assert error(factor.solve(rows.rmatvec(targets)).value, expected) < 1e-10
        assert error(dual.solve(targets).value, expected) < 1e-10
        cg = MatrixFree().solve_rhs(rows, rows.rmatvec(targets), damping=0.3)
        assert error(cg.value, expected) < 1e-8


@pytest.mark.parametrize("method", [PrimalCholesky(), Eigen()])
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_residual_is_the_true_one_and_the_matrix_is_kept(method, overwrite):
    rows = dense_rows(12, 3, 10)
    matrix = rows.gram(torch.float64)
    original = matrix.clone()
    rhs = torch.randn(10, 2, dtype=torch.float64)
    solution = method.factorise(original, 0.3, overwrite=overwrite).solve(rhs)
    difference = matrix @ solution.value + 0.3 * solution.value - rhs
    true = float((difference.norm(dim=0) / rhs.norm(dim=0)).max())
    assert true < 1e-12
    assert solution.residual < 1e-12
    assert overwrite or torch.equal(original, matrix)


@pytest.mark.parametrize("size", [1, 2, 30, 1500])
def test_spoiled_triangles_do_not_spoil_products(size):
    """Also across the 1024-wide strips: the original must come back after LAPACK has used its memory."""
    from fastntk.linalg.factor import Intact, lapack

    half = torch.randn(size, min(size, 40), dtype=torch.float64)
    matrix = half @ half.T + torch.eye(size, dtype=torch.float64)
    x = torch.randn(size, 2, dtype=torch.float64)
    intact = Intact(matrix.clone())
    lapack.dpotrf(intact.fortran, lower=0, clean=0, overwrite_a=1)
    assert size == 1 or not torch.equal(intact.matrix, matrix)
    torch.testing.assert_close(torch.from_numpy(intact.multiply(x.numpy())), matrix @ x)
    torch.testing.assert_close(intact.restore(), matrix, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_condition_is_about_right(seed):
    rows = dense_rows(8, 2, 20, seed=seed)
    matrix = rows.gram(torch.float64)
    solution = PrimalCholesky().factorise(matrix, 1e-3).solve(torch.ones(20, dtype=torch.float64))
    true = np.linalg.cond(matrix.numpy() + 1e-3 * np.eye(20), 1)
    assert true / 4 < solution.condition < true * 1.001
    system = torch.from_numpy(np.diag([1.0, 1e-5, 3.0]))
    assert inverse_one_norm(lambda b: np.linalg.solve(system.numpy(), b), 3) == pytest.approx(1e5)
    eigen = Eigen().factorise(matrix, 1e-3).solve(torch.ones(20, dtype=torch.float64))
    assert eigen.condition == pytest.approx(np.linalg.cond(matrix.numpy() + 1e-3 * np.eye(20)), rel=1e-3)


@pytest.mark.parametrize("route", ["primal", "eigen", "dual"])
@pytest.mark.parametrize("damping", [0.0, 1e-14])
def test_singular_systems_get_the_minimum_norm_solution(route, damping):
    rows = dense_rows(10, 2, 12, rank=5)
    targets = random_targets(10, 2)
    solution = solve(rows, targets, damping=damping, solver=route)
    expected = np.linalg.pinv(dense_oracle(rows), rcond=1e-10) @ targets.numpy().reshape(-1)
    assert solution.status == "singular"
    assert error(solution.value, expected) < 1e-6
    assert solution.residual < 1e-8
    assert "minimum-norm" in solution.message
    assert solution.solver.endswith("eigen")


@pytest.mark.parametrize("route", ["cg", "lsmr"])
def test_singular_systems_matrix_free(route):
    rows = dense_rows(10, 2, 12, rank=5)
    targets = random_targets(10, 2)
    settings = MatrixFree(preconditioner="none")
    solution = solve(rows, targets, damping=1e-14, solver=route, matrix_free=settings)
    expected = np.linalg.pinv(dense_oracle(rows), rcond=1e-10) @ targets.numpy().reshape(-1)
    assert solution.status == "ok"
    assert error(solution.value, expected) < 1e-6


def test_columns_nothing_depends_on():
    rows = DenseRows(torch.cat([dense_rows(6, 2, 4).tensor, torch.zeros(6, 2, 2).double()], dim=2))
    targets = random_targets(6, 2)
    for route in ROUTES:
        damped = solve(rows, targets, damping=0.1, solver=route)
        assert damped.status == "ok"
        assert float(damped.value[4:].abs().max()) < 1e-12
        undamped = solve(rows, targets, damping=0.0, solver=route)
        assert undamped.status in ("ok", "singular")
        assert float(undamped.value[4:].abs().max()) < 1e-12
        assert undamped.residual < 1e-8


@pytest.mark.parametrize("route", ["primal", "cg", "lsmr"])
def test_badly_scaled_columns(route):
    scales = torch.logspace(-6, 6, 10, dtype=torch.float64)
    rows = dense_rows(30, 2, 10)
    scaled = DenseRows(rows.tensor * scales)
    w = torch.randn(10, dtype=torch.float64)
    targets = scaled.matvec(w / scales)  # consistent: the solution is known without solving
    solution = solve(scaled, targets, damping=0.0, solver=route)
    assert solution.status == "ok"
    assert float(((solution.value * scales) - w).abs().max()) < 1e-4
    if route == "primal":
        assert float(((solution.value * scales) - w).abs().max()) < 1e-8
        assert solution.condition > 1e15


def test_an_indefinite_matrix_is_clamped_and_says_so():
    matrix = torch.diag(torch.tensor([4.0, 2.0, 1.0, -1e-6], dtype=torch.float64))
    rhs = torch.ones(4, dtype=torch.float64)
    tiny = PrimalCholesky().factorise(matrix, 1e-9).solve(rhs)
    assert tiny.status == "singular"
    assert float(tiny.value[3]) == 0.0
    larger = PrimalCholesky().factorise(matrix, 1e-5).solve(rhs)
    assert larger.solver == "primal"
    raised = Eigen().factorise(matrix, 1e-5).solve(rhs)
    assert float(raised.value[3]) == pytest.approx(1e5)
    assert raised.status == "inexact"
    assert "1 negative" in raised.message


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["rows", "targets"])
def test_nan_fails_loudly_in_the_status_only(route, bad, where):
    rows, targets = dense_rows(6, 2, 8), random_targets(6, 2)
    (rows.tensor if where == "rows" else targets)[0, 0] = bad
    solution = solve(rows, targets, damping=0.1, solver=route)
    assert solution.status == "failed"
    assert "NaN or infinite" in solution.message
    assert solution.value.shape == (8,)
    assert bool(solution.value.isnan().all())
    with pytest.raises(InputError, match=r"solve failed: .*NaN or infinite"):
        solution.checked()
    assert json.loads(json.dumps(solution.details(), allow_nan=False))["residual"] is None


@pytest.mark.parametrize("route", ROUTES)
def test_zero_targets_give_zero(route):
    solution = solve(dense_rows(4, 2, 5), torch.zeros(4, 2).double(), damping=0.1, solver=route)
    assert solution.status == "ok"
    assert torch.equal(solution.value, torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("route", ["cg", "lsmr"])
def test_float32_products_are_reported_inexact_not_iterated_for_ever(route):
    rows = dense_rows(40, 2, 30)
    single = DenseRows(rows.tensor.float(), product_dtype=torch.float32)
    targets = random_targets(40, 2)
    solution = solve(single, targets, damping=1.0, solver=route)
    assert solution.status == "inexact"
    assert 1e-10 < solution.residual < 1e-5
    assert solution.iterations < 300
    assert error(solution.value, oracle(rows, targets, 1.0)) < 1e-4


@pytest.mark.parametrize("route", ["cg", "lsmr"])
def test_too_few_iterations_are_reported(route):
    rows = dense_rows(40, 2, 30)
    settings = MatrixFree(max_iterations=3, preconditioner="none")
    solution = solve(rows, random_targets(40, 2), damping=1e-3, solver=route, matrix_free=settings)
    assert solution.status == "inexact"
    assert solution.iterations == 3
    assert "limit of 3 iterations" in solution.message


def test_columns_converge_on_their_own():
    """A column that is done must not be disturbed by one that is not."""
    rows = dense_rows(20, 2, 15)
    targets = random_targets(20, 2, 3)
    targets[:, :, 1] = 0
    targets[:, :, 2] *= 1e8
    solution = MatrixFree().solve(rows, targets, damping=0.1)
    assert solution.status == "ok"
    assert torch.equal(solution.value[:, 1], torch.zeros(15, dtype=torch.float64))
    for column in (0, 2):
        expected = oracle(rows, targets[:, :, column], 0.1)
        assert error(solution.value[:, column], expected) < 1e-8


def test_details_are_json_and_auto_says_what_it_did():
    rows = dense_rows(6, 2, 8)
    details = solve(rows, random_targets(6, 2), damping=0.1).details()
    assert details == json.loads(json.dumps(details))
    assert details["solver"] == "primal"
    assert details["message"].startswith("auto: 12 rows x 8 columns: primal needs")
    assert details["condition"] >= 1


def test_mistakes_are_explained():
    rows, targets = dense_rows(6, 2, 8), random_targets(6, 2)
    with pytest.raises(InputError, match="one of auto, primal, eigen, dual, matrix-free, cg, lsmr, not 'qr'"):
        solve(rows, targets, damping=0.1, solver="qr")
    for route in ROUTES:
        with pytest.raises(InputError, match="damping must be a finite number >= 0, not -1"):
            solve(rows, targets, damping=-1, solver=route)
        with pytest.raises(InputError, match=r"targets must be \(6, 2\)"):
            solve(rows, targets.T, damping=0.1, solver=route)
    with pytest.raises(InputError, match="lsmr needs targets"):
        MatrixFree(method="lsmr").solve_rhs(rows, torch.zeros(8), damping=0.1)
    with pytest.raises(InputError, match="lsmr takes the preconditioners jacobi and none, not 'nystrom'"):
        MatrixFree(method="lsmr", preconditioner="nystrom").solve(rows, targets, damping=0.1)
    with pytest.raises(InputError, match="must be auto, nystrom, jacobi or none, not 'ilu'"):
        MatrixFree(preconditioner="ilu").solve(rows, targets, damping=0.1)
    with pytest.raises(InputError, match="square"):
        PrimalCholesky().factorise(torch.zeros(2, 3), 0.1)


MB, GB = 10**6, 10**9


@pytest.mark.parametrize(
    ("n_rows", "d", "budget", "expected"),
    [
        (50_000, 8_746, 2 * GB, "primal"),  # ResNet-110, 5 000 images
        (10_000, 2_026, GB, "primal"),
        (400, 22_280, GB, "dual"),
        (50_000, 46_090, 8 * GB, "matrix-free"),  # ViT-Base
        (5_000, 46_090, GB, "dual"),
        (50_000, 8_746, 500 * MB, "matrix-free"),
        (9_000, 8_000, 600 * MB, "primal"),  # dual would not fit
    ],
)
def test_choose(n_rows, d, budget, expected):
    choice = choose(n_rows, d, budget)
    assert choice.solver == expected
    assert choice.bytes_needed[expected] <= budget
    assert json.loads(json.dumps(choice.details()))["solver"] == expected


def test_the_sketch_shrinks_to_fit():
    ranks = [choose(50_000, 46_090, budget).rank for budget in (22 * MB, 200 * MB, 500 * MB, 2 * GB)]
    assert ranks[0] == 0
    assert ranks == sorted(ranks)
    assert ranks[-1] == 256
    rows, targets = dense_rows(30, 10, 1500, rank=40), random_targets(30, 10)
    lean = solve(rows, targets, damping=1.0, solver="cg", memory_budget=17 * MB)
    assert lean.status == "ok"
    assert "preconditioner none" in lean.message
    roomy = solve(rows, targets, damping=1.0, solver="cg", memory_budget=GB)
    assert "preconditioner nystrom (rank 256)" in roomy.message
    assert roomy.iterations < lean.iterations
    torch.testing.assert_close(lean.value, roomy.value, rtol=1e-6, atol=1e-9)


def test_float32_sums_cost_half_as_much_again():
    double, single = (choose(10_000, 5_000, GB, itemsize=size).bytes_needed["primal"] for size in (8, 4))
    assert single - double == 4 * 5_000**2


def test_nothing_fits_ten_megabytes():
    with pytest.raises(BudgetError, match=r"50000 rows x 46090 columns .* 10 MB: primal 17 GB, dual 20 GB.*smaller subset"):
        choose(50_000, 46_090, 10 * MB)
    with pytest.raises(BudgetError, match="10 MB"):
        solve(dense_rows(30, 100, 1500, rank=1), random_targets(30, 100), damping=0.1, memory_budget=10 * MB)


def test_a_named_solver_is_held_to_the_budget_and_told_what_fits():
    rows, targets = dense_rows(30, 100, 1500, rank=1), random_targets(30, 100)
    with pytest.raises(BudgetError, match=r"'dual' for 3000 rows x 1500 columns .*; matrix-free would"):
        solve(rows, targets, damping=0.1, solver="dual", memory_budget=25 * MB)
    wanted = MatrixFree(preconditioner="nystrom")
    with pytest.raises(BudgetError, match="no sketch fits"):
        solve(rows, targets, damping=0.1, solver="cg", memory_budget=18 * MB, matrix_free=wanted)
    with pytest.raises(InputError, match="rows and columns"):
        choose(0, 5, GB)
