"""A fine-tuned model together with what unlearning needs to know of its making.

``fit`` makes one; a model that was fine-tuned elsewhere becomes one by hand: ``Run(model, subset, anchor, samples)``.
Saving and loading is :mod:`fastntk.storage.runs`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.training.loop import WalkedBatches
from fastntk.training.losses import LossFunction
from fastntk.training.recipe import Recipe
from fastntk.training.trace import Trace
from fastntk.tuning import Subset
from fastntk.tuning.outside import digests


@dataclass(frozen=True, eq=False)
class Run:
    """A fine-tuned model, its tuned subset, their values before fine-tuning, the data, and (if known) the recipe.

    ``anchor`` (d,): the tuned parameters before fine-tuning; a copy is kept, without a graph and in the parameters' dtype,
    whatever floating-point one it is given in. ``samples`` may be None for a run that was made or loaded without
    its data; what needs images then says so. ``source`` describes where the data came from (JSON-able), if known. ``trace``:
    the path of the fine-tuning, where it was recorded. ``data_facts``: what the folder of a loaded run says of its data (counts,
    class names, digests), which is all that is known of it where there are no samples. ``key``: of the digests that stand for ids
    and hidden class names in its folder, where there are any; it is kept beside the folder, not in it. ``pretrained``: the
    weights outside the subset before any training on these samples, tensors or digests by name in the state_dict; ``fit`` and
    ``record`` note them where the model has no card that does. Where they are unknown, no verdict says that the samples were
    forgotten.
    """

    model: nn.Module
    subset: Subset
    anchor: Tensor
    samples: Samples | None
    recipe: Recipe | None = None
    history: tuple[dict[str, float], ...] = ()
    source: dict[str, Any] | None = field(default=None)
    trace: Trace | None = None
    data_facts: dict[str, Any] | None = None
    pretrained: Mapping[str, Tensor | str] | None = None
    key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._check_kinds()
        if self.subset.model is not self.model:
            raise InputError("Run: the subset belongs to another model. Use subset.on(model) or tune(model, spec).")
        if not isinstance(self.anchor, Tensor) or self.anchor.shape != (self.subset.numel,):
            description = tuple(self.anchor.shape) if isinstance(self.anchor, Tensor) else type(self.anchor).__name__
            raise InputError(
                f"Run: the anchor must be a tensor of shape ({self.subset.numel},), the tuned parameters before "
                f"fine-tuning (subset.get() at that time); got {description}."
            )
        if not self.anchor.is_floating_point():
            raise InputError(
                f"Run: the anchor must hold the tuned parameters' values as floating-point numbers, got {self.anchor.dtype}: "
                "whole numbers have lost them. Take subset.get() before fine-tuning."
            )
        object.__setattr__(self, "anchor", self.anchor.detach().to(self.subset.get().dtype, copy=True))
        if not torch.isfinite(self.anchor).all():
            raise InputError("Run: the anchor has NaN or infinite entries.")
        if self.pretrained is not None:
            object.__setattr__(self, "pretrained", digests(self.pretrained))
        if self.trace is not None and self.samples is not None:
            object.__setattr__(self, "samples", as_listed(self.samples, self.trace))
        if self.trace is not None:
            self.trace.check(self.subset, self.anchor, self.samples)

    def _check_kinds(self) -> None:
        """Refuse what is of another kind, before anything is asked of it."""
        kinds = {"model": nn.Module, "subset": Subset, "samples": Samples, "recipe": Recipe, "trace": Trace}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind) and (value is not None or name in ("model", "subset")):
                advice = {"samples": ": give Samples(inputs, labels)", "recipe": ": give Recipe(epochs=...)"}.get(name, "")
                raise InputError(f"Run: {name} must be a {kind.__name__}, got {type(value).__name__}{advice}.")

    @property
    def data(self) -> Samples:
        """The samples, or an error that says how to supply them."""
        if self.samples is None:
            raise InputError(self.lacks_images("this"))
        return self.samples

    def lacks_images(self, what: str) -> str:
        """A sentence for whoever needs the images of a run that has none: what is needed, and how to give it."""
        alone = "" if self.trace is None else " Its trace alone serves method='path-replay' with depth='head', and removals."
        return (
            f"This run was made or loaded without its data, and {what} needs the images. Give them: "
            f"Run.load(folder, samples=...), recorder.finish(samples=...) or dataclasses.replace(run, samples=...).{alone}"
        )

    @property
    def listed(self) -> Samples:
        """Ids, labels and class names: of the samples, or of the trace where there are none (its inputs then have no pixels)."""
        return self.trace.listed if self.samples is None and self.trace is not None else self.data

    @property
    def walked(self) -> WalkedBatches | None:
        """The batches of its own seed as its trace has them, where samples were forgotten since; None: the recipe draws them."""
        trace, recipe = self.trace, self.recipe
        if trace is None or recipe is None or recipe.drawn_from is None or trace.facts.recipe != recipe.digest:
            return None
        batches = trace.visited.split(trace.bounds.diff().tolist())
        epochs = (batches[first:last] for first, last in itertools.pairwise(trace.epoch_steps.tolist()))
        return WalkedBatches(recipe, tuple(epochs), trace.rates[:, 0])

    def save(self, folder: str | Path) -> Path:
        """Write the run to a new folder, atomically: see ``fastntk.save_run``."""
        from fastntk.storage.runs import save_run

        return save_run(self, Path(folder))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        samples: Samples | None = None,
        *,
        model: nn.Module | None = None,
        loss: LossFunction | None = None,
        device: str | torch.device | None = None,
    ) -> Run:
        """Read and verify a folder: see ``fastntk.load_run``."""
        from fastntk.storage.runs import load_run

        return load_run(Path(folder), samples=samples, model=model, loss=loss, device=device)


def as_listed(samples: Samples, trace: Trace) -> Samples:
    """The samples in the order in which a loop of the user's first saw them, without those that it never saw.

    What ``fit`` recorded has the order of its samples; others are left as they are, and refused.
    """
    ids = trace.listed.ids
    if trace.facts.mode != "recorded" or samples.ids == ids or not set(ids) <= set(samples.ids):
        return samples
    return samples.subset(samples.index_of(ids))
