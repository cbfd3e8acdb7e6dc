"""The one training loop: fine-tune the tuned subset of a network by a recipe.

The network stays in eval mode (dropout off, BatchNorm statistics frozen) unless the recipe says ``bn_stats="update"``.
Retraining is the same call with ``keep``; nothing here knows about unlearning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastntk.data import Samples
from fastntk.errors import InputError, listing
from fastntk.models import logits
from fastntk.recipe import Recipe, batch_loss, descend
from fastntk.run import Run
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

    def gradient(batch: Tensor) -> tuple[float, int]:
        outputs = logits(model, inputs[batch])
        loss = batch_loss(outputs, labels[batch], recipe)
        grads = torch.autograd.grad(loss, parameters)
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        return loss.item(), int((outputs.argmax(1) == labels[batch]).sum())

    try:
        with training_mode(model, recipe):
            return descend(parameters, gradient, recipe, count=len(samples), keep=keep, description=description)
    finally:
        for parameter in parameters:
            parameter.grad = None


@contextlib.contextmanager
def training_mode(model: nn.Module, recipe: Recipe) -> Iterator[None]:
    """Eval mode inside, with BatchNorm in train mode where the recipe updates statistics; modes restored after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    if recipe.bn_stats == "update":
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; every module's own mode restored after."""
    with training_mode(model, Recipe()):
        yield


def fast_layout(model: nn.Module, inputs: Tensor) -> Tensor:
    """Images in channels-last memory where the model convolves: same values, faster on CPUs."""
    if inputs.dim() == 4 and any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


@torch.no_grad()
def predict(model: nn.Module, inputs: Tensor, *, batch_size: int = 256) -> Tensor:
    """Eval-mode logits (n, C) of model-ready inputs."""
    with eval_mode(model):
        batches = fast_layout(model, inputs).split(batch_size)
        return torch.cat([logits(model, batch) for batch in batches])


def check_samples(model: nn.Module, samples: Samples) -> int:
    """Return the number of classes C; refuse inputs the model cannot take and labels it cannot name."""
    if len(samples) == 0:
        raise InputError("There are no samples to train on.")
    first = next(model.parameters())
    if samples.inputs.device != first.device or (samples.inputs.is_floating_point() and samples.inputs.dtype != first.dtype):
        raise InputError(
            f"Inputs are {samples.inputs.dtype} on {samples.inputs.device}, the model is {first.dtype} on "
            f"{first.device}. Convert one: samples are used as they are, with no cast."
        )
    try:
        with torch.no_grad(), eval_mode(model):
            outputs = logits(model, samples.inputs[:1])
    except InputError:
        raise
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        raise InputError(
            f"The model cannot take inputs of shape {tuple(samples.inputs.shape[1:])}: {str(error).splitlines()[0]} "
            "Check the image size and channels (build_model(..., image_size=...) sets the size)."
        ) from error
    classes = outputs.shape[1]
    outside = [i for i, label in zip(samples.ids, samples.labels.tolist()) if not 0 <= label < classes]
    if outside:
        raise InputError(
            f"Labels must be 0…{classes - 1} (the model has {classes} outputs); "
            f"outside are those of {listing(outside)}. Build the model with more classes or drop these samples."
        )
    return classes
