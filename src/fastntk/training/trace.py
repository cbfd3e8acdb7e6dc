"""The path of a fine-tuning, recorded while it ran: what ``path-replay`` walks along again without some of the samples.

    per visit of a sample   who it was, and the head's input h_i(t) as it was then
    per step t              which visits, the learning rate, the factor of gradient clipping, the batch gradient of the body g_t
    per epoch               the tuned parameters w before its first step, and at the end

The head's own path is not stored: it follows from the features. What a sample was called and labelled is in it, so that a request
can be met without the images. In memory or in a folder; how a folder is sealed and read again is :mod:`fastntk.storage.traces`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError, listing
from fastntk.base.text import byte_size
from fastntk.data import Samples
from fastntk.training.series import Series, SeriesWriter
from fastntk.tuning import Subset

HALF_ABOVE = 256 * 2**20
"""Bytes of single-precision features above which they are kept in half precision."""
GRADIENTS_UP_TO = 2 * 2**30
"""Bytes of the body's gradients up to which they are kept; without them only the head can be replayed."""


@dataclass(frozen=True)
class TraceFacts:
    """What does not grow with the path. ``body``: tuned parameters outside the head whose gradients are in the trace; ``left``:
    tuned ones that are not (an earlier request left them where they were, or there was no room).

    ``optimizer``: the name of a class of ``torch.optim``; ``options``: its arguments but the rate. ``penalty``: strength of the
    pull towards the anchor. ``smoothing``: of labels. ``trained``, ``anchor``: digests of the tuned vector at the end and at the
    start. ``requests``: how many rewrote the path since it was recorded; ``drift``: by how much their predictions missed the
    network's, added up (mean total variation).
    """

    classes: int
    features: int
    head_weight: str
    head_bias: str | None
    body: tuple[str, ...]
    left: tuple[str, ...]
    optimizer: str
    options: dict[str, Any]
    penalty: float
    loss: str
    anchor: str
    trained: str
    requests: int = 0
    drift: float = 0.0
    smoothing: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> TraceFacts:
        """The way back from JSON."""
        return cls(**{**stored, "body": tuple(stored["body"]), "left": tuple(stored["left"])})


@dataclass(frozen=True, eq=False)
class Trace:
    """A recorded path. ``listed``: ids, labels and class names, with inputs of no pixels. ``samples``: per visit, the position in
    it. ``bounds`` (S + 1,): visits of step t are bounds[t] to bounds[t + 1]; ``epoch_steps`` (E + 1,): the first step of each
    epoch, and the number of steps. ``gradients`` (S, b) and ``weights`` (E + 1, d) are None where there was no room for them.
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
    memo: dict[str, Any] = field(default_factory=dict)
    """What was computed from the trace once and serves every request; gone with it."""

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
        small = sum(tensor.nbytes for tensor in (self.bounds, self.rates, self.clips, self.epoch_steps))
        return small + sum(series.nbytes for series in self.series.values())

    @property
    def series(self) -> dict[str, Series]:
        """The parts that grow, by name."""
        parts = {"samples": self.samples, "features": self.features, "gradients": self.gradients, "weights": self.weights}
        return {name: part for name, part in parts.items() if part is not None}

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
        named = {*head, *facts.body, *facts.left}
        if named != set(subset.names):
            raise InputError(
                f"This trace is of another run: it has other tuned parameters ({listing(sorted(named ^ set(subset.names)))})."
            )
        for what, known, present in (("anchor", facts.anchor, anchor), ("trained weights", facts.trained, subset.get())):
            if tensor_digest(present) != known:
                raise InputError(
                    f"This trace does not belong to these weights: it was recorded with another {what}. Give the run that it "
                    "was recorded with, or none (trace=None)."
                )
        if samples is not None and (samples.ids != self.listed.ids or not torch.equal(samples.labels.cpu(), self.listed.labels)):
            what = "other ids" if samples.ids != self.listed.ids else "other labels"
            raise InputError(f"This trace was recorded on other data: it has {what} than the samples given.")


class TraceWriter:
    """Takes a path step by step, in memory or into ``folder``; nothing is kept of one that is never finished."""

    def __init__(
        self, *, features: int, body: int, width: int, dtype: torch.dtype, half: bool, gradients: bool, folder: Path | None = None
    ) -> None:
        def series(name: str, shape: tuple[int, ...], kind: torch.dtype) -> SeriesWriter:
            return SeriesWriter(shape, kind, None if folder is None else folder / f"{name}.bin")

        self.folder = folder
        self._samples = series("samples", (), torch.int32)
        self._features = series("features", (features,), torch.float16 if half and dtype == torch.float32 else dtype)
        self._gradients = series("gradients", (body,), dtype) if gradients else None
        self._weights = series("weights", (width,), dtype) if gradients else None
        self._bounds, self._rates, self._clips, self._epochs = [0], list[float](), list[float](), list[int]()

    @property
    def keeps_gradients(self) -> bool:
        """Whether the body's path is recorded as well."""
        return self._gradients is not None

    def epoch(self, weights: Tensor) -> None:
        """A new epoch begins, or the last one is over, at these tuned parameters (d,)."""
        self._epochs.append(len(self._rates))
        if self._weights is not None:
            self._weights.append(weights.unsqueeze(0))

    def step(self, samples: Tensor, features: Tensor, gradient: Tensor | None, *, rate: float, clip: float = 1.0) -> None:
        """One step of the optimiser: the positions of its samples, the head's inputs, the body's gradient (b,)."""
        self._samples.append(samples.to(torch.int32))
        self._features.append(features)
        if self._gradients is not None:
            assert gradient is not None
            self._gradients.append(gradient.unsqueeze(0))
        self._bounds.append(self._bounds[-1] + len(samples))
        self._rates.append(rate)
        self._clips.append(clip)

    def finish(self, facts: TraceFacts, listed: Samples) -> tuple[Trace, dict[str, str]]:
        """The trace, and the SHA-256 of each file by name."""
        parts = {"samples": self._samples, "features": self._features, "gradients": self._gradients, "weights": self._weights}
        done = {name: writer.finish() for name, writer in parts.items() if writer is not None}
        series: dict[str, Series] = {name: part for name, (part, _) in done.items()}
        trace = Trace(
            facts=facts,
            listed=without_images(listed),
            bounds=torch.tensor(self._bounds),
            rates=torch.tensor(self._rates, dtype=torch.float64),
            clips=torch.tensor(self._clips, dtype=torch.float64),
            epoch_steps=torch.tensor(self._epochs),
            samples=series["samples"],
            features=series["features"],
            gradients=series.get("gradients"),
            weights=series.get("weights"),
            folder=self.folder,
        )
        return trace, {name: digest for name, (_, digest) in done.items() if digest is not None}

    def close(self) -> None:
        """Close the files."""
        for writer in (self._samples, self._features, self._gradients, self._weights):
            if writer is not None:
                writer.close()


def without_images(samples: Samples) -> Samples:
    """The same ids, labels and class names, with inputs of no pixels."""
    labels = samples.labels.detach().cpu()
    listed = Samples(torch.empty(len(samples), 0), labels, ids=samples.ids, classes=samples.classes)
    return listed.counting(samples.num_classes)


def describe(visits: int, features: int, steps: int, body: int, epochs: int, width: int, itemsize: int) -> dict[str, Any]:
    """What a trace of these counts would hold and take: the rules of what is kept, and in which precision."""
    single = visits * features * itemsize
    half = single > HALF_ABOVE and itemsize == 4
    gradients = steps * body * itemsize <= GRADIENTS_UP_TO
    path = (steps * body + (epochs + 1) * width) * itemsize if gradients else 0
    total = visits * 4 + (single // 2 if half else single) + path + steps * 24
    return {"half": half, "gradients": gradients, "nbytes": total, "size": byte_size(total)}
