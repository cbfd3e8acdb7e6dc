"""The one way in: (A + λI) w = Jᵀt for any operator, by a named route or by the one that fits.

    w = (JᵀJ + λI)⁻¹ Jᵀ t

Not for repeated solves with one matrix: keep a factor from :class:`PrimalCholesky` or :class:`Dual` for
those. With and without some samples: :func:`fastntk.linalg.solve_pair`.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from fastntk.base.errors import BudgetError, InputError, listing
from fastntk.base.memory import memory_allowed
from fastntk.linalg.choose import ROUTE_OF, bytes_of_routes, choose, largest_sketch, refusal
from fastntk.linalg.dual import Dual
from fastntk.linalg.factor import Eigen, PrimalCholesky
from fastntk.linalg.matrix_free import DEFAULT_RANK, MatrixFree
from fastntk.linalg.operators import RowOperator, as_columns
from fastntk.linalg.solution import Solution

SOLVERS = ("auto", "primal", "eigen", "dual", "matrix-free", "cg", "lsmr")


def solve(
    operator: RowOperator,
    targets: Tensor,
    *,
    damping: float,
    solver: str = "auto",
    memory_budget: int | None = None,
    tol: float = 1e-10,
    accumulate: torch.dtype = torch.float64,
    matrix_free: MatrixFree | None = None,
) -> Solution:
    """Solve (A + λI) w = Jᵀt for t (n, C) or (n, C, k) and absolute damping λ >= 0.

    ``solver``: auto, primal, eigen, dual, matrix-free (= cg), cg, lsmr. ``memory_budget`` in bytes, None: see
    :func:`fastntk.base.memory.memory_allowed`. ``accumulate``: dtype A is summed in on the primal route; solves
    are float64 always. ``matrix_free`` sets preconditioner and iterations of the iterative routes (its method
    and tol are taken from here). The message says what was chosen.
    """
    started = time.perf_counter()
    n, classes, d = operator.shape
    as_columns(targets, (n, classes), what="targets")
    settings = matrix_free or MatrixFree()
    name, reason, rank = decide(solver, n * classes, d, budget=memory_budget, itemsize=accumulate.itemsize, rank=settings.rank)
    if name in ("primal", "eigen"):
        matrix = operator.gram(accumulate)
        method = PrimalCholesky(tol) if name == "primal" else Eigen(tol)
        factor = method.factorise(matrix, damping, overwrite=True)
        del matrix
        solution = factor.solve(operator.rmatvec(targets.double()))
    elif name == "dual":
        solution = Dual(tol).factorise(operator, damping).solve(targets)
    else:
        if settings.preconditioner == "nystrom" and rank == 0:
            raise BudgetError("no sketch fits the memory budget: allow more, or preconditioner='auto'")
        settings = replace(settings, method="lsmr" if name == "lsmr" else "cg", tol=tol, rank=rank)
        solution = settings.solve(operator, targets, damping=damping)
    message = "; ".join(part for part in (reason, solution.message) if part)
    return replace(solution, seconds=time.perf_counter() - started, message=message)


def decide(
    solver: str, n_rows: int, d: int, *, budget: int | None, itemsize: int = 8, rank: int = DEFAULT_RANK
) -> tuple[str, str, int]:
    """Return the solver, the reason (empty for a named one) and the sketch rank that fits.

    A named solver is held to a budget that was given; ``auto`` is chosen within it, or within the usual share of memory.
    """
    if solver not in SOLVERS:
        raise InputError(f"solver must be one of {listing(SOLVERS)}, not {solver!r}")
    limit = memory_allowed(budget)
    if solver == "auto":
        choice = choose(n_rows, d, limit, itemsize=itemsize, rank=rank)
        return choice.solver, f"auto: {choice.reason}", choice.rank
    peak = bytes_of_routes(n_rows, d, itemsize=itemsize)[ROUTE_OF.get(solver, solver)]
    if budget is not None and peak + (8 * d * d if solver == "eigen" else 0) > budget:
        raise BudgetError(refusal(n_rows, d, budget, itemsize=itemsize, solver=solver))
    return solver, "", largest_sketch(n_rows, d, limit, rank=rank)
