"""The plan of a request: every route of the methods asked for, the one each would take, and Retrain's cost beside them.

A plan is made once and executed: ``unlearn`` takes the route that is in it. Which route that is depends on counts and budgets
alone, never on a measured time, so that a plan with estimates (``plan``) and one without (inside ``unlearn``) choose alike.
Seconds rest on a short :mod:`calibration <fastntk.planning.calibration>`. Both figures are estimates.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastntk.base.errors import BudgetError, InputError
from fastntk.base.schema import finite
from fastntk.base.text import byte_size, duration
from fastntk.data.duplicates import Copies
from fastntk.planning.calibration import Calibration
from fastntk.planning.problem import Route, Sizes, first_fitting

DISK_SHARE = 0.9
"""Of the disk that is free, where no budget is given."""


@dataclass(frozen=True)
class Plan:
    """Routes by method, in each method's order of preference; budgets; what Retrain would take, None without a recipe.

    ``request``: a digest of what is to be forgotten of which ids; ``options``: those each method was planned with. ``outside``:
    what is known of the weights outside the tuned subset, which no route reaches.
    """

    request: str
    options: Mapping[str, Mapping[str, Any]]
    sizes: Sizes
    calibration: Calibration
    memory_budget: int
    disk_budget: int
    routes: tuple[Route, ...]
    retrain_seconds: float | None
    epochs: int | None
    engine: Mapping[str, object]
    outside: Mapping[str, Any] = field(default_factory=dict)
    copies: Copies | None = None
    """Copies of what is to be forgotten among what stays; None where nobody looked, or there are no images to look at."""

    @property
    def chosen(self) -> dict[str, Route]:
        """The route that each method takes; methods without one that fits are left out."""
        methods = dict.fromkeys(route.method for route in self.routes)
        routes = {method: first_fitting([route for route in self.routes if route.method == method]) for method in methods}
        return {method: route for method, route in routes.items() if route is not None}

    @property
    def rows_seconds(self) -> float:
        """What the rows of all samples take."""
        return self.sizes.samples * self.calibration.rows

    @property
    def recipe_known(self) -> bool:
        """Whether the run says how it was trained, without which there is nothing to compare with."""
        return self.epochs is not None

    def route(self, method: str) -> Route:
        """The route of one method; BudgetError with advice where none fits."""
        route = self.chosen.get(method)
        if route is None:
            raise BudgetError(self._refusal(method))
        return route

    def details(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "sizes": {**asdict(self.sizes), "stored bytes": self.sizes.stored},
            "calibration": self.calibration.details(),
            "memory_budget": self.memory_budget,
            "disk_budget": self.disk_budget,
            "rows_seconds": finite(self.rows_seconds),
            "routes": [route.details() for route in self.routes],
            "chosen": {method: route.details() for method, route in self.chosen.items()},
            "retrain_seconds": finite(self.retrain_seconds),
            "recipe_known": self.recipe_known,
            "verdict": self.verdict,
            "engine": dict(self.engine),
            "outside_subset": dict(self.outside),
            "copies": None if self.copies is None else self.copies.details(),
        }

    def table(self) -> str:
        """Lines for people: routes, time, memory, disk, and what each method takes."""
        route_ids = set(map(id, self.chosen.values()))
        head = ("", "route", "time", "memory", "disk", "")
        lines = [("->" if id(route) in route_ids else "", *route.cells(), route.why_not) for route in self.routes]
        if "retrain" not in {route.method for route in self.routes}:
            lines.append(("", "retrain", *(("?", "", "", "the run records no recipe") if self.retrain_seconds is None
                          else (duration(self.retrain_seconds), "", "", ""))))  # fmt: skip
        widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in (head, *lines))

    @property
    def verdict(self) -> str:
        """What follows: the cheapest route beside Retrain, or that there is nothing to compare with."""
        candidates = {name: route for name, route in self.chosen.items() if name not in ("retrain", "full")} or self.chosen
        if not candidates:
            return "Nothing fits the budgets."
        best = min(candidates.values(), key=lambda route: route.seconds)
        first = f"The first request takes about {duration(best.seconds)} ({best.name})"
        retrain = self.retrain_seconds
        if math.isnan(best.seconds):
            first = f"{best.name} fits; its time is not known"
        if retrain is None:
            return f"{first}. The run records no recipe, so what Retrain would take is not known."
        if best.method in ("retrain", "full"):
            return f"{first}."
        if math.isnan(best.seconds) or math.isnan(retrain):
            return f"{first}. What Retrain would take was not measured, for there are no images."
        if best.seconds <= retrain:
            later = "" if best.rows == "none" else " Later requests can reuse stored rows."
            return f"{first}, Retrain {duration(retrain)}: {retrain / max(best.seconds, 1e-9):.1f} times as long.{later}"
        beside = f"about {duration(best.seconds)} ({best.name}) against {duration(retrain)}"
        dear = f"The first request costs more than Retrain: {beside}."
        if best.rows == "none":
            return f"{dear} Retrain instead."
        return (
            f"{dear} Rows alone take {duration(self.rows_seconds)}: {self.sizes.classes + 1} forward passes an image (C + 1), "
            f"Retrain 2 to 3 an image and epoch ({self.epochs} epochs). Only reuse of stored rows over several requests pays; "
            "for a single one, retrain."
        )

    def __str__(self) -> str:
        s = self.sizes
        rows = f"rows {duration(self.rows_seconds)}, {byte_size(s.stored)}; " if s.stored else ""
        first = "" if self.copies is None else f"{self.copies}\n"
        return (
            f"{first}{s.samples} samples ({s.retain} retained) x {s.classes} classes, {s.parameters} tuned parameters, "
            f"chunks of {s.chunk}; {rows}budgets: memory "
            f"{byte_size(self.memory_budget)}, disk {byte_size(self.disk_budget)}\n{self.table()}\n{self.verdict}"
        )

    def _refusal(self, method: str) -> str:
        """Why nothing fits, by how much, and what would help."""
        routes = [route for route in self.routes if route.method == method]
        over = [route for route in routes if route.over_budget]
        if not over:
            why = f": {routes[0].why_not}" if routes else " with these options"
            return f"Method {method!r} has no route{why}."
        s = self.sizes
        least = min(over, key=lambda route: route.memory)
        by_network = s.chunk * self.calibration.row_bytes
        advice = [f"allow at least {byte_size(least.memory, up=True)} of memory"]
        if least.disk:
            advice[0] += f" and {byte_size(least.disk, up=True)} of disk"
        advice[0] += f" ({least.name})"
        if {route.rows for route in routes} == {"memory"}:
            advice.append("give rows='disk', with a folder to keep them")
        if s.chunk > 1 and by_network > self.memory_budget / 4:
            advice.append(f"take a smaller chunk (the {s.chunk} images of one now need {byte_size(by_network)})")
        advice += ["tune fewer parameters", "use fewer samples", "or retrain instead"]
        return (
            f"No route of {method!r} for {s.samples} samples x {s.classes} classes and {s.parameters} tuned parameters fits "
            f"{byte_size(self.memory_budget)} of memory and {byte_size(self.disk_budget)} of disk: {', '.join(advice)}."
        )


def make_plan(
    sizes: Sizes,
    calibration: Calibration,
    routes: Sequence[Route],
    *,
    memory: int,
    disk: int,
    retrain_seconds: float | None = None,
    epochs: int | None = None,
    engine: Mapping[str, object] | None = None,
    request: str = "",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    outside: Mapping[str, Any] | None = None,
) -> Plan:
    """Judge the routes by the budgets; ``retrain_seconds`` and ``epochs`` are None where the run has no recipe."""
    return Plan(
        request=request,
        options=options or {},
        sizes=sizes,
        calibration=calibration,
        memory_budget=memory,
        disk_budget=disk,
        routes=tuple(route.judged(memory=memory, disk=disk) for route in routes),
        retrain_seconds=retrain_seconds,
        epochs=epochs,
        engine=engine or {},
        outside=outside or {},
    )


def disk_budget(given: int | None, folder: str | Path | None) -> int:
    """The bytes of disk that may be used: those given, or :data:`DISK_SHARE` of what is free where the rows would go."""
    if given is None:
        place = Path(tempfile.gettempdir() if folder is None else folder).absolute()
        existing = next(parent for parent in (place, *place.parents) if parent.exists())
        return int(DISK_SHARE * shutil.disk_usage(existing).free)
    if isinstance(given, bool) or not given > 0:
        raise InputError(f"disk_budget is a number of bytes above 0, got {given!r}.")
    return int(given)
