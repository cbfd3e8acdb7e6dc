"""The kernel route, for fewer rows than columns: an n·C × n·C system instead of a d×d one.

    w = (JᵀJ + λI)⁻¹ Jᵀt = Jᵀ (JJᵀ + λI)⁻¹ t

It needs the targets t, not just b = Jᵀt. The residual reported is that of the primal system. Not for n·C
much above d.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastntk.linalg.factor import Factor, PrimalCholesky
from fastntk.linalg.operators import RowOperator, as_columns, gram_product
from fastntk.linalg.solution import Solution, failure, relative_residual, status_of


@dataclass(frozen=True, eq=False)
class DualFactor:
    """Θ + λI, factorised, and the rows that lead back to parameters."""

    operator: RowOperator
    damping: float
    factor: Factor
    tol: float
    seconds: float

    def solve(self, targets: Tensor) -> Solution:
        """Solve for targets t (n, C) or (n, C, k)."""
        started = time.perf_counter()
        n, classes, d = self.operator.shape
        columns, flat = as_columns(targets, (n, classes), what="targets")
        t = columns.double()
        inner = self.factor.solve(t.reshape(n * classes, t.shape[2]))
        name = "dual" if inner.solver == "primal" else f"dual-{inner.solver}"
        if inner.status == "failed":
            shape = t.new_empty(d) if flat else t.new_empty(d, t.shape[2])
            return failure(shape, solver=name, message=inner.message.replace("A = JᵀJ", "Θ = JJᵀ"))
        value = self.operator.rmatvec(inner.value.view(n, classes, t.shape[2]))
        rhs = self.operator.rmatvec(t)
        residual = relative_residual(gram_product(self.operator, value) + self.damping * value - rhs, rhs)
        status = status_of(residual, tol=self.tol, dropped=int(inner.status == "singular"))
        return replace(
            inner,
            value=value.squeeze(-1) if flat else value,
            status=status,
            residual=residual,
            solver=name,
            seconds=time.perf_counter() - started,
        )


@dataclass(frozen=True)
class Dual:
    """Solve through Θ = JJᵀ, by Cholesky or, where that breaks down, eigendecomposition."""

    tol: float = 1e-10

    def factorise(self, operator: RowOperator, damping: float) -> DualFactor:
        """Form and factorise Θ + λI: (n·C)² float64 numbers."""
        started = time.perf_counter()
        kernel = operator.kernel(torch.float64)
        factor = PrimalCholesky(self.tol).factorise(kernel, damping, overwrite=True)
        return DualFactor(operator, damping, factor, self.tol, time.perf_counter() - started)
