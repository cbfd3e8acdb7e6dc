"""How fast a network is on this machine: seconds an image, from one short batch. Estimates of every kind rest on it.

Gradients are made and thrown away; nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastntk.base.live_bytes import LiveBytes
from fastntk.data import Samples
from fastntk.models import device_of, logits
from fastntk.training.loop import batch_loss
from fastntk.training.network import eval_mode, fast_layout, thawed
from fastntk.training.recipe import Recipe
from fastntk.tuning import Subset

PATIENCE = 1.5
"""Seconds a single timing may take; slower networks are timed on fewer images."""
SHORT_BATCH = 32


@dataclass(frozen=True)
class Speed:
    """Seconds an image of a forward pass and of a training step, and the bytes an image that the step holds."""

    forward: float
    step: float
    step_bytes: int


def measure_speed(subset: Subset, samples: Samples, recipe: Recipe, *, batch: int = SHORT_BATCH) -> Speed:
    """Time the tuned subset's own model on the first samples."""
    model = subset.model
    inputs = fast_layout(model, samples.inputs[: max(1, min(batch, recipe.batch_size))])
    labels = samples.labels[: len(inputs)].to(device_of(model))

    def forward(size: int) -> None:
        with torch.no_grad():
            logits(model, inputs[:size])

    def step(size: int) -> None:
        loss = batch_loss(logits(model, inputs[:size]), labels[:size], recipe)
        torch.autograd.grad(loss, list(subset.parameters.values()), allow_unused=True)

    few = min(2, len(inputs))
    with eval_mode(model), thawed(subset):
        with LiveBytes() as live:
            step(few)
        return Speed(seconds_an_image(forward, len(inputs)), seconds_an_image(step, len(inputs)), live.peak // few)


def seconds_an_image(work: Callable[[int], object], size: int) -> float:
    """Of ``work`` on batches of ``size`` images, or of fewer where that would take long."""
    few = min(2, size)
    work(few)  # the first call pays for memory and kernels
    first = best_time(lambda: work(few), repeats=1) / few
    count = min(size, max(few, int(PATIENCE / max(first, 1e-9))))
    return best_time(lambda: work(count), repeats=2 if first * count < PATIENCE / 2 else 1) / count


def best_time(work: Callable[[], object], *, repeats: int) -> float:
    """The least seconds of a few repeats."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if torch.cuda.is_initialized():  # kernels of a GPU are still running when the call returns
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)
