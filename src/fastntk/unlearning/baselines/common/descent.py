"""What the training baselines share: Adam on a copy of the run's model, batches of the retain and the forget set, their losses.

    step:  w ← Adam(∇ objective + wd·(w − w0)),   rate by a schedule over all steps

The penalty is the run's own (0 without a recipe): continuing a training means to continue its objective. The network stays in
eval mode. Retain and forget batches come from generators of their own, so that leaving one kind out does not reorder the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fastntk.models import device_of, logits
from fastntk.training.loop import batch_loss, learning_rate
from fastntk.training.network import check_samples, fast_layout, working_copy
from fastntk.training.recipe import Recipe, Schedule
from fastntk.training.step import Stepper
from fastntk.unlearning.method import Outcome, Task
from fastntk.unlearning.ranges import COUNT, COUNT_FROM_ZERO, POSITIVE, Range, one_of

SCHEDULES: tuple[Schedule, ...] = ("constant", "cosine", "linear")
RANGES: dict[str, Range] = {
    "epochs": COUNT_FROM_ZERO,
    "lr": POSITIVE,
    "batch_size": COUNT,
    "schedule": one_of(SCHEDULES),
    "seed": COUNT_FROM_ZERO,
}
"""Of the options that every training baseline has."""


def loss_recipe(task: Task) -> Recipe:
    """The recipe whose loss is meant: the run's, or the default (cross-entropy) for a run without one."""
    return task.run.recipe or Recipe()


class Descent:
    """Adam on the tuned subset of a working copy; ``mask`` (d,) bool names the parameters that may move.

    Use: ``batches`` for shuffled positions, ``outputs`` and ``loss`` for their terms, ``step`` to descend an objective.
    """

    def __init__(self, task: Task, *, lr: float, schedule: Schedule, steps: int, seed: int, mask: Tensor | None = None) -> None:
        data = task.run.data
        check_samples(task.run.model, data)
        self.model = working_copy(task.run)
        self.subset = task.run.subset.on(self.model)
        self.inputs, self.labels = fast_layout(self.model, data.inputs), data.labels.to(device_of(self.model))
        self.recipe = loss_recipe(task)
        self.weight_decay = 0.0 if task.run.recipe is None else self.recipe.weight_decay
        parameters = list(self.subset.parameters.values())
        rates = Recipe(lr=lr, schedule=schedule)
        self._stepper = Stepper(
            parameters,
            torch.optim.Adam(parameters, lr=lr),
            rate=lambda step: learning_rate(rates, step, steps),
            anchor=list(self.subset.split(task.run.anchor).values()),
            weight_decay=self.weight_decay,
            mask=[] if mask is None else list(self.subset.split(mask).values()),
            diverged=lambda value: (
                f"The objective became {value} after {self.taken} of {steps} steps: it diverged. "
                f"Lower the learning rate (lr={lr}), the epochs, or the weight of the forget term."
            ),
        )
        self.retain_draws = torch.Generator().manual_seed(2 * seed)
        self.forget_draws = torch.Generator().manual_seed(2 * seed + 1)

    def outputs(self, batch: Tensor) -> Tensor:
        """Logits (b, C) of the samples at these positions, with their graph."""
        return logits(self.model, self.inputs[batch])

    def loss(self, batch: Tensor, *, labels: Tensor | None = None, outputs: Tensor | None = None) -> Tensor:
        """Mean loss of the run's kind on these positions, under their own labels or others, from outputs at hand or new ones."""
        outputs = self.outputs(batch) if outputs is None else outputs
        return batch_loss(outputs, self.labels[batch] if labels is None else labels, self.recipe)

    def step(self, objective: Tensor, *, penalty: bool = True) -> None:
        """One Adam step down the objective, and, unless told otherwise, the run's penalty."""
        self._stepper.step(objective, penalty=penalty)

    @property
    def taken(self) -> int:
        """Steps so far."""
        return self._stepper.taken

    def outcome(self, details: dict[str, Any]) -> Outcome:
        """Where the descent ended, with what it was."""
        return Outcome(self.subset.get(), details | {"weight_decay": self.weight_decay, "steps": self.taken})


def batches(positions: Tensor, size: int, draws: torch.Generator) -> Iterator[Tensor]:
    """One epoch over these positions, shuffled, in batches of at most ``size``."""
    yield from positions[torch.randperm(len(positions), generator=draws)].split(size)


def endless(positions: Tensor, size: int, draws: torch.Generator) -> Iterator[Tensor]:
    """Batches of epoch after epoch."""
    while True:
        yield from batches(positions, size, draws)


def unmoved(task: Task, details: dict[str, Any]) -> Outcome:
    """The outcome of an empty request: nothing to forget changes nothing, whatever the method would do besides."""
    return Outcome(task.run.subset.get(), details | {"note": "nothing to forget: the weights are the run's"})
