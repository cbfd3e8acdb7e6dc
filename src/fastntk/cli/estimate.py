"""How long a training will take, from one short batch: enough for a person to decide whether to wait."""

from __future__ import annotations

import time

import torch

from fastntk.data import Samples
from fastntk.models import logits
from fastntk.training.loop import batch_loss
from fastntk.training.network import check_samples, eval_mode, fast_layout
from fastntk.training.recipe import Recipe
from fastntk.tuning import Subset

SHORT_BATCH = 32


def training_seconds(subset: Subset, samples: Samples, recipe: Recipe) -> float:
    """Estimated seconds of ``fit``; gradients are made and thrown away, nothing is changed."""
    check_samples(subset.model, samples)
    count = min(recipe.batch_size, SHORT_BATCH, len(samples))
    inputs, labels = fast_layout(subset.model, samples.inputs[:count]), samples.labels[:count].to(samples.inputs.device)
    parameters = list(subset.parameters.values())

    def step(size: int) -> float:
        start = time.perf_counter()
        loss = batch_loss(logits(subset.model, inputs[:size]), labels[:size], recipe)
        torch.autograd.grad(loss, parameters)
        return time.perf_counter() - start

    with eval_mode(subset.model):
        step(min(2, count))  # the first call pays for memory and kernels
        return step(count) / count * len(samples) * recipe.epochs
