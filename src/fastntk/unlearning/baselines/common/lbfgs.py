"""The compact form of the L-BFGS matrix: what a few pairs of steps s and changes of the gradient y say of the Hessian.

    B v = σ v − [σS  Y] M⁻¹ [σSᵀv ; Yᵀv],    M = [ σSᵀS  L ; Lᵀ  −D ],    SᵀY = L (below) + D (diagonal) + …

σ = s·y / s·s of the newest pair. B is the BFGS recursion from σI over the pairs, oldest first; it is positive definite where all
s·y > 0, and B s = y for the newest pair. For products with B only; not for its inverse, which optimisers use.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from fastntk.base.device import with_float64

CURVATURE = 1e-3
"""The least cosine between s and y of a pair that is kept: below it the pair says nothing of a positive definite Hessian, and a
bound on B's norm, which grows with ‖y‖²/s·y, would be lost."""
STRETCH = 10.0
"""A product may be this many times longer than the pairs' own ‖y‖/‖s‖ would make it."""


class History:
    """The newest ``length`` pairs, in float64; ``refused`` counts those that failed the curvature condition."""

    def __init__(self, length: int) -> None:
        self._steps: deque[Tensor] = deque(maxlen=length)
        self._changes: deque[Tensor] = deque(maxlen=length)
        self.refused = 0

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Tensor, change: Tensor) -> None:
        """Keep a pair (d,) each if s·y ≥ CURVATURE·‖s‖·‖y‖ > 0; a step of length 0 says nothing and is not counted."""
        device = with_float64(step.device)
        step, change = step.to(device).double(), change.to(device).double()
        if not bool(step.any()):
            return
        least = CURVATURE * float(step.norm()) * float(change.norm())
        if least > 0 and float(step @ change) >= least:
            self._steps.append(step)
            self._changes.append(change)
        else:
            self.refused += 1

    def product(self, vector: Tensor) -> Tensor | None:
        """B v (d,); None where there is no pair, or where rounding leaves a product that is no longer one of a positive definite
        matrix of the pairs' size."""
        if not self._steps:
            return None
        operand = vector.to(with_float64(vector.device)).double()
        steps, changes = torch.stack(tuple(self._steps), 1), torch.stack(tuple(self._changes), 1)  # (d, m)
        cross, squares = steps.T @ changes, steps.T @ steps
        sigma = cross[-1, -1] / squares[-1, -1]
        below = cross.tril(-1)
        middle = torch.cat([torch.cat([sigma * squares, below], 1), torch.cat([below.T, -cross.diagonal().diag()], 1)])
        rhs = torch.cat([sigma * (steps.T @ operand), changes.T @ operand])
        solution, info = torch.linalg.solve_ex(middle, rhs)
        count = len(self._steps)
        product = sigma * operand - sigma * (steps @ solution[:count]) - changes @ solution[count:]
        length, longest = float(operand.norm()), float((changes.norm(dim=0) / steps.norm(dim=0)).max())
        sound = int(info) == 0 and float(operand @ product) >= 0 and float(product.norm()) <= STRETCH * longest * length
        return product.to(vector) if sound else None
