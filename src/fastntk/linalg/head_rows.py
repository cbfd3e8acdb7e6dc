"""Jacobian rows of a network with a linear head, whose block-diagonal part is kept as features.

The row of (sample i, class c) holds ``body[i, c]`` at ``body_columns``, ``features[i]`` at
``weight_columns[c]`` and 1 at ``bias_columns[c]``; the rest is zero and is never stored. With F = [features
| 1] and v split the same way:

    J v = body·v_body + F·v_headᵀ      Θ[(i,c),(j,c')] = ⟨body[i,c], body[j,c']⟩ + δ_cc' (F Fᵀ)[i,j]

For C classes, H features and b body columns this saves n·C·(C-1)·(H+1) zeros. Not for heads whose features
differ from class to class: store those as :class:`~fastntk.linalg.operators.DenseRows`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg.gram import GramStore
from fastntk.linalg.layout import Layout, head_layout
from fastntk.linalg.operators import MATRIX_CHUNK, VECTOR_CHUNK, DenseRows, add_outer_, as_columns, converter, samples_per_chunk
from fastntk.linalg.symmetric import mirror_


def _check(body: Tensor, features: Tensor | None, *, bias: bool, weights: bool, biases: bool) -> None:
    if body.ndim != 3 or not body.is_floating_point():
        raise InputError(f"body must be a floating-point tensor (n, C, b), not {tuple(body.shape)} {body.dtype}")
    if features is not None and (features.ndim != 2 or features.shape[0] != body.shape[0]):
        raise InputError(f"features must be (n, H) with n = {body.shape[0]} as in body, not {tuple(features.shape)}")
    if (features is not None) != weights:
        raise InputError("features and weight_columns come together: give both or neither")
    if bias != biases:
        raise InputError("bias=True needs bias_columns, bias=False none")


class HeadRows:
    """Rows (n, C, d) as ``body`` (n, C, b), ``features`` (n, H) or None, and, with ``bias``, implied ones.

    ``body`` may be memory-mapped and of lower precision: it is converted chunk by chunk, never as a whole.
    Products are made on the rows' device and come back on the vector's.
    ``product_dtype``: dtype of products inside matvec, rmatvec and gram_matvec; None follows the vector.
    """

    def __init__(
        self,
        body: Tensor,
        features: Tensor | None,
        *,
        bias: bool,
        body_columns: Tensor,
        weight_columns: Tensor | None = None,
        bias_columns: Tensor | None = None,
        product_dtype: torch.dtype | None = None,
    ) -> None:
        _check(body, features, bias=bias, weights=weight_columns is not None, biases=bias_columns is not None)
        if body_columns.numel() != body.shape[2]:
            raise InputError(f"body has {body.shape[2]} columns, body_columns names {body_columns.numel()}: these must agree")
        if features is not None and weight_columns is not None and features.shape[1] != weight_columns.shape[-1]:
            raise InputError(
                f"features have H = {features.shape[1]} columns, weight_columns are {tuple(weight_columns.shape)}, "
                "expected (C, H)"
            )
        self._body = body
        self._features = features
        self._positions: Tensor | None = None
        self.bias = bias
        self.product_dtype = product_dtype
        weights, biases = (None if each is None else each.to(body.device) for each in (weight_columns, bias_columns))
        self.layout: Layout = head_layout(
            body.shape[1], body_columns.to(body.device), weight_columns=weights, bias_columns=biases
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the rows are stored in."""
        return self._body.dtype

    @property
    def body(self) -> Tensor:
        """(n, C, b); of a selection, a copy."""
        return self._part(self._body, slice(None))

    @property
    def features(self) -> Tensor | None:
        """(n, H), None where no weight of the head is tuned; of a selection, a copy."""
        return None if self._features is None else self._part(self._features, slice(None))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, C, d)."""
        n = len(self._body) if self._positions is None else len(self._positions)
        return n, self._body.shape[1], self.layout.d

    def extended(self, part: slice, dtype: torch.dtype) -> Tensor:
        """F = [features | 1] of some samples, (m, h); h = 0 where the head is not tuned."""
        m = len(range(*part.indices(self.shape[0])))
        pieces = [] if self._features is None else [self._part(self._features, part).to(dtype)]
        if self.bias:
            pieces.append(torch.ones(m, 1, dtype=dtype, device=self._body.device))
        return torch.cat(pieces, dim=1) if pieces else self._body.new_empty(m, 0, dtype=dtype)

    def chunks(self, dtype: torch.dtype, *, budget: int, columns: int = 1) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield (samples, body (m, C, b), F (m, h)) in ``dtype``; the body is valid until the next chunk."""
        per_sample = self._body.shape[1] * self._body.shape[2] + self.layout.head
        step = samples_per_chunk(per_sample, budget=budget, columns=columns)
        convert = converter(dtype)
        for start in range(0, self.shape[0], step):
            part = slice(start, min(start + step, self.shape[0]))
            yield part, convert(self._part(self._body, part)), self.extended(part, dtype)

    def matvec(self, v: Tensor) -> Tensor:
        """J v: (d,) -> (n, C), or (d, k) -> (n, C, k)."""
        n, classes, d = self.shape
        vectors, flat = as_columns(v, (d,), what="v")
        dtype = self.product_dtype or v.dtype
        on_body, on_head = self._split(vectors.to(self._body.device, dtype))
        out = torch.empty(n, classes, vectors.shape[1], dtype=v.dtype, device=v.device)
        for part, body, head in self.chunks(dtype, budget=VECTOR_CHUNK, columns=vectors.shape[1]):
            out[part] = _forward(body, head, on_body, on_head)
        return out.squeeze(-1) if flat else out

    def rmatvec(self, u: Tensor) -> Tensor:
        """Jᵀ u: (n, C) -> (d,), or (n, C, k) -> (d, k)."""
        n, classes, _ = self.shape
        vectors, flat = as_columns(u, (n, classes), what="u")
        dtype = self.product_dtype or u.dtype
        sums = self._zeros(vectors.shape[2], u.dtype)
        for part, body, head in self.chunks(dtype, budget=VECTOR_CHUNK, columns=vectors.shape[2]):
            _add_adjoint_(sums, body, head, vectors[part].to(self._body.device, dtype))
        out = self._join(*sums).to(u.device)
        return out.squeeze(-1) if flat else out

    def gram_matvec(self, v: Tensor, weigh: Callable[[slice, Tensor], Tensor] | None = None) -> Tensor:
        """A v in one pass: (d,) -> (d,), or (d, k) -> (d, k).

        With ``weigh``, Jᵀ W J v: it is given some samples and their J v (m, C, k) and returns W J v of the same shape.
        """
        vectors, flat = as_columns(v, (self.shape[2],), what="v")
        dtype = self.product_dtype or v.dtype
        on_body, on_head = self._split(vectors.to(self._body.device, dtype))
        sums = self._zeros(vectors.shape[1], v.dtype)
        for part, body, head in self.chunks(dtype, budget=VECTOR_CHUNK, columns=vectors.shape[1]):
            outputs = _forward(body, head, on_body, on_head)
            _add_adjoint_(sums, body, head, outputs if weigh is None else weigh(part, outputs))
        out = self._join(*sums).to(v.device)
        return out.squeeze(-1) if flat else out

    def gram(self, dtype: torch.dtype) -> Tensor:
        """A = JᵀJ, (d, d)."""
        store = GramStore(self.layout, dtype=dtype, device=self._body.device)
        for _, body, head in self.chunks(dtype, budget=MATRIX_CHUNK):
            store.add(body, head)
        return store.take()

    def kernel(self, dtype: torch.dtype) -> Tensor:
        """Θ = JJᵀ, (n·C, n·C), sample-major."""
        n, classes, _ = self.shape
        out = torch.zeros(n * classes, n * classes, dtype=dtype, device=self._body.device)
        add_outer_(out, self.body.reshape(n * classes, self.layout.body))
        if self.layout.head:
            head = self.extended(slice(None), dtype)
            same_class = out.view(n, classes, n, classes).diagonal(dim1=1, dim2=3)
            same_class += (head @ head.T)[:, :, None]
        return mirror_(out)

    def column_norms2(self) -> Tensor:
        """diag(A) in float64, (d,)."""
        sums = self._zeros(1, torch.float64)
        for _, body, head in self.chunks(torch.float64, budget=VECTOR_CHUNK):
            sums[0].add_(body.square().sum((0, 1))[:, None])
            sums[1].add_(head.square().sum(0)[None, :, None])
        return self._join(*sums).squeeze(-1).cpu()

    def iter_rows(self, chunk: int) -> Iterator[tuple[slice, HeadRows]]:
        """Yield views of ``chunk`` samples at a time."""
        for start in range(0, self.shape[0], chunk):
            part = slice(start, min(start + chunk, self.shape[0]))
            yield part, self.subset(part)

    def subset(self, indices: Tensor | slice) -> HeadRows:
        """Some samples' rows, by a slice, by indices or by a mask: nothing is copied but a chunk at a time, in products."""
        other = copy.copy(self)
        if self._positions is not None:
            other._positions = self._positions[indices]
        elif isinstance(indices, slice):
            other._body = self._body[indices]
            other._features = None if self._features is None else self._features[indices]
        else:
            other._positions = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        return other

    def _part(self, values: Tensor, part: slice) -> Tensor:
        """Some of the samples' values: a view, or a copy where samples were selected by indices."""
        if self._positions is not None:
            return values[self._positions[part]]
        return values if part == slice(None) else values[part]

    def dense(self) -> Tensor:
        """Return the rows with their zeros, (n, C, d): for small sizes and for tests."""
        n, classes, d = self.shape
        out = self.body.new_zeros(n, classes, d)
        out[:, :, self.layout.body_columns] = self.body
        head = self.extended(slice(None), self.body.dtype)
        for index in range(classes):
            out[:, index, self.layout.head_columns[index]] = head
        return out

    def _split(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """(d, k) -> body part (b, k) and head part (C, h, k)."""
        return vectors[self.layout.body_columns], vectors[self.layout.head_columns]

    def _zeros(self, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        body = torch.zeros(self.layout.body, k, dtype=dtype, device=self._body.device)
        return body, body.new_zeros(self.layout.classes, self.layout.head, k)

    def _join(self, body: Tensor, head: Tensor) -> Tensor:
        """Undo :meth:`_split`."""
        out = body.new_empty(self.layout.d, body.shape[1])
        out[self.layout.columns] = torch.cat([body, head.reshape(self.layout.classes * self.layout.head, body.shape[1])])
        return out


def _forward(body: Tensor, head: Tensor, on_body: Tensor, on_head: Tensor) -> Tensor:
    """J v of m samples: body (m, C, b) · (b, k) + head (m, h) · (C, h, k) -> (m, C, k)."""
    m, classes, b = body.shape
    out = (body.reshape(m * classes, b) @ on_body).view(m, classes, on_body.shape[1])
    return out + torch.einsum("mh,chk->mck", head, on_head)


def _add_adjoint_(sums: tuple[Tensor, Tensor], body: Tensor, head: Tensor, u: Tensor) -> None:
    """Add Jᵀu of m samples, u (m, C, k), to the sums ((b, k), (C, h, k))."""
    m, classes, b = body.shape
    sums[0].add_(body.reshape(m * classes, b).T @ u.reshape(m * classes, u.shape[2]))
    sums[1].add_(torch.einsum("mh,mck->chk", head, u))


Rows: TypeAlias = DenseRows | HeadRows
