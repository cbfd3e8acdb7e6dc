"""What a method's cost is asked about: sizes, speeds, options, the recipe, and where rows may be.

The pieces that several methods' costs are made of are here too. With n images, C classes, b tuned parameters outside the head,
and rows of s bytes a number: rows take (C + 1) forward passes an image and n·C·b·s bytes where they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fastntk.base.memory import available_memory
from fastntk.linalg.choose import CHUNK_BYTES
from fastntk.planning.calibration import Calibration
from fastntk.planning.route import Route, Rows
from fastntk.planning.sizes import Sizes
from fastntk.training.recipe import Recipe

DISK_RATE = 3e8
"""Bytes a second that estimates assume for rows which the system cannot keep in memory."""
WEIGHTS_RATE = 3e8
"""Bytes a second of copying and digesting a whole model, which every request does a few times."""
CHECKED = 256
"""Samples of the retain and of the forget set that a step is checked on, at most; and a few mixed ones."""


@dataclass(frozen=True)
class Problem:
    """One method on one request. ``options``: all of the method's, defaults filled in; ``given``: those the caller named.

    ``places``: where rows may be, in order of preference. ``ready``: they are there already, from an earlier request.
    ``whole_classes``: whether nothing but whole classes goes. ``memory``: the budget, for what has to be cut to fit.
    """

    method: str
    sizes: Sizes
    speed: Calibration
    options: Mapping[str, object]
    given: frozenset[str]
    recipe: Recipe | None
    places: tuple[Rows, ...]
    ready: bool
    whole_classes: bool
    memory: int

    @property
    def linearising_seconds(self) -> float:
        """Rows of all samples, and logits and features at θ and at the anchor."""
        return 0.0 if self.ready else self.sizes.samples * (self.speed.rows + 2 * self.speed.forward)

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
        slow = place == "disk" and self.sizes.stored > 0.7 * available_memory()
        return self.sizes.stored / (min(DISK_RATE, rate) if slow else rate)

    def stored(self, place: Rows, solver: str, *, seconds: float, memory: int, settings: Mapping[str, object]) -> Route:
        """A route on stored rows: ``seconds`` and ``memory`` are what comes on top of making and holding them."""
        s = self.sizes
        making = 0 if self.ready else s.chunk * (self.speed.row_bytes + s.body_row_bytes)
        held = s.stored if place == "memory" and not self.ready else 0
        return Route(
            method=self.method,
            rows=place,
            solver=solver,
            seconds=self.linearising_seconds + seconds + self.checking_seconds + self.fixed_seconds,
            memory=s.input_copy + held + max(making, memory, CHUNK_BYTES),
            disk=s.stored if place == "disk" and not self.ready else 0,
            settings=settings,
        )

    def passes(self, count: float, *, batch: int, extra_seconds: float = 0.0, note: str = "") -> Route:
        """A route of so many training passes, one sample forward and backward each, and no rows."""
        s = self.sizes
        steps = math.ceil(max(count, 1) / batch)
        seconds = count * self.speed.step + steps * 200 * self.speed.dispatch + extra_seconds + self.fixed_seconds
        held = s.input_copy + s.weights + min(batch, s.samples) * self.speed.step_bytes
        return Route(self.method, "none", note or "training passes", seconds, held, bounded=False)


def without_recipe(route: Route) -> Route:
    """The route, ruled out because the run does not say how it was trained."""
    return replace(route, fits=False, why_not="needs the recipe, which the run does not record")
