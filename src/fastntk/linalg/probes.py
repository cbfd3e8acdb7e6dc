"""Random output probes: m < C rows a sample in place of C, right on average.

A sample's rows J_i (C, d) are replaced by R_i = Q_iᵀJ_i (m, d), with Q_i (C, m) the first m columns of a
random rotation times √(C/m), so that

    E[Q_i Q_iᵀ] = I,   hence   E[RᵀR] = JᵀJ   and   E[Rᵀ(Q_iᵀ t_i)] = Jᵀt

Plain ±1/√m signs would do on average too, but rotations make m = C exact and have less variance for every
m. It pays for many classes and many samples (the error of A falls like 1/√(n·m)); for few samples take all
C rows. A sample's probes depend on (seed, its position) only, so chunks agree with the whole. Not a solver.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg.head_rows import HeadRows, Rows
from fastntk.linalg.operators import DenseRows


def output_probes(n: int, C: int, m: int, seed: int, *, start: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return Q (n, C, m) for the samples ``start`` .. ``start + n - 1``."""
    if not 1 <= m <= C:
        raise InputError(f"the number of output probes must be between 1 and C = {C}, not {m}")
    if seed < 0 or start < 0:
        raise InputError(f"seed and start must not be negative, got {seed} and {start}")
    noise = np.empty((n, C, m))
    for index in range(n):
        noise[index] = np.random.default_rng([seed, start + index]).standard_normal((C, m))
    rotation, triangle = torch.linalg.qr(torch.from_numpy(noise))
    # QR fixes the signs of Q's columns; tying them to R's diagonal makes Q uniform over rotations.
    signs = torch.where(triangle.diagonal(dim1=1, dim2=2) >= 0, 1.0, -1.0).double()
    probes: Tensor = rotation * signs[:, None, :] * (C / m) ** 0.5
    return probes.to(dtype)


def compress(rows: Rows, probes: int, *, seed: int, start: int = 0) -> DenseRows:
    """Return R (n, m, d) = QᵀJ sample by sample, for ``probes`` = m, in the rows' dtype."""
    n, classes, d = rows.shape
    if isinstance(rows, DenseRows):
        q = output_probes(n, classes, probes, seed, start=start, dtype=rows.dtype).to(rows.tensor.device)
        return DenseRows(torch.bmm(q.transpose(1, 2), rows.tensor), product_dtype=rows.product_dtype)
    q = output_probes(n, classes, probes, seed, start=start, dtype=rows.dtype)
    return _compress_head(rows, q.to(rows.body.device), d)


def compress_targets(targets: Tensor, probes: int, *, seed: int, start: int = 0) -> Tensor:
    """Return Qᵀt for t (n, C) or (n, C, k): the targets that go with :func:`compress` of the same seed."""
    n, classes = targets.shape[:2]
    q = output_probes(n, classes, probes, seed, start=start, dtype=targets.dtype).to(targets.device)
    return torch.einsum("ncm,nc...->nm...", q, targets)


def _compress_head(rows: HeadRows, q: Tensor, d: int) -> DenseRows:
    n, _, m = q.shape
    out = rows.body.new_empty(n, m, d)
    out[:, :, rows.layout.body_columns] = torch.bmm(q.transpose(1, 2), rows.body)
    head = torch.einsum("ncm,nh->nmch", q, rows.extended(slice(None), q.dtype))
    out[:, :, rows.layout.head_columns.reshape(-1)] = head.reshape(n, m, -1) if head.numel() else out.new_empty(n, m, 0)
    return DenseRows(out, product_dtype=rows.product_dtype)
