"""The recipe's last epochs on the real network: what ``polish`` adds to a replay.

They start from θ + Δ, on the retained samples, with the optimiser state that the replay had at that epoch: closer to Retrain, at
so many epochs of its cost, for this request and for every later one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastntk.data import Samples
from fastntk.models import device_of, logits
from fastntk.training.loop import Resume, WalkedBatches, batch_loss, descend
from fastntk.training.network import fast_layout, training_mode
from fastntk.training.recipe import Recipe
from fastntk.tuning import Subset


def finish(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    recipe: Recipe,
    *,
    start: Tensor,
    anchor: Tensor,
    keep: Tensor,
    resume: Resume,
    walked: WalkedBatches | None = None,
) -> Tensor:
    """The real network's last epochs from ``start`` (d,), in place; returns the tuned vector (d,)."""
    device = device_of(model)
    w = start.to(device, copy=True).requires_grad_()
    parameters = list(subset.parameters.values())
    inputs, labels = fast_layout(model, samples.inputs), samples.labels.to(device)

    def loss(batch: Tensor) -> tuple[Tensor, int]:
        subset.set(w.detach())
        outputs = logits(model, inputs[batch])
        return batch_loss(outputs, labels[batch], recipe), int((outputs.argmax(1) == labels[batch]).sum())

    def gradient(loss: Tensor) -> list[Tensor]:
        # The optimiser's state is that of one vector, as it was in the replay.
        return [torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters, materialize_grads=True)])]

    with training_mode(model, recipe):
        descend(
            [w],
            loss,
            recipe,
            count=len(samples),
            keep=keep,
            anchor=[anchor.to(device)],
            resume=resume,
            gradient=gradient,
            description="polish",
            walked=walked,
        )
    return w.detach()
