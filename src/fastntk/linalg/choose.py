"""Which solver, before anything is computed: from the rows n·C, the columns d and the memory allowed.

    primal        8·d² bytes (+ itemsize·d² where A is summed in float32)     n·C·d² + d³/3 operations
    dual          8·(n·C)²                                                     (n·C)²·d + (n·C)³/3
    matrix-free   vectors, one chunk of rows, and 56·d·r for a sketch          4·n·C·d per iteration

A direct route is taken wherever one fits, the one with fewer operations if both do, unless it takes over ten times the
operations of 300 matrix-free iterations. The rows themselves are
not counted: whoever stores them knows. Should Cholesky break down, the eigendecomposition takes another
8·d² (or 8·(n·C)²), not counted either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastntk.base.errors import BudgetError, InputError, listing
from fastntk.base.text import byte_size
from fastntk.linalg.matrix_free import DEFAULT_RANK

TYPICAL_ITERATIONS = 300
PATIENCE = 10.0
"""A direct solve is exact and needs no convergence: it may take this many times the operations of an iterative one."""
ROUTES = ("primal", "dual", "matrix-free")
ROUTE_OF = {"eigen": "primal", "cg": "matrix-free", "lsmr": "matrix-free"}
"""The route that a solver goes by, where it is not a route's own name."""
# One chunk of rows in float64 and what products with it need; products with a whole sketch take larger chunks.
CHUNK_BYTES = 16_000_000
SKETCH_CHUNK_BYTES = 80_000_000
# Copies of a (d, r) matrix that exist at once while a sketch is made.
SKETCH_COPIES = 7


@dataclass(frozen=True)
class Choice:
    """The solver, why, and what each route takes: ``bytes_needed``, ``operations`` (matrix-free: an iteration).

    ``rank`` is that of the sketch a matrix-free solve can afford, 0 for none and for direct routes.
    """

    solver: str
    reason: str
    rank: int
    bytes_needed: dict[str, int]
    operations: dict[str, float]

    def details(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return {
            "solver": self.solver,
            "reason": self.reason,
            "rank": self.rank,
            "bytes": dict(self.bytes_needed),
            "operations": dict(self.operations),
        }


def bytes_of_routes(n_rows: int, d: int, *, itemsize: int = 8, rank: int = 0) -> dict[str, int]:
    """Return the peak bytes of each route beside the rows.

    ``itemsize`` is that of the dtype A is summed in, ``rank`` that of a matrix-free solve's sketch (0: none).
    """
    extra = itemsize if itemsize < 8 else 0
    rank = min(rank, n_rows, d)
    sketch = SKETCH_COPIES * 8 * d * rank + SKETCH_CHUNK_BYTES if rank else CHUNK_BYTES
    return {
        "primal": (8 + extra) * d * d + CHUNK_BYTES,
        "dual": 8 * n_rows * n_rows + 8 * (4 * d + 4 * n_rows) + CHUNK_BYTES // 2,
        "matrix-free": 8 * (8 * d + 4 * n_rows) + sketch,
    }


def choose(n_rows: int, d: int, memory_budget: int, *, itemsize: int = 8, rank: int = DEFAULT_RANK) -> Choice:
    """Choose a route for n·C = ``n_rows`` rows of d columns; BudgetError with advice where none fits.

    ``memory_budget`` is in bytes; ``itemsize`` 4 or 8 says whether A is summed in float32 or float64; ``rank``
    is the sketch wanted for a matrix-free solve, halved until it fits.
    """
    if n_rows < 1 or d < 1:
        raise InputError(f"a system needs rows and columns, not {n_rows} x {d}")
    rank = largest_sketch(n_rows, d, memory_budget, rank=rank)
    memory = bytes_of_routes(n_rows, d, itemsize=itemsize, rank=rank)
    operations = {
        "primal": float(n_rows) * d * d + float(d) ** 3 / 3,
        "dual": float(n_rows) ** 2 * d + float(n_rows) ** 3 / 3,
        "matrix-free": 4.0 * n_rows * d,
    }
    size, budget = f"{n_rows} rows x {d} columns", byte_size(memory_budget)
    direct = [route for route in ("primal", "dual") if memory[route] <= memory_budget]
    if direct:
        solver = min(direct, key=lambda route: operations[route])
        reason = f"{size}: {solver} needs {byte_size(memory[solver])} of {budget}"
        if len(direct) == 2:
            reason += " and fewer operations than " + ("dual" if solver == "primal" else "primal")
        iterative = TYPICAL_ITERATIONS * operations["matrix-free"]
        if operations[solver] > PATIENCE * iterative and memory["matrix-free"] <= memory_budget:
            times = f"{operations[solver] / iterative:.0f} times the operations of {TYPICAL_ITERATIONS} iterations"
            return Choice("matrix-free", f"{size}: {solver} fits {budget} but takes {times}", rank, memory, operations)
        return Choice(solver, reason, 0, memory, operations)
    if memory["matrix-free"] <= memory_budget:
        sizes = f"neither primal ({byte_size(memory['primal'])}) nor dual ({byte_size(memory['dual'])})"
        return Choice("matrix-free", f"{size}: {sizes} fits {budget}", rank, memory, operations)
    raise BudgetError(refusal(n_rows, d, memory_budget, itemsize=itemsize))


def largest_sketch(n_rows: int, d: int, memory_budget: int, *, rank: int) -> int:
    """Return the largest sketch rank, halving from ``rank``, whose matrix-free solve fits; 0 if none does."""
    while rank > 0 and bytes_of_routes(n_rows, d, rank=rank)["matrix-free"] > memory_budget:
        rank //= 2
    return rank


def refusal(n_rows: int, d: int, memory_budget: int, *, itemsize: int = 8, solver: str | None = None) -> str:
    """Say what does not fit (the named solver, or all), by how much, and what would help."""
    memory = bytes_of_routes(n_rows, d, itemsize=itemsize)
    sizes = ", ".join(f"{route} {byte_size(memory[route])}" for route in ROUTES)
    fits = [route for route in ROUTES if memory[route] <= memory_budget]
    if solver is not None and fits:
        return (
            f"solver {solver!r} for {n_rows} rows x {d} columns does not fit the memory budget of "
            f"{byte_size(memory_budget)} ({sizes}); {listing(fits)} would, and solver='auto' picks"
        )
    return (
        f"no solver for {n_rows} rows x {d} columns fits the memory budget of {byte_size(memory_budget)}: {sizes}. "
        f"Allow at least {byte_size(min(memory.values()))}, tune fewer parameters (a smaller subset), "
        "or use fewer samples or output probes"
    )
