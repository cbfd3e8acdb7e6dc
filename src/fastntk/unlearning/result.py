"""What every unlearning method returns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.data import Samples, Split
from fastntk.training.network import accuracy_on
from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.tuning import Subset

if TYPE_CHECKING:
    from fastntk.tangent.linearisation import Linearisation


@dataclass(frozen=True, eq=False)
class Unlearned:
    """A model that was made to forget, and how.

    ``model``: a new module that shares no storage with the run's. ``delta`` (d,): its tuned parameters less those it
    started from (the run's, or the earlier result's where requests are chained). ``seconds``: wall time of the method.
    ``details``: JSON-able. ``split``: every sample forgotten so far, as indices into the run's samples. ``trace``: the path that
    leads to it, of the retained samples, where the method walked one.
    """

    run: Run
    model: nn.Module
    delta: Tensor
    method: str
    split: Split
    seconds: float
    details: dict[str, Any] = field(default_factory=dict)
    linearisation: Linearisation | None = None
    trace: Trace | None = None

    @property
    def subset(self) -> Subset:
        """The tuned subset on the new model."""
        return self.run.subset.on(self.model)

    @property
    def retained(self) -> Samples:
        """The samples that stay."""
        return self.run.listed.subset(self.split.retain)

    @property
    def forgotten(self) -> Samples:
        """The samples that were asked to go, over all chained requests."""
        return self.run.listed.subset(self.split.forget)

    def as_run(self) -> Run:
        """The run of the next request: the new model on the retained samples, with the new path where there is one.

        It names no forgotten sample and has none of their visits; what else may remember them is said in docs/method.md.
        ``unlearn(result, …)`` instead goes back to the run that this result was made from.
        """
        samples = None if self.run.samples is None else self.retained
        subset = self.run.subset.on(self.model)
        return dataclasses.replace(
            self.run, model=self.model, subset=subset, samples=samples, history=(), trace=self.trace, data_facts=None
        )

    def accuracies(self) -> dict[str, dict[str, float]]:
        """Accuracy ``before`` and ``after`` on the ``retain`` and the ``forget`` set, as fractions."""
        if self.run.samples is None:
            raise InputError(self.run.lacks_images("an accuracy"))
        return {
            name: {"before": accuracy_on(self.run.model, samples), "after": accuracy_on(self.model, samples)}
            for name, samples in (("retain", self.retained), ("forget", self.forgotten))
        }
