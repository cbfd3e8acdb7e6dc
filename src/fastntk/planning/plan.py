"""What unlearning would cost on this machine, before any of it is done: time and memory of every route."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastntk.base.errors import BudgetError, InputError
from fastntk.base.memory import available_memory
from fastntk.base.text import byte_size, duration
from fastntk.data import ForgetRequest
from fastntk.planning.calibration import Calibration, calibrate
from fastntk.planning.routes import MEMORY_SHARE, Route, Sizes, estimate, softmax_first
from fastntk.tangent import checked_engine
from fastntk.tangent.rows import DEFAULT_CHUNK
from fastntk.training.network import check_samples, eval_mode
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run

METHODS = ("fast-ntk", "tangent-replay")
DISK_SHARE = 0.9
"""Of the disk that is free, where no budget is given."""


@dataclass(frozen=True)
class Plan:
    """Every route with its cost, the chosen one of each method, Retrain's cost, and what follows from both."""

    sizes: Sizes
    calibration: Calibration
    memory_budget: int
    disk_budget: int
    rows_seconds: float
    routes: tuple[Route, ...]
    retrain_seconds: float
    recipe_known: bool
    verdict: str
    engine: dict[str, object]

    @property
    def chosen(self) -> dict[str, Route]:
        """The fastest route that fits, for each method that has one; within 10 % the first in the table, which orders
        equals by accuracy and simplicity. ``fast-ntk`` takes the softmax form where one fits, as ``unlearn`` does.
        """
        found: dict[str, Route] = {}
        for method in METHODS:
            fitting = softmax_first([route for route in self.routes if route.fits and route.method == method])
            if fitting:
                limit = 1.1 * min(_weighted(route) for route in fitting)
                found[method] = next(route for route in fitting if _weighted(route) <= limit)
        return found

    def details(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "sizes": {**asdict(self.sizes), "stored bytes": self.sizes.stored},
            "calibration": self.calibration.details(),
            "memory_budget": self.memory_budget,
            "disk_budget": self.disk_budget,
            "rows_seconds": self.rows_seconds,
            "routes": [asdict(route) for route in self.routes],
            "chosen": {method: asdict(route) for method, route in self.chosen.items()},
            "retrain_seconds": self.retrain_seconds,
            "recipe_known": self.recipe_known,
            "verdict": self.verdict,
            "engine": self.engine,
        }

    def table(self) -> str:
        """Lines for people: routes, time, memory, disk, and what was chosen."""
        chosen = set(self.chosen.values())
        head = ("", "route", "time", "memory", "disk", "")
        lines = [
            (
                "->" if route in chosen else "",
                route.name,
                duration(route.seconds),
                byte_size(route.memory),
                byte_size(route.disk) if route.disk else "-",
                route.why_not,
            )
            for route in self.routes
        ]
        recipe = "" if self.recipe_known else "with Recipe()'s defaults: the run records no recipe"
        lines.append(("", "retrain", duration(self.retrain_seconds), "", "", recipe))
        widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in (head, *lines))

    def __str__(self) -> str:
        s = self.sizes
        return (
            f"{s.samples} samples ({s.retain} retained) x {s.classes} classes, {s.parameters} tuned parameters, "
            f"chunks of {s.chunk}; rows {duration(self.rows_seconds)}, {byte_size(s.stored)}; budgets: memory "
            f"{byte_size(self.memory_budget)}, disk {byte_size(self.disk_budget)}\n{self.table()}\n{self.verdict}"
        )


def plan(
    run: Run,
    *,
    classes: Any = None,
    ids: Any = None,
    memory_budget: int | None = None,
    disk_budget: int | None = None,
    chunk: int | None = None,
    folder: str | Path = ".",
) -> Plan:
    """Estimate what forgetting these classes and ids would cost; BudgetError with advice where nothing fits.

    Budgets are in bytes; None means 70 % of the memory available and 90 % of the free disk of ``folder``. Without
    classes and ids, Retrain is counted with all samples.
    """
    samples, recipe = run.data, run.recipe or Recipe()
    retain = len(samples)
    if classes is not None or ids is not None:
        retain = len(ForgetRequest(classes=classes, ids=ids).resolve(samples).retain)
    memory = _budget("memory_budget", memory_budget, lambda: int(MEMORY_SHARE * available_memory()))
    disk = _budget("disk_budget", disk_budget, lambda: int(DISK_SHARE * shutil.disk_usage(_existing(folder)).free))
    check_samples(run.model, samples)
    with eval_mode(run.model):
        engine = checked_engine(run.model, run.subset, samples.inputs)
        size = DEFAULT_CHUNK if chunk is None else chunk
        if size < 1:
            raise InputError(f"chunk must be ≥ 1, got {size}.")
        calibration = calibrate(engine, samples, recipe, chunk=size)
    sizes = Sizes(
        samples=len(samples),
        retain=retain,
        classes=engine.classes,
        parameters=run.subset.numel,
        body=len(engine.body_columns),
        features=0 if engine.weight_columns is None else int(engine.weight_columns.shape[1]),
        itemsize=samples.inputs.dtype.itemsize,
        chunk=min(size, len(samples)),
        input_copy=_input_copy(run.model, samples.inputs),
    )
    routes = tuple(_judged(route, memory=memory, disk=disk) for route in estimate(sizes, calibration, recipe=run.recipe))
    if not any(route.fits for route in routes):
        raise BudgetError(_refusal(routes, sizes, calibration, memory=memory, disk=disk))
    made = Plan(
        sizes=sizes,
        calibration=calibration,
        memory_budget=memory,
        disk_budget=disk,
        rows_seconds=sizes.samples * calibration.rows,
        routes=routes,
        retrain_seconds=recipe.epochs * retain * calibration.step,
        recipe_known=run.recipe is not None,
        verdict="",
        engine=engine.routes,
    )
    object.__setattr__(made, "verdict", _verdict(made, recipe.epochs))
    return made


def _weighted(route: Route) -> float:
    """Sums in float32 lose digits: they have to be twice as fast to be preferred, or to be all that fits."""
    return route.seconds * (2.0 if "float32" in route.solver else 1.0)


def _judged(route: Route, *, memory: int, disk: int) -> Route:
    if not route.fits:
        return route
    reasons = []
    if route.memory > memory:
        reasons.append("above the memory budget")
    if route.disk > disk:
        reasons.append("above the disk budget")
    return Route(**{**asdict(route), "fits": not reasons, "why_not": ", ".join(reasons)})


def _refusal(routes: tuple[Route, ...], s: Sizes, speed: Calibration, *, memory: int, disk: int) -> str:
    open_routes = [route for route in routes if not route.why_not.startswith("needs")]
    least = min(open_routes, key=lambda route: route.memory)
    by_network = s.chunk * speed.row_bytes
    advice = [f"allow at least {byte_size(least.memory)} of memory ({least.name})"]
    if s.chunk > 1 and by_network > memory / 4:
        advice.append(f"take a smaller chunk (the {s.chunk} images of one now need {byte_size(by_network)})")
    advice += ["tune fewer parameters", "use fewer samples", "or retrain instead"]
    return (
        f"No route for {s.samples} samples x {s.classes} classes and {s.parameters} tuned parameters fits "
        f"{byte_size(memory)} of memory and {byte_size(disk)} of disk: {', '.join(advice)}."
    )


def _verdict(made: Plan, epochs: int) -> str:
    best = min(made.chosen.values(), key=lambda route: route.seconds)
    retrain = made.retrain_seconds
    passes = made.sizes.classes + 1
    if best.seconds <= retrain:
        return (
            f"The first request takes about {duration(best.seconds)} ({best.name}), Retrain {duration(retrain)}: "
            f"{retrain / max(best.seconds, 1e-9):.1f} times as long. Later requests can reuse stored rows."
        )
    share = f"rows alone {duration(made.rows_seconds)}"
    return (
        f"The first request is dearer than Retrain: about {duration(best.seconds)} ({share}) against "
        f"{duration(retrain)}. Rows take {passes} forward passes an image (C + 1), Retrain 2 to 3 an image and epoch "
        f"({epochs} epochs). Only reuse of stored rows over several requests pays; for a single one, retrain."
    )


def _budget(name: str, given: int | None, default: Any) -> int:
    if given is None:
        return int(default())
    if isinstance(given, bool) or not given > 0:
        raise InputError(f"{name} is a number of bytes above 0, got {given!r}.")
    return int(given)


def _existing(folder: str | Path) -> Path:
    path = Path(folder).absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _input_copy(model: nn.Module, inputs: torch.Tensor) -> int:
    """Bytes of the channels-last copy that convolutions are given."""
    convolves = inputs.dim() == 4 and any(isinstance(module, nn.Conv2d) for module in model.modules())
    return inputs.nbytes if convolves and not inputs.is_contiguous(memory_format=torch.channels_last) else 0
