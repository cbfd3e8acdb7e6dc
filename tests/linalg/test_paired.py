"""The paired solve against two dense regressions: every solver, several right-hand sides, nothing to forget, streamed rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from linalg_cases import dense_oracle, dense_rows, head_rows, random_targets
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg import SOLVERS, DenseRows, HeadRows, MatrixFree, Pair, PrimalCholesky, choose, decide, solve, solve_pair

NAMED = [name for name in SOLVERS if name != "auto"]
RELATIVE = 0.05
DIRECT = ("primal", "dual", "eigen")


@dataclasses.dataclass
class Streamed:
    """Rows that are read chunk by chunk in every pass, as an operator that stores none of them; passes are counted."""

    rows: DenseRows | HeadRows
    passes: list[str] = dataclasses.field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.rows.shape

    def _count(self, what: str) -> DenseRows | HeadRows:
        self.passes.append(what)
        return self.rows

    def matvec(self, v: Tensor) -> Tensor:
        return self._count("matvec").matvec(v)

    def rmatvec(self, u: Tensor) -> Tensor:
        return self._count("rmatvec").rmatvec(u)

    def gram(self, dtype: torch.dtype) -> Tensor:
        return self._count("gram").gram(dtype)

    def kernel(self, dtype: torch.dtype) -> Tensor:
        return self._count("kernel").kernel(dtype)

    def column_norms2(self) -> Tensor:
        return self._count("column_norms2").column_norms2()

    def iter_rows(self, chunk: int) -> Iterator[tuple[slice, DenseRows | HeadRows]]:
        return self._count("iter_rows").iter_rows(chunk)

    def subset(self, indices: Tensor) -> Streamed:
        return Streamed(self.rows.subset(indices))


@pytest.fixture(params=["tall", "wide", "head", "streamed"])
def problem(request):
    rows = {
        "tall": lambda: dense_rows(12, 3, 14),
        "wide": lambda: dense_rows(6, 2, 40),
        "head": lambda: head_rows(n=12),
        "streamed": lambda: Streamed(head_rows(n=12)),
    }[request.param]()
    n = rows.shape[0]
    return rows, torch.tensor([i for i in range(n) if i % 3]), torch.arange(n)[::3]


def oracle(rows, targets: Tensor, samples: Tensor, damping: float) -> Tensor:
    """(A + λI)⁻¹ Jᵀt of these samples, written out in numpy."""
    J = dense_oracle((rows.rows if isinstance(rows, Streamed) else rows).subset(samples))
    t = targets[samples].numpy().reshape(len(J), -1)
    solution = np.linalg.solve(J.T @ J + damping * np.eye(J.shape[1]), J.T @ t)
    return torch.from_numpy(solution).reshape(J.shape[1], *targets.shape[2:])


def pair_of(rows, targets: Tensor, retain: Tensor, forget: Tensor, solver: str, **options: object) -> Pair:
    return solve_pair(
        rows, targets, forget=forget, retain=retain, **({"relative_damping": RELATIVE, "solver": solver, "rank": 8} | options)
    )


@pytest.mark.parametrize("columns", [(), (1,), (3,)])
@pytest.mark.parametrize("solver", NAMED)
def test_every_solver_gives_both_regressions(problem, solver, columns):
    rows, retain, forget = problem
    n, classes, d = rows.shape
    targets = random_targets(n, classes, *columns)
    pair = pair_of(rows, targets, retain, forget, solver)
    assert pair.damping == pytest.approx(RELATIVE * float(rows.column_norms2().sum()) / d, rel=1e-12)
    full, without = (oracle(rows, targets, part, pair.damping) for part in (torch.arange(n), retain))
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if solver in DIRECT else {"rtol": 1e-7, "atol": 1e-8}
    torch.testing.assert_close(pair.full.value, full, **tolerance)
    torch.testing.assert_close(pair.difference.value, without - full, **tolerance)
    assert pair.full.status == pair.difference.status == "ok"


@pytest.mark.parametrize("solver", NAMED)
def test_only_the_forgotten_residuals_drive_the_difference(problem, solver):
    rows, retain, forget = problem
    targets = random_targets(*rows.shape[:2])
    pair = pair_of(rows, targets, retain, forget, solver)
    J_r, J_f = rows.subset(retain), rows.subset(forget)
    rhs = -J_f.rmatvec(targets[forget] - J_f.matvec(pair.full.value))
    direct = PrimalCholesky().factorise(J_r.gram(torch.float64), pair.damping).solve(rhs).value
    iterative = MatrixFree(tol=1e-12).solve_rhs(J_r, rhs, damping=pair.damping).value
    for expected in (direct, iterative):
        torch.testing.assert_close(pair.difference.value, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("solver", NAMED)
def test_forgetting_nothing_changes_nothing(problem, solver):
    rows, _, _ = problem
    n = rows.shape[0]
    targets = random_targets(*rows.shape[:2])
    pair = pair_of(rows, targets, torch.arange(n), torch.tensor([], dtype=torch.long), solver)
    assert float(pair.difference.value.abs().max()) == 0.0
    alone = solve(rows, targets, damping=pair.damping, solver=solver)
    torch.testing.assert_close(pair.full.value, alone.value, rtol=1e-7, atol=1e-9)


def test_primal_and_dual_pass_once_over_the_rows_for_their_large_matrix():
    targets = random_targets(12, 3)
    forget, retain = torch.arange(12)[::3], torch.tensor([i for i in range(12) if i % 3])
    for solver, matrix in (("primal", "gram"), ("dual", "kernel")):
        rows = Streamed(head_rows(n=12))
        pair_of(rows, targets, retain, forget, solver)
        assert rows.passes.count(matrix) == 1
    # The trace that λ needs is the sum's own: no pass for it.
    rows = Streamed(head_rows(n=12))
    pair_of(rows, targets, retain, forget, "primal")
    assert "column_norms2" not in rows.passes


def test_float32_rows_are_multiplied_in_their_own_precision():
    exact = head_rows(n=12)
    single = head_rows(n=12, dtype=torch.float32)
    targets = random_targets(12, 3)
    forget, retain = torch.arange(12)[::3], torch.tensor([i for i in range(12) if i % 3])
    expected = pair_of(exact, targets, retain, forget, "primal")
    pair = pair_of(single, targets, retain, forget, "cg")
    assert "tolerance 1.0e-06" in pair.full.message
    assert single.product_dtype is None
    torch.testing.assert_close(pair.difference.value, expected.difference.value, rtol=1e-3, atol=1e-5)


def test_a_rank_of_zero_means_no_sketch():
    rows = dense_rows(12, 3, 14)
    targets = random_targets(12, 3)
    pair = pair_of(rows, targets, torch.arange(2, 12), torch.arange(2), "cg", rank=0)
    assert "preconditioner none" in pair.full.message
    with_sketch = pair_of(rows, targets, torch.arange(2, 12), torch.arange(2), "cg")
    torch.testing.assert_close(pair.difference.value, with_sketch.difference.value, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "auto"}, "solver must be one of primal, eigen, dual, matrix-free, cg, lsmr, not 'auto'"),
        ({"relative_damping": 0.0}, "relative damping must be a number > 0, not 0.0"),
        ({"relative_damping": float("nan")}, "relative damping must be a number > 0"),
        ({"retain": torch.arange(3)}, "2 samples to forget and 3 to retain are not the operator's 12"),
        ({"targets": random_targets(12, 4)}, "targets must be"),
    ],
)
def test_what_cannot_be_solved_is_refused(options, message):
    arguments = {"targets": random_targets(12, 3), "retain": torch.arange(2, 12), "forget": torch.arange(2), "solver": "primal"}
    arguments = arguments | options
    with pytest.raises(InputError, match=message):
        pair_of(dense_rows(12, 3, 14), arguments.pop("targets"), arguments.pop("retain"), arguments.pop("forget"), **arguments)


@pytest.mark.parametrize("solver", NAMED)
def test_rows_of_zeros_are_refused(solver):
    rows = DenseRows(torch.zeros(4, 2, 5, dtype=torch.float64))
    with pytest.raises(InputError, match="All Jacobian rows are zero"):
        pair_of(rows, random_targets(4, 2), torch.arange(1, 4), torch.arange(1), solver)


def test_decide_names_what_choose_would_and_holds_a_name_to_a_given_budget():
    choice = choose(300, 50, 10**9)
    assert decide("auto", 300, 50, budget=10**9) == (choice.solver, f"auto: {choice.reason}", choice.rank)
    assert decide("cg", 300, 50, budget=None)[::2] == ("cg", 256)
    # Half of the default rank is what fits beside d = 10⁶ columns in ten gigabytes.
    assert decide("cg", 10**6, 10**6, budget=10**10)[2] == 128
    with pytest.raises(InputError, match="solver 'primal' for 300 rows x 5000 columns does not fit"):
        decide("primal", 300, 5000, budget=10**8)
