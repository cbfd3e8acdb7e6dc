"""Figures from outputs and labels: pure functions of tensors, in float64.

    TV(p, q)   = mean over samples of ½ Σ_c |p_c − q_c|
    recovered  = (L − L_full) / (L_retrain − L_full)          L: mean loss of the forgotten samples

``recovered`` is 1 where the forgotten samples are as unknown as to Retrain, less where memory is left, more where the model
was pushed further than never having seen them. Nothing here knows a model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.training.network import is_right


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Share of samples whose largest score, logit or probability (n, C), is at the label (n,); scores of NaN are wrong."""
    _check(scores, labels)
    return float(is_right(scores, labels).double().mean())


def mean_loss(logits: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy of logits (n, C)."""
    _check(logits, labels)
    return float(F.cross_entropy(logits.double(), labels))


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """The label's logit less the largest other one, (n,): negative where the prediction is wrong."""
    _check(logits, labels)
    values = logits.double()
    own = values.gather(1, labels[:, None]).squeeze(1)
    return own - values.scatter(1, labels[:, None], -torch.inf).amax(1)


def total_variation(p: Tensor, q: Tensor) -> float:
    """Mean total-variation distance of two sets of class probabilities (n, C), between 0 and 1."""
    if p.shape != q.shape or p.dim() != 2 or len(p) == 0:
        raise InputError(f"total_variation compares two (n, C) sets of probabilities; got {tuple(p.shape)} and {tuple(q.shape)}.")
    for name, values in (("p", p), ("q", q)):
        sums = values.double().sum(1)
        if bool((values < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
            raise InputError(f"total_variation takes probabilities, but rows of {name} do not sum to 1: apply softmax.")
    return float(0.5 * (p.double() - q.double()).abs().sum(1).mean())


def recovered(loss: float, full: float, retrain: float) -> float | None:
    """Share of the way from Full's loss to Retrain's; None where the two are equal and there is no way to go."""
    return None if retrain == full else (loss - full) / (retrain - full)


def _check(scores: Tensor, labels: Tensor) -> None:
    if scores.dim() != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        raise InputError(
            f"Expected scores (n, C) and labels (n,) of at least one sample; got {tuple(scores.shape)} and {tuple(labels.shape)}."
        )
