"""Fine-tune the tuned subset of a network by a recipe.

The network stays in eval mode (dropout off, BatchNorm statistics frozen) unless the recipe says ``bn_stats="update"``.
Retraining is the same call with ``keep``; nothing here knows about unlearning.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastntk.data import Samples
from fastntk.models import logits
from fastntk.training.loop import batch_loss, descend
from fastntk.training.network import check_samples, fast_layout, training_mode
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.training.speed import measure_speed
from fastntk.tuning import Subset


def fit(model: nn.Module, subset: Subset, samples: Samples, recipe: Recipe) -> Run:
    """Fine-tune the subset on the samples, in place, and return the run. Deterministic for a seed."""
    anchor = subset.get()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        history = train(model, subset, samples, recipe)
    except BaseException:
        subset.set(anchor)
        for name, buffer in model.named_buffers():  # BatchNorm statistics, where the recipe updates them
            buffer.copy_(buffers[name])
        raise
    return Run(model, subset, anchor, samples, recipe=recipe, history=tuple(history))


def train(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    recipe: Recipe,
    *,
    keep: Tensor | None = None,
    description: str = "fine-tuning",
) -> list[dict[str, float]]:
    """Follow the recipe from the model's present values, on the kept samples; return the history."""
    check_samples(model, samples)
    parameters = list(subset.parameters.values())
    inputs, labels = fast_layout(model, samples.inputs), samples.labels.to(samples.inputs.device)

    def loss(batch: Tensor) -> tuple[Tensor, int]:
        outputs = logits(model, inputs[batch])
        return batch_loss(outputs, labels[batch], recipe), int((outputs.argmax(1) == labels[batch]).sum())

    try:
        with training_mode(model, recipe):
            return descend(parameters, loss, recipe, count=len(samples), keep=keep, description=description)
    finally:
        for parameter in parameters:
            parameter.grad = None


def estimated_seconds(subset: Subset, samples: Samples, recipe: Recipe) -> float:
    """About how long :func:`fit` will take, from one short batch."""
    check_samples(subset.model, samples)
    return measure_speed(subset, samples, recipe).step * len(samples) * recipe.epochs
