"""What every unlearning method is given and gives back.

A method is a function ``method(task, *, option=default, …) -> Outcome``: it reads the run and the split from the task, works on
copies, and returns the new tuned vector. :func:`fastntk.unlearning.unlearn` makes a model of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.tangent.linearisation import Linearisation, Point, linearise_run
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run


@dataclass
class Task:
    """What a method is given."""

    run: Run
    split: Split
    linearisation: Linearisation | None
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def keep(self) -> Tensor:
        """True for samples that stay, (n,)."""
        mask = torch.ones(len(self.run.data), dtype=torch.bool)
        mask[self.split.forget] = False
        return mask

    @property
    def recipe(self) -> Recipe:
        """The run's recipe, or an error that says what to do without one."""
        if self.run.recipe is None:
            raise InputError(
                "This method replays the run's recipe, and the run has none. Give it: Run(..., recipe=Recipe(...)) with the "
                "settings the model was fine-tuned with; or use method='fast-ntk', which needs only the anchor."
            )
        return self.run.recipe

    def linearised(self, at: Point, **options: Any) -> Linearisation:
        """The linearisation that was handed in, or a new one."""
        if self.linearisation is None or self.linearisation.at != at:
            self.linearisation = linearise_run(self.run, at=at, **options)
            self.stages["rows"] = self.linearisation.seconds
        else:
            self.linearisation.check_run(self.run)
        return self.linearisation


@dataclass(frozen=True)
class Outcome:
    """What a method gives back: the new tuned vector (d,), and details."""

    vector: Tensor
    details: dict[str, Any]
