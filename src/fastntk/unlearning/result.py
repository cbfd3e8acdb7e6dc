"""What every unlearning method returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fastntk.base.digest import key_name, keyed_digest, new_key
from fastntk.base.errors import InputError
from fastntk.data import Samples, Split
from fastntk.training.network import accuracy_on
from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.tuning import Subset

if TYPE_CHECKING:
    from fastntk.tangent.linearisation import Linearisation


def ids_digest(ids: Iterable[str], key: bytes) -> str:
    """The keyed digest of a set of ids."""
    return keyed_digest(sorted(ids), key)


@dataclass(frozen=True, eq=False)
class Unlearned:
    """A model that was made to forget, and how.

    ``model``: a new module that shares no storage with the run's. ``delta`` (d,): its tuned parameters less those it
    started from (the run's, or the earlier result's where requests are chained). ``seconds``: wall time of the method.
    ``details``: JSON-able. ``split``: every sample forgotten so far, as indices into the run's samples. ``trace``: the path that
    leads to it, of the retained samples, where the method walked one. ``key``: of the digests that stand for forgotten ids;
    the run's own where it has one, else a new one.
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
    key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.run.key or new_key())

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

    @property
    def ids_digest(self) -> str:
        """A digest of the forgotten ids, in any order, that only the key's holder can try guesses on: ``verify_ids`` does."""
        return ids_digest(self.forgotten.ids, self.key)

    @property
    def source(self) -> dict[str, Any] | None:
        """Where the retained samples can be loaded again: the run's source, without those that keyed digests stand for.

        None where the key that hides the run's class names is not there: this result has another, which would not find them.
        """
        source = self.run.source
        if source is not None and source.get("class_names") == "hidden" and self.run.key is None:
            return None
        if source is None or not len(self.split.forget):
            return source
        entry = {"key": key_name(self.key), "ids": self.forgotten_digests}
        return {**source, "without": [*source.get("without", []), entry]}

    @property
    def forgotten_digests(self) -> list[str]:
        """A keyed digest of each forgotten id, sorted."""
        return sorted(keyed_digest(name, self.key) for name in self.forgotten.ids)

    def as_run(self) -> Run:
        """The run of the next request: the new model on the retained samples, with the new path where there is one.

        It names no forgotten sample and has none of their visits; what else may remember them is said in docs/method.md.
        ``unlearn(result, …)`` instead goes back to the run that this result was made from.
        """
        samples = None if self.run.samples is None else self.retained
        recipe = self.run.recipe
        if recipe is not None and len(self.split.forget):  # a Retrain of the next request keeps the gaps of this one
            recipe = replace(recipe, drawn_from=recipe.drawn_from or len(self.run.listed))
        return Run(
            self.model,
            self.subset,
            self.run.anchor,
            samples,
            recipe=recipe,
            source=self.source,
            trace=self.trace,
            key=self.key,
            pretrained=self.run.pretrained,
        )

    def accuracies(self) -> dict[str, dict[str, float]]:
        """Accuracy ``before`` and ``after`` on the ``retain`` and the ``forget`` set, as fractions."""
        if self.run.samples is None:
            raise InputError(self.run.lacks_images("an accuracy"))
        return {
            name: {"before": accuracy_on(self.run.model, samples), "after": accuracy_on(self.model, samples)}
            for name, samples in (("retain", self.retained), ("forget", self.forgotten))
        }
