"""Attention by torch's plain kernels: the faster ones have no forward-mode derivatives and no rules for mapping over samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def plain_attention() -> Iterator[None]:
    """While active, ``scaled_dot_product_attention`` and torch's attention layers take them."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
