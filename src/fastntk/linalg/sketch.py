"""A low-rank picture of A from a few products with it, as an approximate solver or as a preconditioner,
with its error measured.

Nyström: for a random orthonormal Ω (d, r) and Y = AΩ,

    Â = Y (ΩᵀY)⁻¹ Yᵀ = U diag(s) Uᵀ

computed with a tiny shift of A that is taken off the eigenvalues again, which keeps the small Cholesky
factorisation stable. Â is never larger than A and equals it once r reaches its rank. It pays when A's
eigenvalues fall fast: compare ``s[-1]`` with the damping. Not for a flat spectrum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg.operators import FusedOperator, RowOperator, as_columns, gram_product


@dataclass(frozen=True, eq=False)
class LowRank:
    """Â = U diag(s) Uᵀ with orthonormal ``vectors`` U (d, r) and ``values`` s (r,) falling."""

    vectors: Tensor
    values: Tensor

    def gram_matvec(self, v: Tensor) -> Tensor:
        """Â v: (d,) -> (d,), or (d, k) -> (d, k)."""
        columns, flat = as_columns(v, (self.vectors.shape[0],), what="v")
        out = self.vectors @ (self.values[:, None] * (self.vectors.T @ columns))
        return out.squeeze(-1) if flat else out

    def solve(self, rhs: Tensor, damping: float) -> Tensor:
        """(Â + λI)⁻¹ b for b (d,) or (d, k), λ > 0; approximate as a solution for A: see
        :meth:`error_estimate`.
        """
        if not damping > 0:
            raise InputError(f"a low-rank A needs damping > 0 to be inverted, not {damping}")
        columns, flat = as_columns(rhs, (self.vectors.shape[0],), what="the right-hand side")
        coefficients = self.vectors.T @ columns
        inside = self.vectors @ (coefficients / (self.values + damping)[:, None])
        out = inside + (columns - self.vectors @ coefficients) / damping
        return out.squeeze(-1) if flat else out

    def precondition(self, damping: float) -> Callable[[Tensor], Tensor]:
        """Return v (d, k) -> P⁻¹v that levels the sketched directions at the smallest sketched eigenvalue."""
        floor = self.values[-1] + damping
        if not float(floor) > 0:
            raise InputError("without damping, a sketch that reaches the rank of A is no preconditioner: use damping > 0")
        # (s_r + λ)/(s + λ) - 1, so that P⁻¹ = I + U diag(gain) Uᵀ.
        gain = (floor / (self.values + damping) - 1.0)[:, None]
        return lambda v: v + self.vectors @ (gain * (self.vectors.T @ v))

    def error_estimate(self, operator: RowOperator, *, probes: int = 8, seed: int = 1) -> float:
        """Estimate ‖A - Â‖_F / ‖A‖_F; use a seed other than the sketch's."""
        return gram_error(operator, self.gram_matvec, probes=probes, seed=seed)


def gram_error(operator: RowOperator, approximation: Callable[[Tensor], Tensor], *, probes: int = 8, seed: int = 1) -> float:
    """Estimate ‖A - Â‖_F / ‖A‖_F from Gaussian vectors g: E‖Mg‖² = ‖M‖_F². ``approximation``: v (d, k) ->
    Âv.
    """
    if probes < 1:
        raise InputError(f"probes must be at least 1, not {probes}")
    vectors = _gaussian(operator.shape[2], probes, seed)
    exact = gram_product(operator, vectors)
    size = float(torch.linalg.matrix_norm(exact))
    error = float(torch.linalg.matrix_norm(exact - approximation(vectors)))
    return error / size if size > 0 else error


def nystrom(operator: RowOperator | FusedOperator, rank: int, *, seed: int = 0) -> LowRank:
    """Sketch A by ``rank`` products (all in one pass over stored rows); rank above d is taken as d."""
    d = operator.shape[2]
    if rank < 1:
        raise InputError(f"rank must be at least 1, not {rank}")
    basis = torch.linalg.qr(_gaussian(d, min(rank, d), seed)).Q
    product = gram_product(operator, basis)
    norm = float(torch.linalg.matrix_norm(product))
    if not norm < float("inf"):
        raise InputError("J has NaN or infinite entries: look at the weights, the inputs and the Jacobian rows")
    if norm == 0.0:
        return LowRank(basis, torch.zeros(basis.shape[1], dtype=torch.float64))
    shift = torch.finfo(torch.float64).eps * d**0.5 * norm
    product.add_(basis, alpha=shift)
    while True:
        core = basis.T @ product
        factor, info = torch.linalg.cholesky_ex((core + core.T) / 2)
        if int(info) == 0:
            break
        # Products in float32 make ΩᵀAΩ indefinite at their own rounding level: climb until the shift covers it.
        product.add_(basis, alpha=9.0 * shift)
        shift *= 10.0
    del basis
    half = torch.linalg.solve_triangular(factor, product.T, upper=False).T
    del product
    orthonormal, triangle = torch.linalg.qr(half)
    del half
    rotation, singular, _ = torch.linalg.svd(triangle)
    return LowRank(orthonormal @ rotation, (singular.square() - shift).clamp_min(0.0))


def _gaussian(d: int, k: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(d, k, dtype=torch.float64, generator=generator)
