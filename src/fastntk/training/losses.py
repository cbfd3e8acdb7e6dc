"""The gradient of a sample's loss by its logits, from which a recorded path is walked again without autograd.

    cross-entropy   r = softmax(f) − (1 − ε)·onehot(y) − ε/C        ε: label smoothing
    squared         r = f − (onehot(y) − 1/C)

The losses themselves are :func:`fastntk.training.loop.batch_loss`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastntk.base.errors import InputError


def loss_residual(logits: Tensor, labels: Tensor, loss: str, *, smoothing: float = 0.0) -> Tensor:
    """The gradient of each sample's loss by its ``logits`` (…, B, C), for ``labels`` (B,); in the logits' shape."""
    if not 0 <= smoothing <= 1 or (smoothing and loss != "cross-entropy"):
        raise InputError(
            f"Label smoothing is a number from 0 to 1, with the loss cross-entropy; this trace has {smoothing} with {loss!r}."
        )
    classes, rows = logits.shape[-1], torch.arange(len(labels), device=logits.device)
    if loss == "cross-entropy":
        residual = logits.softmax(-1)
        residual[..., rows, labels] -= 1 - smoothing
        return residual.sub_(smoothing / classes) if smoothing else residual
    if loss == "squared":
        residual = logits + 1 / classes
        residual[..., rows, labels] -= 1
        return residual
    raise InputError(f"The loss {loss!r} of this trace is not known: expected cross-entropy or squared.")
