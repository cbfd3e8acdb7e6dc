"""A = JᵀJ and b = Jᵀt as running sums: rows come in chunk by chunk and need never exist together.

    A += weight · JᵀJ        b += weight · Jᵀt        (weight = -1 takes samples out again)

Memory: one (d, d) in the accumulation dtype while summing; :meth:`GramAccumulator.matrix` adds one (d, d)
of its dtype, and :meth:`GramAccumulator.take_matrix` adds none (same dtype) or frees the sum once
converted. So float32 sums with a float64 solve peak at 12·d² bytes. Each ``add`` passes over the matrix
once: hand over at least d/10 rows at a time, or that traffic dominates. Not for solving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg.gram import GramStore
from fastntk.linalg.operators import MATRIX_CHUNK, as_columns

if TYPE_CHECKING:
    from fastntk.linalg.head_rows import Rows


class GramAccumulator:
    """Running A (d, d) in ``dtype`` and b (d,) or (d, k) in float64; the first rows fix the column layout."""

    def __init__(self, d: int, dtype: torch.dtype = torch.float32) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"accumulate in torch.float32 or torch.float64, not {dtype}")
        self.d = d
        self.dtype = dtype
        self.samples = 0
        self._store: GramStore | None = None
        self._rhs: Tensor | None = None
        self._taken = False

    def add(self, rows: Rows, targets: Tensor | None = None, *, weight: int = 1) -> None:
        """Add (weight +1) or take out (-1) rows (n, C, d) and targets (n, C) or (n, C, k)."""
        n, _, d = rows.shape
        if d != self.d:
            raise InputError(f"the sum is over d = {self.d} columns, these rows have {d}")
        if weight not in (1, -1):
            raise InputError(f"weight must be +1 (add) or -1 (take out), not {weight}")
        if self._taken:
            raise InputError("the matrix was taken out of this sum; start a new GramAccumulator")
        product = None if targets is None else self._right_side(rows, targets)
        if self._store is None:
            device = rows.layout.columns.device
            self._store = GramStore(rows.layout, dtype=self.dtype, device=device)
        elif not self._store.layout.same_as(rows.layout):
            raise InputError("these rows order their columns differently from those already summed")
        for _, body, head in rows.chunks(self.dtype, budget=MATRIX_CHUNK):
            self._store.add(body, head, weight=float(weight))
        if product is not None:
            self._rhs = weight * product if self._rhs is None else self._rhs + weight * product
        self.samples += weight * n

    def _right_side(self, rows: Rows, targets: Tensor) -> Tensor:
        """Jᵀt of these rows, refused before anything is summed where its shape differs from earlier ones."""
        as_columns(targets, rows.shape[:2], what="targets")
        product = rows.rmatvec(targets.double())
        if self._rhs is not None and self._rhs.shape != product.shape:
            raise InputError(f"these targets give Jᵀt {tuple(product.shape)}, earlier ones {tuple(self._rhs.shape)}")
        return product

    @property
    def rhs(self) -> Tensor:
        """b = Jᵀt in float64, (d,) or (d, k) as the targets were."""
        if self._rhs is None:
            raise InputError("no targets were added, so there is no Jᵀt: pass targets to add()")
        return self._rhs

    @property
    def trace(self) -> float:
        """tr(A), the scale that relative damping refers to."""
        return float(self.diagonal().sum())

    def diagonal(self) -> Tensor:
        """diag(A) in true column order, (d,) float64."""
        return torch.zeros(self.d, dtype=torch.float64) if self._store is None else self._store.diagonal()

    def matrix(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """A (d, d) in true column order as a copy; more rows may be added afterwards."""
        if self._store is None:
            return torch.zeros(self.d, self.d, dtype=dtype)
        return self._store.copy(dtype)

    def take_matrix(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """A (d, d) in true column order, giving up the sum: in its own memory where the dtype is the same.

        ``rhs`` stays readable; nothing can be added afterwards.
        """
        store, self._store = self._store, None
        self._taken = True
        if store is None:
            return torch.zeros(self.d, self.d, dtype=dtype)
        return store.take() if dtype == store.dtype else store.copy(dtype)
