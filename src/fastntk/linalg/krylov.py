"""The two iterations themselves: CG for (A + λI) x = b, LSMR for min ‖Jw - t‖² + λ‖w‖².

Both check the true residual when they believe to be done, go on while that helps, and stop where rounding
allows no more. Not for choosing anything: see ``matrix_free``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from fastntk.base.progress import track
from fastntk.linalg.operators import RowOperator, gram_product
from fastntk.linalg.solution import relative_residual

ROUNDS = 4


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    rhs: Tensor,
    *,
    precondition: Callable[[Tensor], Tensor],
    tol: float,
    max_iterations: int,
) -> tuple[Tensor, int]:
    """Run CG on all columns of ``rhs`` (d, k) at once, each with its own step lengths; return (x,
    iterations).

    The recursively updated residual drifts from the true one, so a round that believes to have converged is
    checked and, as long as the true residual at least halves, another is started from where it ended.
    """
    x = torch.zeros_like(rhs)
    iterations, last = 0, math.inf
    for _ in range(ROUNDS):
        difference = rhs - product(x) if iterations else rhs.clone()
        residual = relative_residual(difference, rhs)
        if residual <= tol or iterations >= max_iterations or not residual < last / 2:
            break
        last = residual
        step, count = _round(product, difference, rhs, precondition=precondition, tol=tol, most=max_iterations - iterations)
        x += step
        iterations += count
    return x, iterations


def _round(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    rhs: Tensor,
    *,
    precondition: Callable[[Tensor], Tensor],
    tol: float,
    most: int,
) -> tuple[Tensor, int]:
    """Solve for the correction that removes the residual ``start`` (d, k)."""
    x, r = torch.zeros_like(start), start.clone()
    z = precondition(r)
    p, rho = z, (r * z).sum(0)
    goal = 0.5 * tol * torch.linalg.vector_norm(rhs, dim=0)
    count = 0
    for _ in track(range(most), "matrix-free solve (CG)"):
        active = (torch.linalg.vector_norm(r, dim=0) > goal) & (rho > 0)
        if not bool(active.any()):
            break
        q = product(p)
        curvature = (p * q).sum(0)
        active &= curvature > 0
        if not bool(active.any()):
            break
        # A finished column takes zero steps: its curvature would be rounding noise.
        alpha = torch.where(active, rho / torch.where(active, curvature, torch.ones_like(rho)), torch.zeros_like(rho))
        x = x + alpha * p
        r = r - alpha * q
        z = precondition(r)
        after = (r * z).sum(0)
        p = z + torch.where(active, after / torch.where(active, rho, torch.ones_like(rho)), torch.zeros_like(rho)) * p
        rho = after
        count += 1
    return x, count


def least_squares(
    operator: RowOperator,
    t: Tensor,
    rhs: Tensor,
    *,
    damping: float,
    scale: Tensor,
    tol: float,
    limit: int,
) -> tuple[Tensor, int]:
    """Solve one column, t (n, C) with rhs = Jᵀt (d,), by LSMR on [J S; √λ S] for S = diag(``scale``).

    LSMR stops by a rule of its own; it is tightened until the residual of the normal equations is met.
    Returns (w (d,), iterations).
    """
    n, classes, d = operator.shape
    rows, root = n * classes, math.sqrt(damping)
    steps = iter(track(range(limit), "matrix-free solve (LSMR)"))

    def forward(y: np.ndarray) -> np.ndarray:
        next(steps, None)
        w = scale * torch.from_numpy(np.ascontiguousarray(y).reshape(d))
        return np.asarray(torch.cat([operator.matvec(w).reshape(-1), root * w]).numpy())

    def backward(u: np.ndarray) -> np.ndarray:
        parts = torch.from_numpy(np.ascontiguousarray(u).reshape(rows + d))
        v = operator.rmatvec(parts[:rows].view(n, classes)) + root * parts[rows:]
        return np.asarray((scale * v).numpy())

    system = LinearOperator((rows + d, d), matvec=forward, rmatvec=backward, dtype=np.float64)
    target = torch.cat([t.reshape(-1), t.new_zeros(d)]).numpy()
    y, iterations, last, accuracy = np.zeros(d), 0, math.inf, tol
    for _ in range(ROUNDS):
        w = scale * torch.from_numpy(y)
        residual = relative_residual(
            (gram_product(operator, w) + damping * w - rhs)[:, None] if iterations else rhs[:, None], rhs[:, None]
        )
        if residual <= tol or iterations >= limit or not residual < last / 2:
            break
        last = residual
        result = lsmr(system, target, atol=accuracy, btol=0.0, conlim=0.0, maxiter=limit - iterations, x0=y)
        y, iterations, accuracy = result[0], iterations + int(result[2]), max(accuracy * 1e-3, 1e-16)
    return scale * torch.from_numpy(y), iterations
