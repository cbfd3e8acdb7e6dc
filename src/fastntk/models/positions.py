"""Resample learned position embeddings to another number of patches (bicubic), prefix tokens kept.

For Hugging Face models, not all of which resample themselves; those that do (``interpolate_pos_encoding``) get the same
numbers from here. timm has its own, which is used there.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fastntk.base.errors import InputError


def resample_positions(positions: Tensor, *, tokens: int, grid: int) -> Tensor:
    """Turn positions (1, p + g², E) into (1, tokens, E) with tokens = p + grid², the first p kept as they are.

    The number p of prefix tokens (class, distillation, registers) follows from ``tokens`` and ``grid``.
    """
    prefix = tokens - grid * grid
    side = math.isqrt(max(positions.shape[1] - prefix, 0)) if positions.ndim == 3 else 0
    if prefix < 0 or side == 0 or side * side != positions.shape[1] - prefix:
        raise InputError(
            f"cannot resample positions of shape {tuple(positions.shape)} to {tokens} tokens: expected (1, prefix + "
            f"side², features) with {prefix} prefix token(s), for a {grid}×{grid} grid of patches"
        )
    head, body = positions[:, :prefix].float(), positions[:, prefix:].float()
    images = body.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    images = F.interpolate(images, size=(grid, grid), mode="bicubic", align_corners=False)
    body = images.permute(0, 2, 3, 1).reshape(1, grid * grid, -1)
    return torch.cat([head, body], dim=1).to(positions.dtype)
