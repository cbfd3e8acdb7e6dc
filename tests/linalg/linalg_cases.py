"""Small systems the linalg tests share, each with an obvious dense numpy counterpart."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastntk.linalg import DenseRows, HeadRows


def head_rows(
    n: int = 7,
    classes: int = 3,
    body: int = 5,
    features: int | None = 4,
    *,
    bias: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> HeadRows:
    """Random rows whose columns are shuffled, so that any mix-up of orders shows."""
    generator = torch.Generator().manual_seed(seed)
    h = features or 0
    d = body + classes * h + classes * bias
    columns = torch.randperm(d, generator=generator)
    return HeadRows(
        torch.randn(n, classes, body, generator=generator, dtype=torch.float64).to(dtype),
        None if features is None else torch.randn(n, h, generator=generator, dtype=torch.float64).to(dtype),
        bias=bias,
        body_columns=columns[:body],
        weight_columns=None if features is None else columns[body : body + classes * h].view(classes, h),
        bias_columns=columns[body + classes * h :] if bias else None,
    )


def dense_oracle(rows: HeadRows | DenseRows) -> np.ndarray:
    """J (n·C, d) written out entry by entry in float64."""
    n, classes, d = rows.shape
    out = np.zeros((n * classes, d))
    if isinstance(rows, DenseRows):
        return rows.tensor.double().numpy().reshape(n * classes, d)
    b = rows.layout.body
    for i in range(n):
        for c in range(classes):
            for p in range(b):
                out[i * classes + c, rows.layout.columns[p]] = rows.body[i, c, p]
            own = [] if rows.features is None else rows.features[i].tolist()
            for p, value in enumerate(own + [1.0] * rows.bias):
                out[i * classes + c, rows.layout.head_columns[c, p]] = value
    return out


def dense_rows(n: int, classes: int, d: int, *, seed: int = 0, rank: int | None = None) -> DenseRows:
    """Random rows, of lower rank on request."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n * classes, d))
    if rank is not None:
        rows = rng.standard_normal((n * classes, rank)) @ rng.standard_normal((rank, d))
    return DenseRows(torch.from_numpy(rows).view(n, classes, d))


def random_targets(n: int, classes: int, *more: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, classes, *more, generator=generator, dtype=torch.float64)
