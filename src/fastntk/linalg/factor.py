"""Direct solves of (A + λI) w = b: factorise once, solve often, in float64 and in the memory of A itself.

LAPACK destroys one triangle of a symmetric matrix and leaves the other, so the original stays at hand (with
its diagonal kept aside) for residuals, refinement and a second attempt. :class:`PrimalCholesky` goes first;
where the matrix is not positive definite to rounding, :class:`Eigen` takes over and says so. Not for matrices
that do not fit in memory: see ``matrix_free``.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from scipy.linalg import LinAlgError, blas, eigh, lapack
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg.condition import inverse_one_norm
from fastntk.linalg.operators import as_columns
from fastntk.linalg.solution import Solution, failure, relative_residual, status_of
from fastntk.linalg.symmetric import mirror_, one_norm

EPS = float(np.finfo(np.float64).eps)


class Factor(Protocol):
    """A factorised A + λI."""

    @property
    def seconds(self) -> float:
        """What the factorisation took."""

    def solve(self, rhs: Tensor) -> Solution:
        """Solve for b (d,) or (d, k)."""


class Intact:
    """A symmetric (d, d) float64 matrix of which LAPACK may spoil the lower triangle and the diagonal.

    ``fortran`` is the same memory as LAPACK sees it: column-major, where the triangle to spoil is the
    *upper* one.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.fortran: Any = matrix.numpy().T
        self.diagonal = matrix.diagonal().clone()

    def multiply(self, x: np.ndarray) -> np.ndarray:
        """Multiply the original matrix by x (d, k)."""
        product = blas.dsymm(1.0, self.fortran, np.asfortranarray(x), side=0, lower=1)
        correction = self.diagonal.numpy() - self.fortran.diagonal()
        return np.asarray(product + correction[:, None] * x)

    def restore(self) -> Tensor:
        """Return the original matrix, in place."""
        self.matrix.diagonal().copy_(self.diagonal)
        return mirror_(self.matrix)


@dataclass(frozen=True)
class FailedFactor:
    """Stands in where nothing can be factorised: every solve reports the reason."""

    message: str
    solver: str
    seconds: float = 0.0

    def solve(self, rhs: Tensor) -> Solution:
        """Return a failed solution."""
        return failure(rhs, solver=self.solver, message=self.message)


@dataclass(frozen=True, eq=False)
class CholeskyFactor:
    """S(A + λI)S = UᵀU with S = diag(A + λI)^-½, which makes bad column scaling harmless."""

    intact: Intact
    scale: np.ndarray
    condition: float
    tol: float
    refinements: int
    seconds: float

    def solve(self, rhs: Tensor) -> Solution:
        """Solve for b (d,) or (d, k), refining while that helps."""
        started = time.perf_counter()
        columns, flat = as_columns(rhs, (self.scale.size,), what="the right-hand side")
        if not bool(torch.isfinite(columns).all()):
            return failure(rhs, solver="primal", message="the right-hand side has NaN or infinite entries")
        b = columns.detach().cpu().double()
        value = self._apply(b.numpy())
        difference = b - torch.from_numpy(self._product(value))
        residual, steps = relative_residual(difference, b), 0
        for _ in range(self.refinements):
            better = value + self._apply(difference.numpy())
            after = b - torch.from_numpy(self._product(better))
            if not relative_residual(after, b) < residual:
                break
            value, difference, residual, steps = better, after, relative_residual(after, b), steps + 1
        out = torch.from_numpy(np.ascontiguousarray(value)).to(rhs.device)
        return Solution(
            out.squeeze(-1) if flat else out,
            status_of(residual, tol=self.tol),
            residual,
            self.condition,
            steps,
            "primal",
            time.perf_counter() - started,
        )

    def _apply(self, b: np.ndarray) -> np.ndarray:
        rhs = np.asfortranarray(self.scale[:, None] * b)
        x, _ = lapack.dpotrs(self.intact.fortran, rhs, lower=0, overwrite_b=1)
        return np.asarray(self.scale[:, None] * x)

    def _product(self, x: np.ndarray) -> np.ndarray:
        inverse = 1.0 / self.scale[:, None]
        return np.asarray(inverse * self.intact.multiply(inverse * x))


@dataclass(frozen=True, eq=False)
class EigenFactor:
    """A = Q diag(a) Qᵀ; ``inverse`` holds 1/(a + λ), with negative a taken as 0 and noise directions as 0."""

    intact: Intact
    vectors: np.ndarray
    inverse: np.ndarray
    condition: float
    dropped: int
    tol: float
    message: str
    seconds: float

    def solve(self, rhs: Tensor) -> Solution:
        """Solve for b (d,) or (d, k)."""
        started = time.perf_counter()
        columns, flat = as_columns(rhs, (self.inverse.size,), what="the right-hand side")
        if not bool(torch.isfinite(columns).all()):
            return failure(rhs, solver="eigen", message="the right-hand side has NaN or infinite entries")
        b = columns.detach().cpu().double()
        value = self.vectors @ (self.inverse[:, None] * (self.vectors.T @ b.numpy()))
        residual = relative_residual(b - torch.from_numpy(self.intact.multiply(value)), b)
        out = torch.from_numpy(np.ascontiguousarray(value)).to(rhs.device)
        return Solution(
            out.squeeze(-1) if flat else out,
            status_of(residual, tol=self.tol, dropped=self.dropped),
            residual,
            self.condition,
            0,
            "eigen",
            time.perf_counter() - started,
            self.message,
        )


@dataclass(frozen=True)
class PrimalCholesky:
    """Cholesky of A + λI in place; falls to :class:`Eigen`, and says so, where A is not positive definite
    to rounding.
    """

    tol: float = 1e-10
    refinements: int = 2

    def factorise(self, matrix: Tensor, damping: float, *, overwrite: bool = False) -> Factor:
        """Factorise A + λI for A (d, d), symmetric; ``overwrite`` gives up A's memory (float64, CPU) to the
        factor.
        """
        started = time.perf_counter()
        system = damped(matrix, damping, overwrite=overwrite)
        norm = one_norm(system)
        if not math.isfinite(norm):
            return FailedFactor(not_finite(), "primal")
        diagonal = system.diagonal()
        if bool((diagonal <= 0).any()):
            return Eigen(self.tol).of_system(system, damping, why="a diagonal entry of A + λI is not positive; ")
        scale = diagonal.rsqrt()
        system.mul_(scale[:, None]).mul_(scale)
        intact, scaled_norm = Intact(system), one_norm(system)
        _, info = lapack.dpotrf(intact.fortran, lower=0, clean=0, overwrite_a=1)
        rcond = 0.0 if info else float(lapack.dpocon(intact.fortran, scaled_norm, uplo="U")[0])
        if rcond < 10 * EPS:
            system = intact.restore()
            system.div_(scale[:, None]).div_(scale)
            why = "Cholesky broke down; " if info else "A + λI is singular to rounding; "
            return Eigen(self.tol).of_system(system, damping, why=why)
        factor = CholeskyFactor(intact, scale.numpy(), 0.0, self.tol, self.refinements, 0.0)
        condition = norm * inverse_one_norm(factor._apply, system.shape[0])
        seconds = time.perf_counter() - started
        return CholeskyFactor(intact, scale.numpy(), condition, self.tol, self.refinements, seconds)


@dataclass(frozen=True)
class Eigen:
    """Eigendecomposition of A: slower, about 8·d² bytes more, and able to solve a singular system."""

    tol: float = 1e-10

    def factorise(self, matrix: Tensor, damping: float, *, overwrite: bool = False) -> Factor:
        """Decompose A (d, d), symmetric; ``overwrite`` gives up A's memory (float64, CPU)."""
        system = damped(matrix, damping, overwrite=overwrite)
        if not math.isfinite(one_norm(system)):
            return FailedFactor(not_finite(), "eigen")
        return self.of_system(system, damping)

    def of_system(self, system: Tensor, damping: float, *, why: str = "") -> Factor:
        """Decompose A + λI, finite and given complete; its memory is used."""
        started = time.perf_counter()
        intact = Intact(system)
        try:
            values, vectors = eigh(intact.fortran, lower=False, overwrite_a=True, check_finite=False)
        except LinAlgError as error:
            return FailedFactor(f"{why}the eigendecomposition did not converge ({error})", "eigen")
        of_gram = values - damping
        # The most negative eigenvalue of what should be positive semi-definite shows how coarse A is,
        # also where A was summed in float32.
        noise = max(EPS * values.size * float(np.abs(values).max(initial=0.0)), -float(of_gram.min(initial=0.0)))
        resolved = (of_gram > noise) | (damping > noise)
        spectrum = np.maximum(of_gram, 0.0) + damping
        inverse = np.where(resolved, 1.0 / np.where(resolved, spectrum, 1.0), 0.0)
        spread = spectrum[resolved]
        condition = float(spread.max() / spread.min()) if spread.size else math.inf
        message = why + _eigen_message(of_gram, resolved, noise)
        return EigenFactor(
            intact,
            vectors,
            inverse,
            condition,
            int((~resolved).sum()),
            self.tol,
            message,
            time.perf_counter() - started,
        )


def damped(matrix: Tensor, damping: float, *, overwrite: bool) -> Tensor:
    """Return A + λI as a contiguous float64 CPU tensor, in A's own memory if ``overwrite`` and possible."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"expected a square matrix, not {tuple(matrix.shape)}")
    if not (math.isfinite(damping) and damping >= 0):
        raise InputError(f"damping must be a finite number >= 0, not {damping}")
    system = matrix.detach().to(dtype=torch.float64, device="cpu").contiguous()
    if not overwrite and system.data_ptr() == matrix.data_ptr():
        system = system.clone()
    system.diagonal().add_(damping)
    return system


def not_finite() -> str:
    """Say what NaN in A means to the caller."""
    return "A = JᵀJ has NaN or infinite entries: look for them in the weights, the inputs and the Jacobian rows"


def _eigen_message(of_gram: np.ndarray, resolved: np.ndarray, noise: float) -> str:
    small = int((~resolved).sum())
    negative = int((of_gram < 0).sum())
    parts = [f"solved by eigendecomposition ({negative} negative eigenvalues of A taken as 0)"]
    if small:
        parts.append(
            f"{small} of {resolved.size} directions lie below the rounding level {noise:.1e} and were left out "
            "(minimum-norm solution); raise the damping to include them"
        )
    return "; ".join(parts)
