"""One way to an update: where the rows are, what computes it, what it takes; and whether that fits the budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fastntk.base.text import byte_size, duration

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
        return replace(self, fits=not reasons, why_not=", ".join(reasons))

    def details(self) -> dict[str, Any]:
        """JSON-able; seconds that were not estimated are None."""
        return {
            "method": self.method,
            "rows": self.rows,
            "solver": self.solver,
            "seconds": self.seconds if math.isfinite(self.seconds) else None,
            "memory": self.memory,
            "disk": self.disk,
            "fits": self.fits,
            "why_not": self.why_not,
        }

    def cells(self) -> tuple[str, ...]:
        """A row of the plan's table."""
        seconds = duration(self.seconds) if math.isfinite(self.seconds) else "?"
        return (self.name, seconds, byte_size(self.memory) if self.memory else "-", byte_size(self.disk) if self.disk else "-")


def chosen(routes: Sequence[Route]) -> Route | None:
    """The first that fits: a method names its routes in the order in which it prefers them."""
    return next((route for route in routes if route.fits), None)
