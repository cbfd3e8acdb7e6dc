"""Two regressions that share their rows: on all samples D, and without some of them, f.

    w_D = (A_D + λI)⁻¹ J_Dᵀ t
    w_r − w_D = −(A_r + λI)⁻¹ J_fᵀ (t_f − J_f w_D)        A_r = A_D − A_f,   D = r ∪ f

λ = relative_damping·tr(A_D)/d, the same in both. The direct routes form their large matrix once: A_r is A_D less A_f, Θ_rr a part
of Θ. So two matrices of that size exist at a time. Not for a single system (:func:`fastntk.linalg.solve`), and nothing is chosen
here: :func:`fastntk.linalg.choose` names a solver and a sketch rank for a memory budget.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fastntk.base.errors import InputError, listing
from fastntk.linalg.factor import PrimalCholesky
from fastntk.linalg.head_rows import HeadRows
from fastntk.linalg.matrix_free import MatrixFree
from fastntk.linalg.operators import DenseRows, RowOperator, as_columns
from fastntk.linalg.solution import Solution
from fastntk.linalg.solvers import SOLVERS, solve

PAIR_SOLVERS = tuple(name for name in SOLVERS if name != "auto")


class SampledOperator(RowOperator, Protocol):
    """An operator that some samples can be taken from: stored rows, and rows that are made anew in each pass."""

    def subset(self, indices: Tensor) -> RowOperator:
        """The operator of the samples at these positions (m,)."""


@dataclass(frozen=True)
class Pair:
    """w_D and w_r − w_D, (d,) or (d, k) as the targets were, each with its credentials; and the absolute λ of both."""

    full: Solution
    difference: Solution
    damping: float


def solve_pair(
    operator: SampledOperator,
    targets: Tensor,
    *,
    forget: Tensor,
    retain: Tensor,
    relative_damping: float,
    solver: str,
    rank: int,
) -> Pair:
    """Solve for all samples and for the retained ones, t (n, C) or (n, C, k); a solve that failed is refused.

    ``forget`` (n_f,) and ``retain`` (n_r,): positions that together are all n. ``solver``: a name other than auto;
    ``rank``: of the sketch that preconditions cg (0: none), without meaning to the other solvers.
    """
    if solver not in PAIR_SOLVERS:
        raise InputError(f"solver must be one of {listing(PAIR_SOLVERS)}, not {solver!r}")
    if not (math.isfinite(relative_damping) and relative_damping > 0):
        raise InputError(f"the relative damping must be a number > 0, not {relative_damping!r}")
    n, classes, d = operator.shape
    if len(forget) + len(retain) != n:
        raise InputError(f"{len(forget)} samples to forget and {len(retain)} to retain are not the operator's {n}")
    columns, flat = as_columns(targets, (n, classes), what="targets")
    t = columns.double()
    if solver == "primal":
        # A streamed operator makes its rows for each sum over them: A's own trace saves a pass.
        gram = operator.gram(torch.float64)
        damping = _absolute(relative_damping, float(gram.trace()), d)
        full, difference = _primal(operator, gram, t, forget, damping=damping)
    else:
        damping = _absolute(relative_damping, float(operator.column_norms2().sum()), d)
        if solver == "dual":
            full, difference = _dual(operator, t, retain, damping=damping)
        elif solver in ("matrix-free", "cg"):
            full, difference = _conjugate_gradients(operator, t, forget, retain, damping=damping, rank=rank)
        else:
            full, difference = _twice(operator, t, retain, damping=damping, solver=solver)
    if flat:
        full, difference = (replace(part, value=part.value.squeeze(-1)) for part in (full, difference))
    return Pair(full, difference, damping)


def _absolute(relative: float, trace: float, d: int) -> float:
    """λ = relative·tr(A)/d."""
    damping = relative * trace / d
    if damping == 0:
        raise InputError("All Jacobian rows are zero: nothing the subset does changes the logits at this point.")
    return damping


def _primal(
    operator: SampledOperator, gram: Tensor, targets: Tensor, forget: Tensor, *, damping: float
) -> tuple[Solution, Solution]:
    """``gram`` is A_D, and is overwritten."""
    forget_rows = operator.subset(forget)
    if len(forget):
        retained = forget_rows.gram(torch.float64)
        torch.sub(gram, retained, out=retained)  # no third matrix
    else:
        retained = gram.clone()
    factor = PrimalCholesky().factorise(gram, damping, overwrite=True)
    full = factor.solve(operator.rmatvec(targets)).checked()
    del factor
    residual = targets[forget] - forget_rows.matvec(full.value)
    factor = PrimalCholesky().factorise(retained, damping, overwrite=True)
    return full, factor.solve(-forget_rows.rmatvec(residual)).checked()


def _dual(operator: SampledOperator, targets: Tensor, retain: Tensor, *, damping: float) -> tuple[Solution, Solution]:
    """Θ is formed once; that of the retained samples is a part of it."""
    n, classes, k = targets.shape
    kernel = operator.kernel(torch.float64)
    rows = (retain[:, None] * classes + torch.arange(classes)).flatten()
    part = kernel[rows][:, rows]
    inner = PrimalCholesky().factorise(kernel, damping, overwrite=True).solve(targets.reshape(n * classes, k)).checked()
    full = replace(inner, value=operator.rmatvec(inner.value.view(n, classes, k)), solver="dual")
    del kernel
    less = PrimalCholesky().factorise(part, damping, overwrite=True).solve(targets[retain].reshape(-1, k)).checked()
    retained = operator.subset(retain).rmatvec(less.value.view(-1, classes, k))
    return full, replace(less, value=retained - full.value, solver="dual")


def _conjugate_gradients(
    operator: SampledOperator, targets: Tensor, forget: Tensor, retain: Tensor, *, damping: float, rank: int
) -> tuple[Solution, Solution]:
    operator, tolerance = _own_precision(operator)
    forget_rows = operator.subset(forget)
    method = MatrixFree(method="cg", rank=rank, tol=tolerance)
    full = method.solve(operator, targets, damping=damping).checked()
    residual = targets[forget] - forget_rows.matvec(full.value)
    return full, method.solve_rhs(operator.subset(retain), -forget_rows.rmatvec(residual), damping=damping).checked()


def _own_precision(operator: SampledOperator) -> tuple[SampledOperator, float]:
    """Products in the rows' own precision, and the residual that allows: float64 copies of float32 rows only cost time."""
    if isinstance(operator, HeadRows | DenseRows) and operator.dtype == torch.float32:
        operator = copy.copy(operator)
        operator.product_dtype = torch.float32
        return operator, 1e-6
    return operator, 1e-10


def _twice(
    operator: SampledOperator, targets: Tensor, retain: Tensor, *, damping: float, solver: str
) -> tuple[Solution, Solution]:
    """Two solves that share nothing, for the routes that need no saving."""
    full = solve(operator, targets, damping=damping, solver=solver).checked()
    retained = solve(operator.subset(retain), targets[retain], damping=damping, solver=solver).checked()
    return full, replace(retained, value=retained.value - full.value)
