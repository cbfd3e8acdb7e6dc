"""Seconds and bytes of every way to an update, from the sizes of a problem and the speeds of a machine.

Rows cost C + 1 forward passes an image, Retrain two to three an image and epoch. With n images, C classes, d tuned
parameters of which b are outside the head, and rows of s bytes a number (newton is the softmax form, the other routes of
``fast-ntk`` are equation (1)):

    stored rows          n·C·b·s bytes, in memory or on disk
    fast-ntk, newton     the softmax form: vectors and a sketch; :data:`PRODUCTS` products with J and Jᵀ on stored rows
    fast-ntk, primal     A_D and A_r one after the other: (accumulator + 8)·d² bytes, n·C·b² + 2·d³/3 operations
    fast-ntk, dual       8·(n·C)² bytes, (n·C)²·b + (n·C)³/3 operations for each system
    fast-ntk, iterative  vectors; :data:`ITERATIONS` products with J and Jᵀ for each system (assumed: it depends on λ)
    tangent-replay       trainings of the linearised model on stored rows, bound by reading them; then as newton
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from fastntk.base.memory import available_memory
from fastntk.linalg import bytes_of_routes
from fastntk.linalg.choose import CHUNK_BYTES
from fastntk.planning.calibration import Calibration
from fastntk.training.recipe import Recipe
from fastntk.unlearning.fast_ntk.softmax import RANK

ITERATIONS = 300
"""Steps of an iterative solve that estimates assume; badly conditioned systems take more."""
PRODUCTS = 300
"""Products with J and Jᵀ that the softmax form is assumed to take: damping, the regression on all samples, and on the kept."""
REPLAYS = 6
NEWTON = "newton (softmax form)"
DISK_RATE = 3e8
"""Bytes a second that estimates assume for rows which the system cannot keep in memory."""
MEMORY_SHARE = 0.7
"""Of the memory available, what may be used where no budget is given."""


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
