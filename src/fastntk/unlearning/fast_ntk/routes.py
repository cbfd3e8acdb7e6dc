"""What ``fast-ntk`` takes, by form, solver and place of the rows; and which of these a request goes by.

With n images, C classes, d tuned parameters of which b are outside the head:

    newton (softmax form)   vectors and a sketch; products with J and Jᵀ on stored rows: damping, fit to all, fit to the retained
    primal                  A_D and A_r one after the other: 16·d² bytes, n·C·b² + 2·d³/3 operations
    dual                    8·(n·C)² bytes, (n·C)²·b + (n·C)³/3 operations for each system
    matrix-free             vectors; :data:`ITERATIONS` products for each system (assumed: it depends on λ)

The order depends on counts alone: the softmax form where the loss was cross-entropy and rows can be stored; else equation (1) by
the direct solver with the fewest operations, unless those are over ten times what iterating takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

from fastntk.base.errors import InputError
from fastntk.linalg import SOLVERS, bytes_of_routes, choose
from fastntk.linalg.choose import CHUNK_BYTES, PATIENCE, ROUTE_OF, TYPICAL_ITERATIONS, largest_sketch
from fastntk.linalg.matrix_free import DEFAULT_RANK
from fastntk.linalg.symmetric import STRIP
from fastntk.planning import Problem, Route
from fastntk.planning.calibration import MANY
from fastntk.planning.problem import Rows
from fastntk.unlearning.fast_ntk.softmax import RANK

Form = Literal["auto", "ridge", "softmax"]
RIDGE_OPTIONS = ("damping", "scale", "scale_fit", "solver")
"""Options that make ``auto`` take ``ridge``; of these only ``damping`` exists in both forms."""
ITERATIONS = TYPICAL_ITERATIONS
FIT_PASSES, SOLVE_PASSES = (20.0, 0.5), (40.0, 0.2)
"""Passes over the rows that the softmax form takes, with several dampings at once and with one: so many, and so many more for
each multiple of the sketch's rank among the columns. Seen: 28, 55, 124 and 20 to 95 for d of 2 026, 23 050 and 31 354."""
NEWTON = "newton (softmax form)"
STREAMED = "the rows are not stored, and softmax needs them many times"


def cost(problem: Problem) -> list[Route]:
    """Every route that the options allow, the preferred first."""
    form, because = _form(problem)
    places = [place for place in problem.places if place in ("memory", "disk")]
    if form == "softmax":
        routes = [_newton(problem, place, because) for place in places]
        if problem.options["form"] == "softmax":
            if not routes:
                raise InputError("form='softmax' needs stored rows: give rows='disk' and folder=..., or use form='ridge'.")
            return routes
        # What is left where the softmax form does not fit: equation (1), on stored rows before any that have to be made anew.
        small = "the softmax form does not fit the memory budget"
        routes += [route for place in places for route in _ridge(problem, place, "ridge", small)]
        return routes + list(_streamed(problem, STREAMED))
    routes = [route for place in places for route in _ridge(problem, place, form, because)]
    return routes + list(_streamed(problem, because or STREAMED))


def newton_seconds(problem: Problem, place: Rows) -> float:
    """The softmax form on stored rows: sketch, damping, fit to all samples and to the retained ones."""
    s, speed = problem.sizes, problem.speed
    rank = min(RANK, s.parameters, s.n_rows)
    many, single = (constant + growth * s.parameters / RANK for constant, growth in (FIT_PASSES, SOLVE_PASSES))
    sketch = 4.0 * s.n_rows * s.body * rank / speed.gemm32 + 8.0 * s.parameters * rank**2 / speed.gemm64
    reading = many * problem.read_seconds(speed.read_many, place) + single * problem.read_seconds(speed.read, place)
    # Each pass is followed by a product with the sketch and its transpose, in float64, for each column.
    preconditioning = (MANY * many + single) * 2 * 8.0 * s.parameters * rank / speed.read
    return sketch + reading + preconditioning


def newton_memory(problem: Problem) -> int:
    """Vectors and a sketch."""
    s = problem.sizes
    return 3 * 8 * RANK * s.parameters + 10 * 8 * s.n_rows + CHUNK_BYTES


def _form(problem: Problem) -> tuple[Form, str]:
    """(form, why); "auto" where only the fit of a ridge regression can tell."""
    form = problem.options["form"]
    if form not in get_args(Form):
        raise InputError(f"form must be one of {', '.join(get_args(Form))}; got {form!r}.")
    names = [name for name in RIDGE_OPTIONS if name in problem.given and problem.options[name] not in (None, "auto")]
    foreign = [name for name in names if name != "damping"]
    if form == "softmax" and foreign:
        raise InputError(f"{', '.join(foreign)} belongs to form='ridge': leave it out, or choose that form.")
    if form == "ridge":
        return "ridge", "asked for"
    if form == "softmax":
        return "softmax", "asked for"
    if names:
        return "ridge", f"{', '.join(names)} given"
    if problem.recipe is None:
        return "auto", ""
    is_squared = problem.recipe.loss == "squared"
    return ("ridge", "the loss was squared") if is_squared else ("softmax", "the loss was cross-entropy")


def _newton(problem: Problem, place: Rows, because: str) -> Route:
    settings = {"form": "softmax", "because": because, "solver": "newton-cg"}
    seconds = newton_seconds(problem, place)
    return problem.stored(place, NEWTON, seconds=seconds, memory=newton_memory(problem), settings=settings)


def _ridge(problem: Problem, place: Rows, form: Form, because: str) -> Iterator[Route]:
    """Equation (1) on stored rows; with form "auto" the softmax form may follow, and is counted."""
    s, speed = problem.sizes, problem.speed
    budget = problem.memory - s.input_copy - (s.stored if place == "memory" and not problem.ready else 0)
    read_seconds = problem.read_seconds(speed.read, place)
    times = {
        "primal": _gram_flops(problem) / speed.gemm64 + 2 * _cholesky_seconds(s.parameters, problem),
        "dual": sum(
            float(m) * m * s.body / speed.gemm64 + _cholesky_seconds(m, problem) for m in (s.n_rows, s.retain * s.classes)
        ),
        "matrix-free": 2 * ITERATIONS * read_seconds,
    }
    after = newton_seconds(problem, place) if form == "auto" else 0.0
    for solver in _solvers(problem):
        route = ROUTE_OF.get(solver, solver)
        rank = 0 if solver == "lsmr" else largest_sketch(s.n_rows, s.parameters, max(budget, 1), rank=DEFAULT_RANK)
        memory = bytes_of_routes(s.n_rows, s.parameters, rank=rank if route == "matrix-free" else 0)[route]
        second = {
            "primal": 8 * s.parameters**2 + _strips(s.parameters),
            "eigen": 16 * s.parameters**2 + _strips(s.parameters),
            "dual": 16 * s.retain * s.classes * s.n_rows,
        }
        memory += second.get(solver, 0)
        memory = max(memory, newton_memory(problem)) if form == "auto" else memory
        settings = {"form": form, "because": because, "solver": solver, "rank": rank}
        label = f"{solver} (equation (1))" if form == "ridge" else f"{solver}, then newton where the loss was not squared"
        yield problem.stored(place, label, seconds=read_seconds + times[route] + after, memory=memory, settings=settings)


def _streamed(problem: Problem, because: str) -> Iterator[Route]:
    """Equation (1) with rows that are summed into A as they come, or never made."""
    if "stream" not in problem.places:
        return
    settings = {"form": "ridge", "because": because}
    ways = {"primal": _summed, "dual": _all_at_once, "matrix-free": _by_products}
    for solver in _solvers(problem):
        route = ROUTE_OF.get(solver, solver)
        if route == "dual" and problem.options["solver"] != "dual":
            continue  # only where asked for: Θ needs all rows at once, which storing them spares
        way, seconds, memory, own = ways[route](problem, solver)
        seconds += problem.checking_seconds + problem.fixed_seconds
        label = f"{solver} (equation (1), {way})"
        yield Route(problem.method, "stream", label, seconds, memory, settings={**settings, "solver": solver, **own})


def _summed(problem: Problem, solver: str) -> tuple[str, float, int, dict[str, int]]:
    """Words, seconds, bytes and settings of a sum over rows that are dropped."""
    s, speed = problem.sizes, problem.speed
    waiting = min(max(math.ceil(s.parameters / (4 * s.classes)), s.chunk), s.samples) * s.body_row_bytes
    sums = 8 * s.parameters**2
    adding = sums + waiting + max(s.chunk * speed.row_bytes, waiting * (1 + 8 // s.itemsize))
    solving = sums * (2 if solver == "primal" else 3) + 24 * 256 * s.parameters
    # A_D, the forgotten samples' part of it, and products with both need the rows again.
    rows = problem.linearising_seconds + (s.samples * 6 * speed.forward + s.forget * speed.rows)
    seconds = rows + _gram_flops(problem) / speed.gemm64 + 2 * _cholesky_seconds(s.parameters, problem)
    return "A summed as rows come", seconds, s.input_copy + CHUNK_BYTES + _strips(s.parameters) + max(adding, solving), {}


def _all_at_once(problem: Problem, solver: str) -> tuple[str, float, int, dict[str, int]]:
    s = problem.sizes
    kernel_seconds = float(s.n_rows) ** 2 * s.parameters / problem.speed.gemm64
    seconds = problem.linearising_seconds + kernel_seconds + 2 * _cholesky_seconds(s.n_rows, problem)
    kernels = 8 * s.n_rows**2 + 16 * s.retain * s.classes * s.n_rows
    return "all rows at once", seconds, s.input_copy + max(16 * s.n_rows * s.parameters, kernels) + CHUNK_BYTES, {}


def _by_products(problem: Problem, solver: str) -> tuple[str, float, int, dict[str, int]]:
    s, speed = problem.sizes, problem.speed
    network = s.input_copy + min(64, s.samples) * speed.row_bytes
    rank = largest_sketch(s.n_rows, s.parameters, max(problem.memory - network, 1), rank=DEFAULT_RANK)
    products = 2 * (ITERATIONS + rank) * 6 * speed.forward * s.samples  # two solves, each with its sketch
    memory = network + bytes_of_routes(s.n_rows, s.parameters, rank=rank)["matrix-free"]
    return "jvp and vjp", problem.linearising_seconds + products, memory, {"rank": rank}


def _solvers(problem: Problem) -> list[str]:
    """The one asked for, or all three with the preferred first."""
    option = problem.options["solver"]
    if option not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, not {option!r}")
    if option != "auto":
        return [str(option)]
    operations = choose(problem.sizes.n_rows, problem.sizes.parameters, 2**62).operations
    direct = sorted(("primal", "dual"), key=lambda solver: operations[solver])
    patient = PATIENCE * ITERATIONS * operations["matrix-free"]
    quick = [solver for solver in direct if operations[solver] <= patient]
    return [*quick, "matrix-free", *(solver for solver in direct if solver not in quick)]


def _strips(size: int) -> int:
    """Bytes of what is copied on the way while a symmetric matrix is completed and reordered, strip by strip."""
    return 3 * 8 * min(size, STRIP) ** 2


def _gram_flops(problem: Problem) -> float:
    """A's body block by halves, and its cross blocks with the head."""
    s = problem.sizes
    return float(s.n_rows) * s.body**2 + 2.0 * s.samples * s.body * (s.parameters - s.body)


def _cholesky_seconds(size: int, problem: Problem) -> float:
    """A factorisation, and the estimate of the condition and refinements around it."""
    return 1.5 * float(size) ** 3 / 3 / problem.speed.cholesky
