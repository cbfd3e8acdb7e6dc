"""Symmetric matrices at the price of one: products into a triangle, mirroring, permuting, all in place.

    out += weight · XᵀX        upper blocks only, half the work

Everything here keeps peak memory at the matrix plus a strip of it. Not for factorisations.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

STRIP = 1024


def strips(size: int, width: int = STRIP) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) pairs that cover 0..size."""
    for start in range(0, size, width):
        yield start, min(start + width, size)


def add_gram_(out: Tensor, rows: Tensor, *, weight: float = 1.0) -> None:
    """Add weight·XᵀX to the upper block triangle of ``out`` (d, d); X is ``rows`` (m, d) in out's dtype.

    Blocks below the diagonal are left alone: call :func:`mirror_` once at the end.
    """
    for start, stop in strips(out.shape[0]):
        out[start:stop, start:].addmm_(rows[:, start:stop].T, rows[:, start:], alpha=weight)


def mirror_(matrix: Tensor) -> Tensor:
    """Copy the upper triangle (d, d) onto the lower one, in place."""
    for start, stop in strips(matrix.shape[0]):
        block = matrix[start:stop, start:stop]
        block.copy_(block.triu() + block.triu(1).T)
        matrix[stop:, start:stop].copy_(matrix[start:stop, stop:].T)
    return matrix


def permute_(matrix: Tensor, columns: Tensor) -> Tensor:
    """Give entry (p, q) of a (d, d) matrix the place (columns[p], columns[q]), in place, strip by strip."""
    order = torch.argsort(columns)
    for start, stop in strips(matrix.shape[0], STRIP // 4):
        matrix[start:stop] = matrix[start:stop].index_select(1, order)
    for start, stop in strips(matrix.shape[0], STRIP // 4):
        matrix[:, start:stop] = matrix[:, start:stop].index_select(0, order)
    return matrix


def permuted_copy(matrix: Tensor, columns: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return a copy in ``dtype`` with entry (p, q) at (columns[p], columns[q]); only a strip exists twice."""
    order = torch.argsort(columns)
    out = torch.empty(matrix.shape, dtype=dtype, device=matrix.device)
    for start, stop in strips(matrix.shape[0], STRIP // 4):
        out.index_copy_(0, columns[start:stop], matrix[start:stop].index_select(1, order).to(dtype))
    return out


def one_norm(matrix: Tensor) -> float:
    """Return the 1-norm of a symmetric matrix; NaN or infinity in it comes out as such."""
    if matrix.shape[0] == 0:
        return 0.0
    # A norm needs no |A|: strips of one left half a gigabyte of holes in the heap at d = 8 746.
    return float(torch.linalg.vector_norm(matrix, 1, dim=1).max())
