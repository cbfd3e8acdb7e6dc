"""What surrounds a forward pass: modes, the memory layout that CPUs prefer, copies, and checks that samples fit a model."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastntk.base.errors import InputError, listing, said
from fastntk.base.gradients import check_differentiable
from fastntk.data import Samples
from fastntk.models import logits
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.tuning import Subset


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


def _prefers_channels_last(model: nn.Module, inputs: Tensor) -> bool:
    """Models that convolve, but not with GroupNorm: in that layout its gradient (torch 2.13) crashes if its input needs none.

    Nor those that cannot take it, such as by ``x.view(n, -1)``: that is tried with two of the inputs, once a model.
    """
    if inputs.dim() != 4 or len(inputs) == 0:
        return False
    choice = _LAYOUTS.get(model)
    if choice is None:
        kinds = [type(module) for module in model.modules()]
        convolves = any(issubclass(kind, nn.Conv2d) for kind in kinds)
        choice = (
            convolves and not any(issubclass(kind, nn.GroupNorm) for kind in kinds) and _takes_channels_last(model, inputs[:2])
        )
        _LAYOUTS[model] = choice
    return choice


_LAYOUTS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@torch.no_grad()
def _takes_channels_last(model: nn.Module, inputs: Tensor) -> bool:
    try:
        with eval_mode(model):
            logits(model, inputs.contiguous(memory_format=torch.channels_last))
    except (RuntimeError, InputError):  # what else is wrong will be said in the plain layout
        return False
    return True


def fast_layout(model: nn.Module, inputs: Tensor) -> Tensor:
    """Images in channels-last memory where the model convolves: same values, faster on CPUs."""
    if _prefers_channels_last(model, inputs):
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


@torch.no_grad()
def predict(model: nn.Module, inputs: Tensor, *, batch_size: int = 256) -> Tensor:
    """Eval-mode logits (n, C) of model-ready inputs, on the CPU wherever the model is."""
    if not isinstance(inputs, Tensor):
        advice = "give samples.inputs" if isinstance(inputs, Samples) else "torch.as_tensor(inputs)"
        raise InputError(f"Inputs are a tensor (n, ...), as the model takes it, not {type(inputs).__name__}: {advice}.")
    with eval_mode(model):
        batches = fast_layout(model, inputs).split(batch_size)
        return torch.cat([logits(model, batch) for batch in batches]).cpu()


def accuracy_on(model: nn.Module, samples: Samples) -> float:
    """The fraction of the samples that the model classifies correctly."""
    return float(is_right(predict(model, samples.inputs), samples.labels).double().mean())


def is_right(scores: Tensor, labels: Tensor) -> Tensor:
    """Whether the largest score (n, C) of each sample is at its label; none is right that has a score of NaN."""
    return (scores.argmax(1) == labels) & ~scores.isnan().any(1)


def check_precision(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse parameters in 16 bits or fewer: a step, or an update by unlearning, is smaller than what they can tell apart."""
    coarse = {name: p.dtype for name, p in parameters if p.is_floating_point() and p.dtype.itemsize < 4}
    if coarse:
        kind = next(iter(coarse.values()))
        raise InputError(
            f"{len(coarse)} parameters are {kind} ({listing(list(coarse), most=4)}): a change of less than "
            f"{torch.finfo(kind).eps / 2:.1g} of a weight is lost in it, and with it most of a fine-tuning or an unlearning. "
            "Convert model, samples and anchor: model.float(), inputs.float(), anchor.float(). Mixed precision by "
            "torch.autocast keeps the weights in float32."
        )


def check_finite(model: nn.Module, *, what: str) -> None:
    """Refuse weights that are no numbers: what such a model predicts means nothing, and counts as right where the label is 0.

    Infinite entries of buffers pass: masks have some.
    """
    wrong = {name: int((~value.isfinite()).sum()) for name, value in model.named_parameters() if value.is_floating_point()}
    wrong |= {name: int(value.isnan().sum()) for name, value in model.named_buffers() if value.is_floating_point()}
    wrong = {name: count for name, count in wrong.items() if count}
    if wrong:
        raise InputError(
            f"{what} has {sum(wrong.values()):,} weights that are no numbers (NaN or infinite), in "
            f"{listing(f'{name} ({count:,})' for name, count in wrong.items())}: its training diverged, or the file is damaged. "
            "Train it again with a lower learning rate, or take whole weights."
        )


def check_device(inputs: Tensor, device: torch.device) -> None:
    """Refuse inputs that are neither on the CPU nor where the model is."""
    if inputs.device.type != "cpu" and inputs.device != device:
        raise InputError(
            f"Inputs are on {inputs.device}, the model is on {device}. Expected inputs on the CPU, from where they are moved "
            "batch by batch, or on the model's device: inputs.cpu(), or model.to(device)."
        )


def check_samples(model: nn.Module, samples: Samples) -> int:
    """Return the number of classes C; refuse 16-bit weights, inputs the model cannot take and labels it cannot name."""
    if len(samples) == 0:
        raise InputError("There are no samples to train on.")
    check_precision(model.named_parameters())
    check_differentiable(model.named_parameters())
    first = next(model.parameters())
    check_device(samples.inputs, first.device)
    if samples.inputs.is_floating_point() and samples.inputs.dtype != first.dtype:
        raise InputError(
            f"Inputs are {samples.inputs.dtype}, the model is {first.dtype}. Convert one: samples are used as they are, with no "
            "cast."
        )
    try:
        with torch.no_grad(), eval_mode(model):
            outputs = logits(model, samples.inputs[:1])
    except InputError:
        raise
    except Exception as error:  # whatever the user's model raises
        raise InputError(
            f"The model cannot take inputs of shape {tuple(samples.inputs.shape[1:])}: {said(error)} It is called with a batch "
            "of them, one tensor (n, ...). Check the image size and channels (build_model(..., image_size=...) sets the size)."
        ) from error
    classes = outputs.shape[1]
    outside = [i for i, label in zip(samples.ids, samples.labels.tolist()) if not 0 <= label < classes]
    if outside:
        raise InputError(
            f"Labels must be 0…{classes - 1} (the model has {classes} outputs); "
            f"outside are those of {listing(outside)}. Build the model with more classes or drop these samples."
        )
    return classes


@contextlib.contextmanager
def thawed(subset: Subset) -> Iterator[list[nn.Parameter]]:
    """The subset's parameters, which require gradients inside; every one's own flag restored after."""
    parameters = list(subset.parameters.values())
    flags = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield parameters
    finally:
        for parameter, flag in zip(parameters, flags):
            parameter.requires_grad_(flag)


def working_copy(run: Run) -> nn.Module:
    """A deep copy of the run's model in eval mode: the run's own is never written to.

    What is tuned requires gradients in it, also where the model was frozen since, as before serving it.
    """
    work = copy.deepcopy(run.model).eval()
    for parameter in run.subset.on(work).parameters.values():
        parameter.requires_grad_(True)
    return work


def fast_copy(run: Run) -> nn.Module:
    """A working copy for rows and forward passes: convolutions in the memory layout that CPUs prefer."""
    work = working_copy(run)
    if run.samples is not None and _prefers_channels_last(work, run.samples.inputs):
        work = work.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return work
