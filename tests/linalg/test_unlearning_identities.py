"""The identities of the method in pure tensors: retain r, forget f, everything D, one damping λ."""

from __future__ import annotations

import pytest
import torch
from linalg_cases import dense_rows, head_rows, random_targets

from fastntk.linalg import GramAccumulator, MatrixFree, PrimalCholesky, solve

LAMBDA = 0.7


@pytest.fixture(params=["tall", "wide", "head"])
def problem(request):
    rows = {
        "tall": lambda: dense_rows(12, 3, 14),
        "wide": lambda: dense_rows(6, 2, 40),
        "head": lambda: head_rows(n=12),
    }[request.param]()
    n, classes, _ = rows.shape
    forget, retain = torch.arange(n)[::3], torch.tensor([i for i in range(n) if i % 3])
    assert len(forget) != len(retain)
    return rows, random_targets(n, classes), retain, forget


def learned(rows, targets):
    return solve(rows, targets, damping=LAMBDA).checked().value


def test_only_the_forgotten_residuals_drive_the_update(problem):
    rows, t, retain, forget = problem
    J_r, J_f = rows.subset(retain), rows.subset(forget)
    w_D, w_r = learned(rows, t), learned(J_r, t[retain])
    rhs = J_f.rmatvec(t[forget] - J_f.matvec(w_D))
    direct = PrimalCholesky().factorise(J_r.gram(torch.float64), LAMBDA).solve(-rhs).value
    iterative = MatrixFree(tol=1e-12).solve_rhs(J_r, -rhs, damping=LAMBDA).value
    torch.testing.assert_close(w_r - w_D, direct, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(w_r - w_D, iterative, rtol=1e-8, atol=1e-10)


def test_the_damped_projector_is_an_inverse(problem):
    rows, _, retain, _ = problem
    J_r = rows.subset(retain)
    d = rows.shape[2]
    identity = torch.eye(d, dtype=torch.float64)
    inverse = PrimalCholesky().factorise(J_r.gram(torch.float64), LAMBDA).solve(identity).value
    torch.testing.assert_close(inverse, projector(J_r) / LAMBDA, rtol=1e-9, atol=1e-11)


def projector(J_r):
    """P = I − J_rᵀ(Θ_rr + λI)⁻¹J_r."""
    J = J_r.dense().reshape(-1, J_r.shape[2])
    damped = J_r.kernel(torch.float64) + LAMBDA * torch.eye(J.shape[0], dtype=torch.float64)
    return torch.eye(J.shape[1], dtype=torch.float64) - J.T @ torch.linalg.solve(damped, J)


def test_equation_one_corrected_and_damped(problem):
    rows, t, retain, forget = problem
    J_r, J_f = rows.subset(retain), rows.subset(forget)
    R, F = (part.dense().reshape(-1, rows.shape[2]) for part in (J_r, J_f))
    inner = torch.linalg.solve(
        J_r.kernel(torch.float64) + LAMBDA * torch.eye(len(R), dtype=torch.float64),
        torch.cat([R @ F.T, t[retain].reshape(-1, 1)], dim=1),
    )
    cross = (R @ F.T).T @ inner
    M = torch.linalg.inv(J_f.kernel(torch.float64) + LAMBDA * torch.eye(len(F), dtype=torch.float64) - cross[:, :-1])
    V = -t[forget].reshape(-1) + cross[:, -1]
    delta = projector(J_r) @ F.T @ M @ V
    torch.testing.assert_close(delta, learned(J_r, t[retain]) - learned(rows, t), rtol=1e-8, atol=1e-10)


def test_forgetting_nothing_changes_nothing(problem):
    rows, t, _, _ = problem
    J_f = rows.subset(torch.tensor([], dtype=torch.long))
    assert float(J_f.rmatvec(t[:0]).abs().max()) == 0.0
    torch.testing.assert_close(J_f.gram(torch.float64), torch.zeros(rows.shape[2], rows.shape[2]).double())


def test_downdated_sums_give_the_retained_solution(problem):
    rows, t, retain, forget = problem
    sums = GramAccumulator(rows.shape[2], torch.float64)
    sums.add(rows, t)
    for index in forget.flip(0):  # one request at a time, in another order
        sums.add(rows.subset(index[None]), t[index][None], weight=-1)
    factor = PrimalCholesky().factorise(sums.take_matrix(), LAMBDA, overwrite=True)
    w_r = factor.solve(sums.rhs).checked().value
    torch.testing.assert_close(w_r, learned(rows.subset(retain), t[retain]), rtol=1e-9, atol=1e-11)
