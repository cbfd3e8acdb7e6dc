"""What every solve returns: the value and how far to trust it.

    residual = ‖(A + λI) w - b‖ / ‖b‖        measured after the solve, worst column

``status``: ``ok`` (residual within tolerance); ``inexact`` (it is not: read ``residual``); ``singular``
(numerically rank-deficient: the value is the minimum-norm solution over the directions that could be told
from rounding); ``failed`` (NaN or infinity in the system, or no convergence at all). A failed value is
filled with NaN and not with zeros: a zero update would pass for a result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.base.schema import finite

Status = Literal["ok", "inexact", "singular", "failed"]


@dataclass(frozen=True)
class Solution:
    """The solution ``value`` (d,) or (d, k) of (A + λI) w = b and its credentials.

    ``condition`` is an estimate for A + λI (1-norm for Cholesky, 2-norm for eigen) or, for dual, for Θ +
    λI; None where the route gives none. ``iterations`` counts CG or LSMR steps, or refinement steps of a
    direct solve.
    """

    value: Tensor
    status: Status
    residual: float
    condition: float | None
    iterations: int
    solver: str
    seconds: float
    message: str = ""

    def details(self) -> dict[str, Any]:
        """Return everything but the value, ready for JSON (numbers that JSON lacks become None)."""
        return {
            "solver": self.solver,
            "status": self.status,
            "residual": finite(self.residual),
            "condition": finite(self.condition),
            "iterations": self.iterations,
            "seconds": self.seconds,
            "message": self.message,
        }

    def checked(self) -> Solution:
        """Return self, or raise InputError if the solve failed."""
        if self.status == "failed":
            raise InputError(f"the {self.solver} solve failed: {self.message}")
        return self


def status_of(residual: float, *, tol: float, dropped: int = 0) -> Status:
    """Judge a finished solve."""
    if not math.isfinite(residual):
        return "failed"
    if dropped:
        return "singular"
    return "ok" if residual <= tol else "inexact"


def failure(rhs: Tensor, *, solver: str, message: str) -> Solution:
    """Return a failed solution shaped like ``rhs`` (d,) or (d, k)."""
    value = torch.full_like(rhs, math.nan, dtype=torch.float64)
    return Solution(value, "failed", math.nan, None, 0, solver, 0.0, message)


def relative_residual(difference: Tensor, rhs: Tensor) -> float:
    """Return max over columns of ‖difference‖ / ‖rhs‖ for (d, k) tensors; a zero column counts absolutely."""
    norms = torch.linalg.vector_norm(rhs, dim=0)
    scale = torch.where(norms > 0, norms, torch.ones_like(norms))
    ratios = torch.linalg.vector_norm(difference, dim=0) / scale
    return float(ratios.max()) if ratios.numel() else 0.0
