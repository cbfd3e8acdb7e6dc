"""The one descent that follows a recipe.

``fit``, ``retrain`` and tangent replay all call :func:`descend`; they differ only in how a batch's loss is computed.
So whatever separates their results is the data or the model, never the batch order or the optimiser.

Batch order: for each epoch one permutation of *all* n samples drawn from (seed, epoch), cut into batches. Samples that
are not kept drop out of their batches; boundaries stay, an empty batch is skipped, the schedule still counts all steps.
Samples that earlier requests forgot are as if not kept: the permutation is of ``recipe.drawn_from`` samples, those at hand being
the first of them. Which ones a permutation misses does not matter to its distribution; the batches as they were, of the run's own
seed, are in its trace (:class:`WalkedBatches`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.training.recipe import Recipe
from fastntk.training.step import Gradient, Stepper


def epoch_batches(count: int, recipe: Recipe, epoch: int, *, keep: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the index batches of one epoch, (≤ batch_size,) each; possibly empty ones where ``keep`` drops samples.

    ``keep``: boolean (count,), True for samples that take part.
    """
    total = drawn_from(count, recipe)
    order = torch.from_numpy(np.random.default_rng([recipe.seed, epoch]).permutation(total))
    if total > count:
        present = torch.ones(count, dtype=torch.bool) if keep is None else keep
        keep = torch.cat([present, torch.zeros(total - count, dtype=torch.bool)])
    for batch in order.split(recipe.batch_size):
        yield batch if keep is None else batch[keep[batch]]


def drawn_from(count: int, recipe: Recipe) -> int:
    """Of how many samples the batches of ``count`` samples are cut."""
    total = count if recipe.drawn_from is None else recipe.drawn_from
    if total < count:
        raise InputError(f"Recipe.drawn_from counts the samples of the first fine-tuning: at least {count} here, got {total}.")
    return total


def epoch_steps(count: int, recipe: Recipe) -> int:
    """Steps of one epoch, skipped ones included."""
    return math.ceil(drawn_from(count, recipe) / recipe.batch_size)


@dataclass(frozen=True, eq=False)
class WalkedBatches:
    """The batches of a training by ``recipe`` as its trace has them, by epoch, and the rate of each step (S,).

    Samples that were forgotten since are not in them, and steps that had no others are gone.
    """

    recipe: Recipe
    epochs: tuple[tuple[Tensor, ...], ...]
    rates: Tensor

    def epoch(self, epoch: int, *, keep: Tensor | None = None) -> Iterator[Tensor]:
        """As :func:`epoch_batches`."""
        for batch in self.epochs[epoch]:
            yield batch if keep is None else batch[keep[batch]]


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The rate of one step, counted from 0."""
    progress = step / max(steps, 1)
    factor = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
    return recipe.lr * factor[recipe.schedule]


def batch_loss(outputs: Tensor, labels: Tensor, recipe: Recipe, *, smoothing: float = 0.0) -> Tensor:
    """Mean loss of a batch: ``outputs`` (b, C), ``labels`` (b,). ``smoothing``: of the labels, for the cross-entropy."""
    if recipe.loss == "cross-entropy":
        return torch.nn.functional.cross_entropy(outputs, labels, label_smoothing=smoothing)
    targets = torch.nn.functional.one_hot(labels, outputs.shape[1]).to(outputs) - 1.0 / outputs.shape[1]
    return 0.5 * (outputs - targets).square().sum(1).mean()


def _optimizer(parameters: Sequence[Tensor], recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=recipe.lr)
    return torch.optim.SGD(parameters, lr=recipe.lr, momentum=recipe.momentum)


@dataclass(frozen=True)
class Resume:
    """Where to enter a recipe: the first epoch still to do, and the optimiser's state there."""

    epoch: int
    state: dict[str, Any]


def descend(
    parameters: Sequence[Tensor],
    loss: Callable[[Tensor], tuple[Tensor, int]],
    recipe: Recipe,
    *,
    count: int,
    keep: Tensor | None = None,
    description: str = "training",
    anchor: Sequence[Tensor] | None = None,
    resume: Resume | None = None,
    watch: Callable[[int, torch.optim.Optimizer], None] | None = None,
    gradient: Gradient | None = None,
    walked: WalkedBatches | None = None,
) -> list[dict[str, float]]:
    """Follow the recipe from the parameters' present values; return the history.

    ``loss(batch)`` returns the batch's mean loss, with its graph, and the number of correct predictions. Weight decay pulls
    towards ``anchor``: by default those present values. ``resume`` enters the recipe at a later epoch with a given optimiser
    state. ``watch(epoch, optimizer)`` is called before each epoch. ``gradient``: for a loss that is a function of other tensors
    than the parameters, see :class:`Stepper`. ``walked``: batches and rates in place of those that its recipe draws; another
    recipe (another seed) draws its own. Raises :class:`DivergedError` where the loss stops being finite.
    """
    optimizer = _optimizer(parameters, recipe)
    first = 0
    if resume is not None:
        first = resume.epoch
        optimizer.load_state_dict(copy.deepcopy(resume.state))
    if walked is not None and walked.recipe != recipe:
        walked = None
    per_epoch = epoch_steps(count, recipe)
    steps = recipe.epochs * per_epoch
    stepper = Stepper(
        parameters,
        optimizer,
        rate=lambda step: learning_rate(recipe, step, steps) if walked is None else float(walked.rates[step]),
        anchor=[parameter.detach().clone() for parameter in parameters] if anchor is None else anchor,
        weight_decay=recipe.weight_decay,
        diverged=lambda value: (
            f"The loss became {value} in epoch {first + len(history) + 1} of {recipe.epochs}: training diverged. "
            f"Lower the learning rate (lr={recipe.lr}) or check the inputs for NaN."
        ),
        gradient=gradient,
        taken=first * per_epoch if walked is None else sum(map(len, walked.epochs[:first])),
    )
    history: list[dict[str, float]] = []
    for epoch in track(range(first, recipe.epochs), description):
        if watch is not None:
            watch(epoch, optimizer)
        start, total, correct, samples = time.perf_counter(), 0.0, 0, 0
        batches = epoch_batches(count, recipe, epoch, keep=keep) if walked is None else walked.epoch(epoch, keep=keep)
        for batch in batches:
            if len(batch) == 0:
                stepper.skip()
                continue
            mean, batch_correct = loss(batch)
            total, correct, samples = total + stepper.step(mean) * len(batch), correct + batch_correct, samples + len(batch)
        history.append(
            {
                "epoch": epoch + 1,
                "loss": total / max(samples, 1),
                "accuracy": correct / max(samples, 1),
                "seconds": time.perf_counter() - start,
            }
        )
    return history
