"""The paper's two plain baselines, on the forgotten samples alone, by SGD with momentum.

``max-loss`` ascends their loss; ``random-label`` descends their loss under labels drawn uniformly from the other classes. Neither
has an end of its own: ascent goes on until the weights overflow. Unless told how many epochs, both stop after the first at whose
end no forgotten sample is classified correctly.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.models import device_of, logits
from fastntk.planning import Problem, Route
from fastntk.training.network import eval_mode, fast_layout, predict, working_copy
from fastntk.training.step import Stepper
from fastntk.tuning import Subset
from fastntk.unlearning.baselines.common.costs import count_of
from fastntk.unlearning.method import Method, Outcome, Task

TYPICAL_EPOCHS = 4
"""What estimates assume where no number is given."""
MOST_EPOCHS = 20
"""Where no number is given and some forgotten sample is still classified correctly."""
LENGTHS: dict[str, tuple[int | None, ...]] = {"epochs": (None, 1, 2, 3, 5, 10), "batch_size": (16, 64)}
"""How long tuning tries to push; None: until nothing forgotten is classified correctly."""


def max_loss(task: Task, *, epochs: int | None = None, lr: float = 3e-4, batch_size: int = 64, seed: int = 0) -> Outcome:
    """Ascend the loss of the forgotten samples."""
    return _pushed(task, random_labels=False, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)


def random_label(task: Task, *, epochs: int | None = None, lr: float = 3e-4, batch_size: int = 64, seed: int = 0) -> Outcome:
    """Descend the loss of the forgotten samples under random other labels."""
    return _pushed(task, random_labels=True, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)


def _pushed(task: Task, *, random_labels: bool, **options: Any) -> Outcome:
    work = working_copy(task.run)
    subset = task.run.subset.on(work)
    epochs = 0
    if len(task.split.forget):
        epochs = push_away(work, subset, task.run.data.subset(task.split.forget), random_labels=random_labels, **options)
    return Outcome(subset.get(), options | {"epochs": epochs})


def push_away(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    *,
    epochs: int | None,
    lr: float,
    batch_size: int,
    seed: int,
    random_labels: bool,
) -> int:
    """Epochs of SGD on the forgotten samples, in place: up their loss, or down it under random other labels.

    Without ``epochs``, until none is classified correctly. Returns the epochs taken.
    """
    if (epochs is not None and epochs < 0) or lr <= 0 or not math.isfinite(lr) or batch_size < 1:
        raise InputError(f"epochs must be ≥ 0, lr > 0, batch_size ≥ 1; got {epochs}, {lr}, {batch_size}.")
    generator = torch.Generator().manual_seed(seed)
    parameters = list(subset.parameters.values())
    inputs, labels = fast_layout(model, samples.inputs), samples.labels
    classes = samples.num_classes
    epoch = 0
    stepper = Stepper(
        parameters,
        torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        # The size of it: the ascent's is stepped down with its sign reversed.
        diverged=lambda value: (
            f"The forgotten samples' loss became {abs(value)} after {epoch} epochs: it diverged. Lower the learning "
            f"rate (lr={lr}) or the epochs."
        ),
    )
    right = 0
    with eval_mode(model):
        while epoch < (MOST_EPOCHS if epochs is None else epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(batch_size):
                targets = labels[batch]
                if random_labels:
                    targets = (targets + torch.randint(1, classes, (len(batch),), generator=generator)) % classes
                loss = F.cross_entropy(logits(model, inputs[batch]), targets.to(device_of(model)))
                stepper.step(loss if random_labels else -loss)
            epoch += 1
            if epochs is None:
                right = int((predict(model, inputs).argmax(1) == labels).sum())
                if not right:
                    break
    for parameter in parameters:
        parameter.grad = None
    if not all(bool(parameter.isfinite().all()) for parameter in parameters):
        raise InputError(f"The weights overflowed after {epoch} epochs. Lower the learning rate (lr={lr}) or the epochs.")
    if right:
        name = "random-label" if random_labels else "max-loss"
        warnings.warn(
            f"{name}: after {epoch} epochs, the most that are taken unless told, {right} of {len(labels)} forgotten samples are "
            f"still classified correctly. Raise the learning rate (lr={lr}) or name the epochs",
            stacklevel=2,
        )
    return epoch


def _cost(problem: Problem) -> list[Route]:
    """Without a number of epochs they end when nothing is classified correctly any more, after :data:`TYPICAL_EPOCHS` or so."""
    option = problem.options["epochs"]
    epochs = TYPICAL_EPOCHS if option is None else count_of(problem, "epochs")
    forget = problem.sizes.forget
    looks = 0.0 if option is not None else epochs * forget * problem.speed.forward
    note = "training passes" if option is not None else f"training passes, {MOST_EPOCHS} epochs at most"
    return [problem.passes(epochs * forget, batch=count_of(problem, "batch_size"), extra_seconds=looks, note=note)]


MAX_LOSS = Method(
    name="max-loss",
    summary="ascent of the forgotten samples' loss",
    run=max_loss,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={"lr": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3), **LENGTHS},
)
RANDOM_LABEL = Method(
    name="random-label",
    summary="training on the forgotten samples under random other labels",
    run=random_label,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={"lr": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), **LENGTHS},
)
