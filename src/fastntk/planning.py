"""What unlearning would cost on this machine, before any of it is done: time and memory of every route.

Rows cost C + 1 forward passes an image, Retrain two to three an image and epoch. With n images, C classes, d tuned
parameters of which b are outside the head, and rows of s bytes a number (newton is the softmax form, the other routes of
``fast-ntk`` are equation (1)):

    stored rows          n·C·b·s bytes, in memory or on disk
    fast-ntk, newton     the softmax form: vectors and a sketch; :data:`PRODUCTS` products with J and Jᵀ on stored rows
    fast-ntk, primal     A_D and A_r one after the other: (accumulator + 8)·d² bytes, n·C·b² + 2·d³/3 operations
    fast-ntk, dual       8·(n·C)² bytes, (n·C)²·b + (n·C)³/3 operations for each system
    fast-ntk, iterative  vectors; :data:`ITERATIONS` products with J and Jᵀ for each system (assumed: it depends on λ)
    tangent-replay       trainings of the linearised model on stored rows, bound by reading them; then as newton

Seconds rest on a short :mod:`calibration <fastntk.calibration>`; bytes are those above the process as it is. Both are
estimates; nothing is computed or stored for later here.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastntk.calibration import Calibration, calibrate
from fastntk.data import ForgetRequest
from fastntk.errors import BudgetError, InputError
from fastntk.linalg import available_memory, bytes_of_routes, readable
from fastntk.linalg.choose import CHUNK_BYTES
from fastntk.recipe import Recipe
from fastntk.run import Run
from fastntk.tangent import checked_engine
from fastntk.tangent.rows import DEFAULT_CHUNK
from fastntk.training import check_samples, eval_mode
from fastntk.unlearning.softmax_form import RANK

METHODS = ("fast-ntk", "tangent-replay")
ITERATIONS = 300
"""Steps of an iterative solve that estimates assume; badly conditioned systems take more."""
PRODUCTS = 300
"""Products with J and Jᵀ that the softmax form is assumed to take: damping, the regression on all samples, and on the kept."""
REPLAYS = 6
NEWTON = "newton (softmax form)"
DISK_RATE = 3e8
"""Bytes a second that estimates assume for rows which the system cannot keep in memory."""
MEMORY_SHARE, DISK_SHARE = 0.7, 0.9
"""Of what is available, where no budget is given."""


@dataclass(frozen=True)
class Sizes:
    """What decides a cost: counts of samples, columns and bytes."""

    samples: int
    retain: int
    classes: int
    parameters: int
    body: int
    features: int
    itemsize: int
    chunk: int
    input_copy: int

    @property
    def n_rows(self) -> int:
        """Rows of J, n·C."""
        return self.samples * self.classes

    @property
    def stored(self) -> int:
        """Bytes of all rows, the head's block as features."""
        return self.samples * (self.classes * self.body + self.features) * self.itemsize


@dataclass(frozen=True)
class Route:
    """One way to the update: where the rows are kept, who solves, what it takes, and whether that is allowed."""

    method: str
    rows: str
    solver: str
    seconds: float
    memory: int
    disk: int
    fits: bool
    why_not: str = ""

    @property
    def name(self) -> str:
        """For people: method, rows and solver."""
        return f"{self.method}: rows {self.rows}, {self.solver}"


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
                readable(route.memory),
                readable(route.disk) if route.disk else "-",
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
            f"chunks of {s.chunk}; rows {duration(self.rows_seconds)}, {readable(s.stored)}; budgets: memory "
            f"{readable(self.memory_budget)}, disk {readable(self.disk_budget)}\n{self.table()}\n{self.verdict}"
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


def estimate(sizes: Sizes, speed: Calibration, *, recipe: Recipe | None) -> Iterator[Route]:
    """Seconds and bytes of every route, whether it fits or not."""
    make = sizes.samples * (speed.rows + 2 * speed.forward)
    yield from _streamed(sizes, speed, make)
    for kept in ("in memory", "on disk"):
        if recipe is None or recipe.loss == "cross-entropy":
            yield _newton(sizes, speed, make, kept=kept)
        yield from _stored(sizes, speed, make, kept=kept)
        yield _replay(sizes, speed, make, kept=kept, recipe=recipe)


def _streamed(s: Sizes, speed: Calibration, make: float) -> Iterator[Route]:
    """Rows are summed into A as they come, or never made."""
    waiting = max(math.ceil(s.parameters / (4 * s.classes)), s.chunk)
    waiting = min(waiting, s.samples) * s.classes * s.body * s.itemsize
    for bits, rate in ((64, speed.gemm64), (32, speed.gemm32)):
        sums = bits // 8 * s.parameters**2
        converted = 0 if bits // 8 == s.itemsize else waiting * bits // 8 // s.itemsize
        adding = sums + waiting + max(s.chunk * speed.row_bytes, waiting + converted)
        solving = sums + 8 * s.parameters**2 + 24 * 256 * s.parameters
        seconds = make + _gram_flops(s) / rate + _cholesky_seconds(s.parameters, speed) * 2
        solver = f"primal (A summed in float{bits})"
        yield Route("fast-ntk", "never stored", solver, seconds, s.input_copy + CHUNK_BYTES + max(adding, solving), 0, True)
    # jvp and vjp cost about three forward passes each; both systems.
    products = 2 * ITERATIONS * 6 * speed.forward * s.samples
    needed = bytes_of_routes(s.n_rows, s.parameters)["matrix-free"]
    memory = s.input_copy + needed + min(64, s.samples) * speed.row_bytes
    yield Route("fast-ntk", "never made", "matrix-free (jvp, vjp)", make + products, memory, 0, True)


def _newton(s: Sizes, speed: Calibration, make: float, *, kept: str) -> Route:
    """Rows are kept and multiplied with twice a product; the sketch takes them once with many columns."""
    read = _read_seconds(s, speed, kept=kept)
    sketch = 4.0 * s.n_rows * s.body * RANK / speed.gemm32
    memory = 3 * 8 * RANK * s.parameters + 10 * 8 * s.n_rows + CHUNK_BYTES
    return _kept(s, speed, "fast-ntk", kept, NEWTON, seconds=make + sketch + 2 * PRODUCTS * read, memory=memory)


def _stored(s: Sizes, speed: Calibration, make: float, *, kept: str) -> Iterator[Route]:
    """Rows are kept, then solved with."""
    needed = bytes_of_routes(s.n_rows, s.parameters)
    first, second = s.n_rows, s.retain * s.classes
    read = _read_seconds(s, speed, kept=kept)
    times = {
        "primal": _gram_flops(s) / speed.gemm64 + 2 * _cholesky_seconds(s.parameters, speed),
        "dual": sum(m * m * s.body / speed.gemm64 + _cholesky_seconds(m, speed) for m in (first, second)),
        # Rows are turned into float64 on the way: about three times the reading.
        "matrix-free": 2 * ITERATIONS * 3 * read,
    }
    needed["primal"] += 8 * s.parameters**2
    for solver, seconds in times.items():
        yield _kept(s, speed, "fast-ntk", kept, solver, seconds=make + read + seconds, memory=needed[solver])


def _replay(s: Sizes, speed: Calibration, make: float, *, kept: str, recipe: Recipe | None) -> Route:
    """Six trainings on stored rows (with all by each path model, and three seeds without), a batch gathered (read, written) and
    multiplied twice; under cross-entropy the softmax form as well. An exact replay needs less of both.
    """
    known = recipe or Recipe()
    steps = known.epochs * math.ceil(s.samples / known.batch_size)
    read = _read_seconds(s, speed, kept=kept)
    seconds = REPLAYS * (known.epochs * 4 * read + steps * 100 * speed.dispatch)
    if known.loss == "cross-entropy":
        seconds += _newton(s, speed, 0.0, kept=kept).seconds
    gathered = 2 * min(known.batch_size, s.samples) * s.classes * s.body * s.itemsize + 16 * 8 * s.parameters + CHUNK_BYTES
    route = _kept(s, speed, "tangent-replay", kept, "replays", seconds=make + seconds, memory=gathered)
    if recipe is None:
        why = "needs the recipe, which the run does not record"
        return Route(**{**asdict(route), "fits": False, "why_not": why})
    return route


def _kept(s: Sizes, speed: Calibration, method: str, kept: str, solver: str, *, seconds: float, memory: int) -> Route:
    making = s.chunk * (speed.row_bytes + s.classes * s.body * s.itemsize)
    in_memory = s.stored if kept == "in memory" else 0
    disk = s.stored if kept == "on disk" else 0
    return Route(method, kept, solver, seconds, s.input_copy + in_memory + max(making, memory, CHUNK_BYTES), disk, True)


def softmax_first(routes: list[Route]) -> list[Route]:
    """Those of the softmax form where there are any, as ``unlearn`` takes it; else all."""
    return [route for route in routes if route.solver == NEWTON] or routes


def _weighted(route: Route) -> float:
    """Sums in float32 lose digits: they have to be twice as fast to be preferred, or to be all that fits."""
    return route.seconds * (2.0 if "float32" in route.solver else 1.0)


def _gram_flops(s: Sizes) -> float:
    """A's body block by halves, and its cross blocks with the head."""
    head = s.parameters - s.body
    return float(s.n_rows) * s.body**2 + 2.0 * s.samples * s.body * head


def _cholesky_seconds(size: int, speed: Calibration) -> float:
    return float(size) ** 3 / 3 / speed.cholesky


def _read_seconds(s: Sizes, speed: Calibration, *, kept: str) -> float:
    """One pass over the stored rows; the system keeps a file in memory as long as there is room."""
    slow = kept == "on disk" and s.stored > MEMORY_SHARE * available_memory()
    return s.stored / (DISK_RATE if slow else speed.read)


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
    advice = [f"allow at least {readable(least.memory)} of memory ({least.name})"]
    if s.chunk > 1 and by_network > memory / 4:
        advice.append(f"take a smaller chunk (the {s.chunk} images of one now need {readable(by_network)})")
    advice += ["tune fewer parameters", "use fewer samples", "or retrain instead"]
    return (
        f"No route for {s.samples} samples x {s.classes} classes and {s.parameters} tuned parameters fits "
        f"{readable(memory)} of memory and {readable(disk)} of disk: {', '.join(advice)}."
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


def duration(seconds: float) -> str:
    """Write seconds as people do: ``40 ms``, ``3.2 s``, ``5 min``, ``2.1 h``."""
    for limit, unit, size in ((1.0, "ms", 1e-3), (120.0, "s", 1.0), (7200.0, "min", 60.0)):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}" if seconds / size < 10 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.3g} h"
