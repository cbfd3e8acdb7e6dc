"""What a Jacobian can be asked for, and the plainest operator there is: rows held as one tensor.

J has one row per (sample, class), stored as (n, C, d); A = JᵀJ is (d, d), Θ = JJᵀ is (n·C, n·C).

    matvec  u = J v        rmatvec  v = Jᵀ u        gram  A        kernel  Θ        column_norms2  diag A

Vectors come back in the dtype they came in. Not for networks: products through jvp/vjp live in
``fastntk.tangent`` and implement :class:`RowOperator` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg.gram import GramStore
from fastntk.linalg.layout import dense_layout
from fastntk.linalg.symmetric import add_gram_, mirror_

if TYPE_CHECKING:
    from fastntk.linalg.head_rows import Rows

# Elements of J worked on at a time: small for products with one vector (stay in cache), large for matrix products.
VECTOR_CHUNK = 1 << 20
MATRIX_CHUNK = 1 << 23


class RowOperator(Protocol):
    """The Jacobian as a linear map; stored rows and jvp/vjp products look the same from here."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, C, d)."""

    def matvec(self, v: Tensor) -> Tensor:
        """J v: (d,) -> (n, C), or (d, k) -> (n, C, k)."""

    def rmatvec(self, u: Tensor) -> Tensor:
        """Jᵀ u: (n, C) -> (d,), or (n, C, k) -> (d, k)."""

    def gram(self, dtype: torch.dtype) -> Tensor:
        """A = JᵀJ, (d, d)."""

    def kernel(self, dtype: torch.dtype) -> Tensor:
        """Θ = JJᵀ, (n·C, n·C), sample-major."""

    def column_norms2(self) -> Tensor:
        """diag(A) in float64, (d,)."""

    def iter_rows(self, chunk: int) -> Iterator[tuple[slice, Rows]]:
        """Yield the rows of ``chunk`` samples at a time, with the samples they belong to."""


@runtime_checkable
class FusedOperator(Protocol):
    """An operator that forms A v in one pass over its rows, which halves the reading."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, C, d)."""

    def gram_matvec(self, v: Tensor) -> Tensor:
        """A v: (d,) -> (d,), or (d, k) -> (d, k)."""


def gram_product(operator: RowOperator | FusedOperator, v: Tensor) -> Tensor:
    """Return A v = Jᵀ(J v) for v (d,) or (d, k), in one pass where the operator can."""
    if isinstance(operator, FusedOperator):
        return operator.gram_matvec(v)
    return operator.rmatvec(operator.matvec(v))


def samples_per_chunk(elements_per_sample: int, *, budget: int, columns: int = 1) -> int:
    """Return how many samples to take at a time; products with several vectors earn larger chunks."""
    return max(1, budget * min(max(columns, 1), 8) // max(elements_per_sample, 1))


def converter(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return a function that casts chunk after chunk into one buffer: a result is valid until the next call.

    Fresh memory for every chunk costs three times as much as the cast itself.
    """
    buffer: Tensor | None = None

    def convert(chunk: Tensor) -> Tensor:
        nonlocal buffer
        if chunk.dtype == dtype:
            return chunk
        if buffer is None or buffer.shape[0] < chunk.shape[0]:
            buffer = torch.empty(chunk.shape, dtype=dtype, device=chunk.device)
        return buffer[: chunk.shape[0]].copy_(chunk)

    return convert


def as_columns(x: Tensor, leading: tuple[int, ...], *, what: str) -> tuple[Tensor, bool]:
    """Return x as (*leading, k) and whether k was missing; InputError for any other shape."""
    if tuple(x.shape) == leading:
        return x.unsqueeze(-1), True
    if x.ndim == len(leading) + 1 and tuple(x.shape[:-1]) == leading:
        return x, False
    raise InputError(f"{what} must be {leading} or {(*leading, 'k')}, not {tuple(x.shape)}")


class DenseRows:
    """Rows as one tensor (n, C, d), possibly memory-mapped; converted chunk by chunk, never as a whole.

    Products are made on the rows' device and come back on the vector's.

    ``product_dtype``: dtype of products inside matvec, rmatvec and gram_matvec; None follows the vector.
    """

    def __init__(self, tensor: Tensor, *, product_dtype: torch.dtype | None = None) -> None:
        if tensor.ndim != 3 or not tensor.is_floating_point():
            raise InputError(f"rows must be a floating-point tensor (n, C, d), not {tuple(tensor.shape)} {tensor.dtype}")
        self.tensor = tensor
        self.product_dtype = product_dtype
        self.layout = dense_layout(tensor.shape[1], tensor.shape[2], device=tensor.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the rows are stored in."""
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, C, d)."""
        n, classes, d = self.tensor.shape
        return n, classes, d

    def chunks(self, dtype: torch.dtype, *, budget: int, columns: int = 1) -> Iterator[tuple[slice, Tensor, None]]:
        """Yield (samples, body (m, C, d) in ``dtype``, None): None stands for the head these rows lack.

        The body is valid until the next chunk: see :func:`converter`.
        """
        n, classes, d = self.shape
        step = samples_per_chunk(classes * d, budget=budget, columns=columns)
        convert = converter(dtype)
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            yield part, convert(self.tensor[part]), None

    def matvec(self, v: Tensor) -> Tensor:
        """J v: (d,) -> (n, C), or (d, k) -> (n, C, k)."""
        n, classes, d = self.shape
        vectors, flat = as_columns(v, (d,), what="v")
        dtype = self.product_dtype or v.dtype
        vectors = vectors.to(self.tensor.device, dtype)
        out = torch.empty(n, classes, vectors.shape[1], dtype=v.dtype, device=v.device)
        for part, rows, _ in self.chunks(dtype, budget=VECTOR_CHUNK, columns=vectors.shape[1]):
            out[part] = (rows.reshape(-1, d) @ vectors).view(-1, classes, vectors.shape[1])
        return out.squeeze(-1) if flat else out

    def rmatvec(self, u: Tensor) -> Tensor:
        """Jᵀ u: (n, C) -> (d,), or (n, C, k) -> (d, k)."""
        n, classes, d = self.shape
        vectors, flat = as_columns(u, (n, classes), what="u")
        dtype = self.product_dtype or u.dtype
        out = torch.zeros(d, vectors.shape[2], dtype=u.dtype, device=self.tensor.device)
        for part, rows, _ in self.chunks(dtype, budget=VECTOR_CHUNK, columns=vectors.shape[2]):
            out += rows.reshape(-1, d).T @ vectors[part].reshape(-1, vectors.shape[2]).to(out.device, dtype)
        out = out.to(u.device)
        return out.squeeze(-1) if flat else out

    def gram_matvec(self, v: Tensor) -> Tensor:
        """A v in one pass: (d,) -> (d,), or (d, k) -> (d, k)."""
        d = self.shape[2]
        vectors, flat = as_columns(v, (d,), what="v")
        dtype = self.product_dtype or v.dtype
        inner = vectors.to(self.tensor.device, dtype)
        out = torch.zeros_like(vectors, device=inner.device)
        for _, rows, _ in self.chunks(dtype, budget=VECTOR_CHUNK, columns=vectors.shape[1]):
            matrix = rows.reshape(-1, d)
            out += matrix.T @ (matrix @ inner)
        out = out.to(v.device)
        return out.squeeze(-1) if flat else out

    def gram(self, dtype: torch.dtype) -> Tensor:
        """A = JᵀJ, (d, d)."""
        store = GramStore(self.layout, dtype=dtype, device=self.tensor.device)
        for _, rows, head in self.chunks(dtype, budget=MATRIX_CHUNK):
            store.add(rows, head)
        return store.take()

    def kernel(self, dtype: torch.dtype) -> Tensor:
        """Θ = JJᵀ, (n·C, n·C), sample-major."""
        n, classes, d = self.shape
        out = torch.zeros(n * classes, n * classes, dtype=dtype, device=self.tensor.device)
        add_outer_(out, self.tensor.reshape(n * classes, d))
        return mirror_(out)

    def column_norms2(self) -> Tensor:
        """diag(A) in float64, (d,)."""
        out = torch.zeros(self.shape[2], dtype=torch.float64, device=self.tensor.device)
        for _, rows, _ in self.chunks(torch.float64, budget=VECTOR_CHUNK):
            out += rows.square().sum((0, 1))
        return out.cpu()

    def iter_rows(self, chunk: int) -> Iterator[tuple[slice, DenseRows]]:
        """Yield views of ``chunk`` samples at a time."""
        for start in range(0, self.shape[0], chunk):
            part = slice(start, min(start + chunk, self.shape[0]))
            yield part, self.subset(part)

    def subset(self, indices: Tensor | slice) -> DenseRows:
        """Return some samples' rows: a view for a slice, a copy for indices (or a mask)."""
        return DenseRows(self.tensor[indices], product_dtype=self.product_dtype)

    def dense(self) -> Tensor:
        """Return the rows, (n, C, d)."""
        return self.tensor


def add_outer_(out: Tensor, matrix: Tensor) -> None:
    """Add X Xᵀ to the upper block triangle of ``out`` (m, m) for X (m, b) of any dtype, converting columns
    in chunks.
    """
    size, width = matrix.shape
    step = width if matrix.dtype == out.dtype else max(1024, MATRIX_CHUNK // max(size, 1))
    for start in range(0, width, max(step, 1)):
        add_gram_(out, matrix[:, start : start + step].to(out.dtype).T)
