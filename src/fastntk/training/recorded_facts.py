"""What a recorded loop's trace says of the training as a whole, once it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fastntk.base.digest import tensor_digest
from fastntk.training.averages import Average, average_of
from fastntk.training.live_optimizer import LiveOptimizer, recorded_groups
from fastntk.training.losses import OWN, PathLoss, fingerprint, own_draws
from fastntk.training.path_store import Ended
from fastntk.training.trace import TraceFacts
from fastntk.training.tuned_head import TunedHead
from fastntk.tuning import Subset


def recorded_facts(
    subset: Subset,
    head: TunedHead,
    live: LiveOptimizer,
    loss: PathLoss,
    ended: Ended,
    *,
    soft: bool,
    kept: Sequence[str],
    average: Average | None,
    anchor: Tensor,
    buffers: Mapping[str, Tensor],
) -> TraceFacts:
    """``kept``: parameters of the body whose path was; ``average``: as it was given; ``buffers``: as they were before."""
    weight = head.layer.weight
    present = subset.model.named_buffers()
    buffer_names = [name for name, now in present if name not in buffers or not torch.equal(now, buffers[name])]
    with own_draws(weight.device):
        mark = fingerprint(loss, len(weight), soft=soft, like=weight) if loss.name == OWN else None
    return TraceFacts(
        classes=weight.shape[0],
        features=weight.shape[1],
        head_weight=head.weight,
        head_bias=head.bias,
        body=tuple(kept),
        left=tuple(name for name in head.body if name not in set(kept)),
        optimizer=type(live.optimizer).__name__,
        groups=recorded_groups(live.optimizer, live.names),
        penalty=0.0,
        loss=loss.name,
        smoothing=loss.smoothing,
        anchor=tensor_digest(anchor),
        trained=tensor_digest(subset.get()),
        average=average_of(average, ended.averages),
        max_norm=ended.max_norm,
        fingerprint=mark,
        buffers=tuple(buffer_names),
        mode="recorded",
    )
