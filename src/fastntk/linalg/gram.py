"""Sums of JᵀJ in the internal column order ``[body | head class by class]``, one d×d matrix and nothing of
its size beside.

With B_c the body rows of class c and F = [features | 1]:

    A[body, body] = Σ_c B_cᵀB_c        A[body, head c] = B_cᵀF        A[head c, head c] = FᵀF        else 0

Only the upper triangle is summed while rows come in; :meth:`GramStore.copy` and :meth:`GramStore.take`
complete it and put the columns in true order. Not for reading rows: see :mod:`fastntk.linalg.accumulate`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastntk.linalg.layout import Layout
from fastntk.linalg.symmetric import add_gram_, mirror_, permute_, permuted_copy


class GramStore:
    """A running A = Σ weight·JᵀJ for rows of one layout."""

    def __init__(self, layout: Layout, *, dtype: torch.dtype, device: torch.device | None = None) -> None:
        self.layout = layout
        self._matrix = torch.zeros(layout.d, layout.d, dtype=dtype, device=device)
        self._head = torch.zeros(layout.head, layout.head, dtype=dtype, device=device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype sums are kept in."""
        return self._matrix.dtype

    def add(self, body: Tensor, head: Tensor | None, *, weight: float = 1.0) -> None:
        """Add weight·JᵀJ of m samples: ``body`` (m, C, b), ``head`` F (m, h) or None, in the store's dtype."""
        b, h = self.layout.body, self.layout.head
        add_gram_(self._matrix[:b, :b], body.reshape(body.shape[0] * body.shape[1], b), weight=weight)
        if head is None or h == 0:
            return
        self._head.addmm_(head.T, head, alpha=weight)
        for index in range(self.layout.classes):
            cross = self._matrix[:b, b + index * h : b + (index + 1) * h]
            cross.addmm_(body[:, index].T, head, alpha=weight)

    def diagonal(self) -> Tensor:
        """diag(A) in true column order, (d,) float64."""
        body = self._matrix.diagonal()[: self.layout.body]
        head = self._head.diagonal().repeat(self.layout.classes)
        out = torch.empty(self.layout.d, dtype=torch.float64, device=self._matrix.device)
        out[self.layout.columns] = torch.cat([body, head]).double()
        return out

    def copy(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return A (d, d) in true order; costs one (d, d) of ``dtype`` beside the store, which stays
        usable.
        """
        self._complete()
        return permuted_copy(self._matrix, self.layout.columns, dtype=dtype)

    def take(self) -> Tensor:
        """Return A (d, d) in true order and in the store's own memory; the store is empty afterwards."""
        self._complete()
        matrix = self._matrix
        self._matrix = matrix.new_empty(0, 0)
        return matrix if self.layout.is_identity else permute_(matrix, self.layout.columns)

    def _complete(self) -> None:
        """Fill the lower triangle and the head's diagonal blocks; later sums only read what is above them."""
        b, h = self.layout.body, self.layout.head
        for index in range(self.layout.classes if h else 0):
            start = b + index * h
            self._matrix[start : start + h, start : start + h] = self._head
        mirror_(self._matrix)
