"""The paper's plain baselines: ``retrain``, ``full``, ``max-loss`` and ``random-label``, on the run's tuned subset.

``retrain`` is the reference everything is compared with: the run's recipe from its anchor, without the forgotten
samples, in the run's own batch order. ``full`` does nothing. ``max-loss`` ascends the loss of the forgotten samples;
``random-label`` descends the loss of the forgotten samples under labels drawn uniformly from the other classes.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastntk.data import Samples
from fastntk.errors import InputError
from fastntk.models import logits
from fastntk.recipe import Recipe
from fastntk.training import eval_mode, fast_layout, train
from fastntk.tuning import Subset


def retrain(
    model: nn.Module,
    subset: Subset,
    anchor: Tensor,
    samples: Samples,
    keep: Tensor,
    recipe: Recipe,
    *,
    seed: int | None,
) -> list[dict[str, float]]:
    """Train ``model`` in place from the anchor on the kept samples; return the history."""
    subset.set(anchor)
    recipe = recipe if seed is None else dataclasses.replace(recipe, seed=seed)
    return train(model, subset, samples, recipe, keep=keep, description="retraining")


def push_away(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    *,
    epochs: int,
    lr: float,
    batch_size: int,
    seed: int,
    random_labels: bool,
) -> None:
    """A few epochs of SGD on the forgotten samples, in place: up their loss, or down it under random other labels."""
    if epochs < 0 or lr <= 0 or not math.isfinite(lr) or batch_size < 1:
        raise InputError(f"epochs must be ≥ 0, lr > 0, batch_size ≥ 1; got {epochs}, {lr}, {batch_size}.")
    generator = torch.Generator().manual_seed(seed)
    parameters = list(subset.parameters.values())
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    inputs, labels = fast_layout(model, samples.inputs), samples.labels
    classes = samples.num_classes
    with eval_mode(model):
        for _ in range(epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(batch_size):
                wanted = labels[batch]
                if random_labels:
                    wanted = (wanted + torch.randint(1, classes, (len(batch),), generator=generator)) % classes
                loss = F.cross_entropy(logits(model, inputs[batch]), wanted)
                grads = torch.autograd.grad(loss if random_labels else -loss, parameters)
                for parameter, grad in zip(parameters, grads):
                    parameter.grad = grad
                optimizer.step()
    for parameter in parameters:
        parameter.grad = None
