"""What is planned: the sizes of a request (:class:`Sizes`), the ways there are (:class:`Route`), and what a method is asked about
them (:class:`Problem`).

The pieces that several methods' costs are made of are here too. With n images, C classes, b tuned parameters outside the head,
and rows of s bytes a number: rows take (C + 1) forward passes an image and n·C·b·s bytes where they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.base.memory import memory_allowed
from fastntk.base.schema import finite
from fastntk.base.text import byte_size, duration
from fastntk.data import Split
from fastntk.linalg.choose import CHUNK_BYTES
from fastntk.planning.calibration import Calibration
from fastntk.tangent import RowEngine
from fastntk.tangent.rows import DEFAULT_CHUNK
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.training.trace import Trace

Rows = Literal["memory", "disk", "stream", "none"]
ROWS_IN_WORDS = {"memory": "rows in memory", "disk": "rows on disk", "stream": "rows made as needed", "none": "no rows"}


@dataclass(frozen=True)
class Route:
    """``rows``: where the Jacobian rows are; ``solver``: what computes the update; ``seconds`` (NaN: not estimated), ``memory``
    and ``disk`` in bytes, above the process as it is.

    ``settings``: what the method is told to do, so that what was planned is what runs. ``bounded``: whether the memory is held
    to the budget; training passes need what the fine-tuning needed, and are not.
    """

    method: str
    rows: Rows
    solver: str
    seconds: float
    memory: int = 0
    disk: int = 0
    fits: bool = True
    why_not: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    bounded: bool = True
    over_budget: bool = False

    @property
    def name(self) -> str:
        """For people: method, rows and solver."""
        return ", ".join(part for part in (f"{self.method}: {ROWS_IN_WORDS[self.rows]}", self.solver) if part)

    def judged(self, *, memory: int, disk: int) -> Route:
        """The same with whether it fits; one that is out for another reason stays out."""
        if not self.fits:
            return self
        reasons = []
        if self.bounded and self.memory > memory:
            reasons.append("above the memory budget")
        if self.disk > disk:
            reasons.append("above the disk budget")
        return replace(self, fits=not reasons, why_not=", ".join(reasons), over_budget=bool(reasons))

    def details(self) -> dict[str, Any]:
        """JSON-able; seconds that were not estimated are None."""
        return {
            "method": self.method,
            "rows": self.rows,
            "solver": self.solver,
            "seconds": finite(self.seconds),
            "memory": self.memory,
            "disk": self.disk,
            "fits": self.fits,
            "why_not": self.why_not,
        }

    def cells(self) -> tuple[str, ...]:
        """A row of the plan's table."""
        sizes = (byte_size(size) if size else "-" for size in (self.memory, self.disk))
        return (self.name, duration(self.seconds), *sizes)


def first_fitting(routes: Sequence[Route]) -> Route | None:
    """The first that fits: a method names its routes in the order in which it prefers them."""
    return next((route for route in routes if route.fits), None)


@dataclass(frozen=True)
class Sizes:
    """Counts of a run and a request. ``body``: tuned parameters outside the head; ``features``: the head's inputs, 0 where no
    closed form exists for it; ``itemsize``: bytes a number of the rows; ``input_copy``: bytes of the copy that convolutions are
    given; ``weights``: bytes of the whole model.

    For a method without rows no engine is made, and ``body`` and ``features`` are 0.
    """

    samples: int
    retain: int
    classes: int
    parameters: int
    body: int
    features: int
    itemsize: int
    chunk: int
    input_copy: int
    weights: int = 0

    @property
    def forget(self) -> int:
        """Samples that go."""
        return self.samples - self.retain

    @property
    def n_rows(self) -> int:
        """Rows of J, n·C."""
        return self.samples * self.classes

    @property
    def stored(self) -> int:
        """Bytes of all rows, the head's block as features."""
        return self.samples * (self.classes * self.body + self.features) * self.itemsize

    @property
    def body_row_bytes(self) -> int:
        """Bytes of one image's rows outside the head."""
        return self.classes * self.body * self.itemsize


def sizes_of(run: Run, split: Split, engine: RowEngine | None, *, chunk: int | None) -> Sizes:
    """The sizes of a request; without an engine, those that need none."""
    size = DEFAULT_CHUNK if chunk is None else chunk
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"chunk must be ≥ 1, got {size}.")
    samples = run.listed
    return Sizes(
        samples=len(samples),
        retain=len(split.retain),
        classes=samples.num_classes if engine is None else engine.classes,
        parameters=run.subset.numel,
        body=0 if engine is None else len(engine.body_columns),
        features=0 if engine is None or engine.weight_columns is None else int(engine.weight_columns.shape[1]),
        itemsize=run.anchor.dtype.itemsize,
        chunk=min(size, len(samples)),
        input_copy=_input_copy(run.model, samples.inputs),
        weights=sum(tensor.nbytes for tensor in (*run.model.parameters(), *run.model.buffers())),
    )


@dataclass(frozen=True)
class TraceSizes:
    """Counts of a recorded path. ``visits``: samples looked at, over all epochs; ``features``: the head's inputs; ``body``: tuned
    parameters whose gradients are recorded, 0 where they are not; ``own_loop``: it is of a loop of the user's, not of ``fit``."""

    epochs: int
    steps: int
    visits: int
    features: int
    body: int
    own_loop: bool = False

    @classmethod
    def of(cls, trace: Trace) -> TraceSizes:
        """The counts of this trace."""
        body = 0 if trace.gradients is None else trace.gradients.shape[0]
        return cls(trace.epochs, trace.steps, trace.visits, trace.facts.features, body, trace.facts.mode == "recorded")


def _input_copy(model: nn.Module, inputs: Tensor) -> int:
    """Bytes of the channels-last copy that convolutions are given."""
    convolves = inputs.dim() == 4 and any(isinstance(module, nn.Conv2d) for module in model.modules())
    return inputs.nbytes if convolves and not inputs.is_contiguous(memory_format=torch.channels_last) else 0


DISK_RATE = 3e8
"""Bytes a second that estimates assume for rows which the system cannot keep in memory."""
WEIGHTS_RATE = 3e8
"""Bytes a second of copying and digesting a whole model, which every request does a few times."""
CHECKED = 256
"""Samples of the retain and of the forget set that a step is checked on, at most; and a few mixed ones."""


@dataclass(frozen=True)
class Problem:
    """One method on one request. ``options``: all of the method's, defaults filled in; ``given``: those the caller named.

    ``places``: where rows may be, in order of preference. ``ready``: they are there already, from an earlier request;
    ``on_disk``: bytes of them in the folder given.
    ``whole_classes``: whether nothing but whole classes goes. ``memory``: the budget, for what has to be cut to fit.
    ``trace``: counts of the recorded path, None where there is none. ``surveyed``: what the method's own survey of the run found.
    """

    method: str
    sizes: Sizes
    speed: Calibration
    options: Mapping[str, object]
    given: frozenset[str]
    recipe: Recipe | None
    places: tuple[Rows, ...]
    ready: bool
    on_disk: int
    whole_classes: bool
    memory: int
    trace: TraceSizes | None = None
    surveyed: Any = None

    @property
    def linearising_seconds(self) -> float:
        """Rows of all samples, and logits and features at θ and at the anchor."""
        if self.ready:
            return 0.0
        return self.sizes.samples * (self._missing * self.speed.rows + 2 * self.speed.forward)

    @property
    def _missing(self) -> float:
        """Share of the rows that is not in the folder yet."""
        return max(0.0, 1.0 - self.on_disk / max(self.sizes.stored, 1))

    @property
    def checking_seconds(self) -> float:
        """The step tried on the network."""
        s = self.sizes
        passes = 2 * min(CHECKED, s.retain) + min(CHECKED, s.forget) + 32 * 8
        return passes * self.speed.forward

    @property
    def fixed_seconds(self) -> float:
        """What every request takes: copies and digests of the model."""
        return 4 * self.sizes.weights / WEIGHTS_RATE

    def read_seconds(self, rate: float, place: Rows) -> float:
        """One pass over the stored rows at so many bytes a second; the system keeps a file in memory while there is room."""
        slow = place == "disk" and self.sizes.stored > memory_allowed(None)
        return self.sizes.stored / (min(DISK_RATE, rate) if slow else rate)

    def stored(self, place: Rows, solver: str, *, seconds: float, memory: int, settings: Mapping[str, object]) -> Route:
        """A route on stored rows: ``seconds`` and ``memory`` are what comes on top of making and holding them."""
        s = self.sizes
        making = 0 if self.ready else s.chunk * (self.speed.row_bytes + s.body_row_bytes)
        row_memory = s.stored if place == "memory" and not self.ready else 0
        return Route(
            method=self.method,
            rows=place,
            solver=solver,
            seconds=self.linearising_seconds + seconds + self.checking_seconds + self.fixed_seconds,
            memory=s.input_copy + row_memory + max(making, memory, CHUNK_BYTES),
            disk=max(0, s.stored - self.on_disk) if place == "disk" and not self.ready else 0,
            settings=settings,
        )

    def passes(self, count: float, *, batch: int, extra_seconds: float = 0.0, note: str = "") -> Route:
        """A route of so many training passes, one sample forward and backward each, and no rows."""
        s = self.sizes
        steps = math.ceil(max(count, 1) / batch)
        seconds = count * self.speed.step + steps * 200 * self.speed.dispatch + extra_seconds + self.fixed_seconds
        memory = s.input_copy + s.weights + min(batch, s.samples) * self.speed.step_bytes
        return Route(self.method, "none", note or "training passes", seconds, memory, bounded=False)


def without_recipe(route: Route) -> Route:
    """The route, ruled out because the run does not say how it was trained."""
    return replace(route, fits=False, why_not="needs the recipe, which the run does not record")


def without_images(method: str) -> Route:
    """A route that is ruled out because the run has no images."""
    return Route(method, "none", "", math.nan, fits=False, why_not="needs the images, which the run does not have")


def without_trace(route: Route) -> Route:
    """The route, ruled out because the run's fine-tuning was not recorded."""
    return replace(route, fits=False, why_not="needs the trace, which the run does not have")
