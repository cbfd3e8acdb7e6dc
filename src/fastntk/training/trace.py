"""The path of a fine-tuning, recorded while it ran: what ``path-replay`` walks along again without some of the samples.

    per visit of a sample   who it was, and the head's input h_i(t) as it was then
    per step t              which visits, in which batches; rates, factor of gradient clipping; the gradient of the body g_t,
                            and that of the head's bias
    per epoch               the tuned parameters w before its first step, and at the end

The path of the head's weight is not stored: it follows from the features. So would the bias's gradient, but for rounding; where
the classes of a batch balance each other it *is* rounding, of which Adam makes whole steps. What a sample was called and labelled
is in it, so that a request can be met without the images. In memory or in a folder; how a folder is sealed and read again:
:mod:`fastntk.training.trace_folder`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError, listing
from fastntk.base.schema import AtLeastZero, Count, Fraction, Positive, Sha256, parse
from fastntk.data import Samples
from fastntk.training.averages import Average
from fastntk.training.losses import NAMES, OWN, LossFunction, PathLoss, fingerprint
from fastntk.training.optimizers import Group
from fastntk.training.series import Series
from fastntk.tuning import Subset

HOME = "home"
"""In a trace's memo: what keeps the temporary folder that it lies in."""


@dataclass(frozen=True)
class TraceFacts:
    """What does not grow with the path. ``body``: tuned parameters outside the head whose gradients are in the trace; ``left``:
    tuned ones that are not (an earlier request left them where they were, or there was no room).

    ``optimizer``: the name of a class of ``torch.optim``; ``groups``: its groups of parameters with their options. ``penalty``:
    strength of the pull towards the anchor. ``smoothing``: of labels. ``trained``, ``anchor``: digests of the tuned vector at the
    end and at the start. ``requests``: how many rewrote the path since it was recorded; ``drift``: by how much their predictions
    missed the network's, added up (mean total variation).

    ``average``: a step of several batches is the mean of their means ("batch"), or the mean of all their samples ("step"); or no
    mean, but their sum ("sum"): what is left of it is not divided by fewer.
    ``max_norm``: the norm to which gradients were clipped, where it is known. ``fingerprint``: of a loss of the user's own.
    ``buffers``: buffers of the model that moved while it was recorded (statistics of BatchNorm). ``mode``: "recorded" by a loop
    of the user's, "fit" by a recipe; ``recipe``: its digest.
    """

    classes: Positive
    features: Positive
    head_weight: str
    head_bias: str | None
    body: tuple[str, ...]
    left: tuple[str, ...]
    optimizer: str
    groups: Annotated[tuple[Group, ...], Meta(min_length=1)]
    penalty: AtLeastZero
    loss: Annotated[str, Meta(pattern=f"^({'|'.join((*NAMES, OWN))})$")]
    anchor: str
    trained: str
    requests: Count = 0
    drift: AtLeastZero = 0.0
    smoothing: Fraction = 0.0
    average: Average = "batch"
    max_norm: AtLeastZero | None = None
    fingerprint: tuple[float, ...] | None = None
    buffers: tuple[str, ...] = ()
    mode: Literal["fit", "recorded"] = "fit"
    recipe: Sha256 | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> TraceFacts:
        """The way back from JSON; refuses what are no facts."""
        return parse({"recipe": None, **stored}, cls, what="facts", complete=True)  # older traces have none


@dataclass(frozen=True, eq=False)
class Trace:
    """A recorded path. ``listed``: ids, labels and class names, with inputs of no pixels. ``samples``: per visit, the position in
    it. ``bounds`` (S + 1,): visits of step t are bounds[t] to bounds[t + 1]; ``epoch_steps`` (E + 1,): the first step of each
    epoch, and the number of steps. ``gradients`` (S, b) and ``weights`` (E + 1, d) are None where there was no room for them.
    ``bias`` (S, C): gradients of the head's bias; None where it is not tuned, and in older traces.

    ``rates`` (S, G): of each group of the optimiser; ``varying``: further options that changed on the way, (S, G) each, "betas.0"
    for the first number of one that is a tuple. ``clips`` (S,): what the gradient was multiplied with before the step;
    ``norms`` (S,): of the gradient of all tuned parameters outside the head. ``targets`` (V, C): soft targets, where there were
    some.
    ``parts`` (P + 1,): bounds in the visits of the batches that steps were accumulated from, and their ``shares`` (P,) in the
    step; None where every step was one batch.
    """

    facts: TraceFacts
    listed: Samples
    bounds: Tensor
    rates: Tensor
    clips: Tensor
    epoch_steps: Tensor
    samples: Series
    features: Series
    gradients: Series | None
    weights: Series | None
    folder: Path | None = None
    varying: dict[str, Tensor] = field(default_factory=dict)
    norms: Tensor | None = None
    parts: Tensor | None = None
    shares: Tensor | None = None
    targets: Series | None = None
    bias: Series | None = None
    function: LossFunction | None = None
    """The loss, where it is a function of the user's own."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What was computed from the trace once and serves every request; gone with it."""

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without what can be computed again, of which some cannot be copied."""
        state = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return state | {"memo": {name: value for name, value in self.memo.items() if name == HOME}}

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return len(self.epoch_steps) - 1

    @property
    def steps(self) -> int:
        """Steps of the optimiser."""
        return len(self.rates)

    @property
    def visits(self) -> int:
        """How often a sample was looked at, over all samples and epochs."""
        return len(self.samples)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that grows with the path."""
        return sum(tensor.nbytes for tensor in self.small.values()) + sum(series.nbytes for series in self.series.values())

    @property
    def small(self) -> dict[str, Tensor]:
        """The parts of a few numbers a step, by name."""
        parts = {name: getattr(self, name) for name in ("bounds", "rates", "clips", "epoch_steps", "norms", "parts", "shares")}
        varying = {f"varying.{name}": values for name, values in self.varying.items()}
        return {name: part for name, part in parts.items() if part is not None} | varying

    @property
    def series(self) -> dict[str, Series]:
        """The parts that grow, by name."""
        parts = {name: getattr(self, name) for name in ("samples", "features", "gradients", "weights", "targets", "bias")}
        return {name: part for name, part in parts.items() if part is not None}

    @cached_property
    def loss(self) -> PathLoss:
        """What the training lowered."""
        return PathLoss(self.facts.loss, self.facts.smoothing, self.function)

    def with_loss(self, function: LossFunction) -> Trace:
        """The same trace with the user's own loss, which no file holds; refused where its values are others."""
        facts = self.facts
        if facts.loss != OWN:
            return self
        values = fingerprint(PathLoss(OWN, function=function), facts.classes, soft=self.targets is not None)
        before = facts.fingerprint
        if before and (values is None or not torch.allclose(torch.tensor(values), torch.tensor(before), rtol=1e-3, atol=1e-5)):
            raise InputError("This is not the loss that the trace was recorded with: it has other values on the same logits.")
        return dataclasses.replace(self, function=function, memo={})

    def targets_of(self, samples: Tensor, start: int, stop: int) -> Tensor:
        """What the visits ``start`` to ``stop``, of these samples, were trained towards: labels (B,) or soft targets (B, C)."""
        return self.listed.labels[samples] if self.targets is None else self.targets.read(start, stop)

    @cached_property
    def _part_starts(self) -> Tensor | None:
        """Per step, the first of its batches, (S + 1,)."""
        return None if self.parts is None else torch.searchsorted(self.parts, self.bounds)

    def parts_of(self, step: int) -> list[tuple[int, int, float]]:
        """The batches of a step: first and last visit, counted within the step, and share."""
        start, stop = int(self.bounds[step]), int(self.bounds[step + 1])
        if self.parts is None or self.shares is None or self._part_starts is None:
            return [(0, stop - start, 1.0)]
        numbers = range(int(self._part_starts[step]), int(self._part_starts[step + 1]))
        return [(int(self.parts[k]) - start, int(self.parts[k + 1]) - start, float(self.shares[k])) for k in numbers]

    def split_parts(self, step: int, kept: Tensor, weights: Tensor) -> list[tuple[slice, float]]:
        """The batches of a step among the visits that are ``kept`` (B,), and what each counts for by its ``weights`` (k,)."""
        parts, start = [], 0
        for first, last, _ in self.parts_of(step):
            count = int(kept[first:last].sum())
            if count:
                parts.append((slice(start, start + count), float(weights[start : start + count].sum())))
            start += count
        return parts

    def options_at(self, step: int) -> list[dict[str, Any]]:
        """Options of each group that change on the way, as they are at this step; none where none does."""
        if not self.varying:
            return []
        options: list[dict[str, Any]] = [{} for _ in self.facts.groups]
        for name, values in self.varying.items():
            option, _, place = name.partition(".")
            for number, group in enumerate(self.facts.groups):
                if option not in group.options:
                    continue
                value = float(values[step, number])
                if place:
                    numbers = list(options[number].get(option, group.options[option]))
                    numbers[int(place)] = value
                    options[number][option] = tuple(numbers)
                else:
                    options[number][option] = value
        return options

    @cached_property
    def visited(self) -> Tensor:
        """Per visit, the position of its sample, (V,)."""
        return self.samples.to_memory().long()

    @cached_property
    def last_visits(self) -> Tensor:
        """Per sample, its last visit (n,); −1 where it was never looked at."""
        last = torch.full((len(self.listed),), -1, dtype=torch.long)
        return last.scatter_reduce_(0, self.visited, torch.arange(self.visits), "amax")

    def summary(self) -> dict[str, Any]:
        """JSON-able: for people and records."""
        parts = {name: series.nbytes for name, series in self.series.items()}
        return {
            "epochs": self.epochs,
            "steps": self.steps,
            "visits": self.visits,
            "samples": len(self.listed),
            "nbytes": self.nbytes,
            "bytes": parts,
            "feature_dtype": self.features.facts()["dtype"],
            "body_gradients": self.gradients is not None,
            "left": list(self.facts.left),
            "requests": self.facts.requests,
        }

    def check(self, subset: Subset, anchor: Tensor, samples: Samples | None) -> None:
        """Refuse weights, anchor or data that are not those of this path."""
        facts = self.facts
        head = [name for name in (facts.head_weight, facts.head_bias) if name is not None]
        names = {*head, *facts.body, *facts.left}
        if names != set(subset.names):
            raise InputError(
                f"This trace is of another run: it has other tuned parameters ({listing(sorted(names ^ set(subset.names)))})."
            )
        if tuple(subset.parameters[facts.head_weight].shape) != (facts.classes, facts.features):
            raise InputError(f"This trace is of another run: its head has {facts.classes} classes and {facts.features} features.")
        for what, digest, present in (("anchor", facts.anchor, anchor), ("trained weights", facts.trained, subset.get())):
            if tensor_digest(present) != digest:
                raise InputError(
                    f"This trace does not belong to these weights: it was recorded with another {what}. Give the run that it "
                    "was recorded with, or none (trace=None)."
                )
        if samples is not None and (samples.ids != self.listed.ids or not torch.equal(samples.labels.cpu(), self.listed.labels)):
            what = "other ids" if samples.ids != self.listed.ids else "other labels"
            raise InputError(f"This trace was recorded on other data: it has {what} than the samples given.")
