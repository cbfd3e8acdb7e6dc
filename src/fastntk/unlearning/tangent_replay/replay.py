"""One replay: the run's recipe followed in a path model instead of the network.

It starts at the anchor and follows the same batches, schedule, optimiser, loss and weight decay as the real fine-tuning
(:func:`fastntk.training.loop.descend`); the network is seen only through the stored rows. What is made of several replays:
:mod:`fastntk.unlearning.tangent_replay.difference`.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fastntk.training.loop import Resume, WalkedBatches, batch_loss, descend
from fastntk.training.recipe import Recipe
from fastntk.unlearning.tangent_replay.path_models import PathModel


def replay(
    model: PathModel,
    anchor: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    keep: Tensor | None = None,
    resume_at: int | None = None,
    description: str = "replay",
    walked: WalkedBatches | None = None,
) -> tuple[Tensor, Resume | None]:
    """The tuned vector (d,) that the recipe reaches in a path model, and the optimiser's state before epoch ``resume_at``.

    ``labels`` (n,) are those of all samples, ``keep`` (n,) is True for those that take part. ``walked``: the run's own
    batches, where samples were forgotten since.
    """
    w = anchor.clone().requires_grad_()
    states: list[Resume] = []

    def loss(batch: Tensor) -> tuple[Tensor, int]:
        outputs = model(batch, w)
        return batch_loss(outputs, labels[batch], recipe), int((outputs.argmax(1) == labels[batch]).sum())

    def watch(epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == resume_at:
            states.append(Resume(epoch, copy.deepcopy(optimizer.state_dict())))

    descend([w], loss, recipe, count=len(labels), keep=keep, description=description, watch=watch, walked=walked)
    return w.detach(), states[0] if states else None
