"""Where the columns of Jacobian rows go: a dense body, then one small block a class.

The row of (sample i, class c) of a classifier with a linear head is zero in every other class's part of the
head. Internally columns are therefore ordered ``[body (b) | head of class 0 (h) | ... | head of class C-1
(h)]``, where a class's part holds its H weights and, if tuned, its bias: h = H + 1. ``columns`` maps that
order to the caller's: internal position p is true column ``columns[p]``.

Not for values: this file knows positions only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastntk.base.errors import InputError


@dataclass(frozen=True, eq=False)
class Layout:
    """Column order of rows with ``classes`` outputs: ``columns`` (d,), ``body`` = b, ``head`` = h, d = b +
    C·h.
    """

    classes: int
    columns: Tensor
    body: int
    head: int

    @property
    def d(self) -> int:
        """Number of columns."""
        return int(self.columns.numel())

    @property
    def body_columns(self) -> Tensor:
        """True columns of the body, (b,)."""
        return self.columns[: self.body]

    @property
    def head_columns(self) -> Tensor:
        """True columns of each class's block, (C, h)."""
        return self.columns[self.body :].view(self.classes, self.head)

    @property
    def is_identity(self) -> bool:
        """Whether internal and true order are one."""
        return bool(torch.equal(self.columns, torch.arange(self.d, device=self.columns.device)))

    def same_as(self, other: Layout) -> bool:
        """Whether two sets of rows may be added up."""
        if self is other or self.columns is other.columns:
            return True
        own = (self.classes, self.body, self.head)
        return own == (other.classes, other.body, other.head) and torch.equal(self.columns, other.columns)


def dense_layout(classes: int, d: int, *, device: torch.device | None = None) -> Layout:
    """Return the layout of rows without structure: everything is body."""
    return Layout(classes=classes, columns=torch.arange(d, device=device), body=d, head=0)


def head_layout(classes: int, body_columns: Tensor, *, weight_columns: Tensor | None, bias_columns: Tensor | None) -> Layout:
    """Build the layout from true columns: body (b,), head weights (C, H) or None, head biases (C,) or None."""
    parts = []
    if weight_columns is not None:
        if weight_columns.ndim != 2 or weight_columns.shape[0] != classes:
            raise InputError(f"weight_columns must be (C, H) with C = {classes}, not {tuple(weight_columns.shape)}")
        parts.append(weight_columns)
    if bias_columns is not None:
        if bias_columns.shape != (classes,):
            raise InputError(f"bias_columns must be ({classes},), not {tuple(bias_columns.shape)}")
        parts.append(bias_columns[:, None])
    head = torch.cat(parts, dim=1) if parts else torch.empty(classes, 0, dtype=torch.long, device=body_columns.device)
    columns = torch.cat([body_columns.reshape(-1), head.reshape(-1)]).long()
    expected = torch.arange(columns.numel(), device=columns.device)
    if not torch.equal(columns.sort().values, expected):
        raise InputError(
            "body, weight and bias columns must together name each of 0..d-1 once; "
            f"{columns.numel()} columns were given, {len(set(columns.tolist()))} of them different"
        )
    return Layout(classes=classes, columns=columns, body=body_columns.numel(), head=head.shape[1])
