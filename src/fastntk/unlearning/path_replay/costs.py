"""What a request by ``path-replay`` takes, by depth: the plan's side of it. Depths come from its survey of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fastntk.linalg.choose import CHUNK_BYTES
from fastntk.planning import Problem, Route
from fastntk.planning.problem import Rows, without_trace
from fastntk.unlearning.path_replay.depths import DepthSize, parsed, rungs, size_at
from fastntk.unlearning.path_replay.options import exact_epochs, path_epochs, share
from fastntk.unlearning.path_replay.rewriting import IN_MEMORY

OPERATIONS_A_STEP = 130
"""Small tensor operations of one step of a replay."""
FLOPS = 1e10
"""Floating-point operations a second that estimates assume where none were measured."""


def cost(problem: Problem) -> list[Route]:
    """``auto`` first where it is asked for, then every depth there is; else the one asked for, in memory or on disk."""
    if problem.trace is None:
        return [without_trace(Route(problem.method, "none", "replay", math.nan))]
    sizes: Sequence[DepthSize] = problem.surveyed
    options = problem.options
    depth = parsed(options["depth"])  # type: ignore[arg-type]
    epochs = len(path_epochs(options["checkpoints"], problem.trace.epochs, least=1))  # type: ignore[arg-type]
    points = len(path_epochs(options["correction"], problem.trace.epochs, least=0))  # type: ignore[arg-type]
    if depth == "auto":
        exact_option: Any = options["exact"]
        exact = len(exact_epochs(exact_option, problem.trace.epochs, depth, own_loop=problem.trace.own_loop))
        ladder = rungs(sizes, share(options["budget"]), epochs, problem.trace.epochs, exact=exact)
        auto = _routes(problem, ladder, epochs, points, "auto")
        while len(ladder) > 1 and not (auto[0].fits and auto[0].memory <= problem.memory):
            shallower = ladder[-1].depth - 1
            ladder = [*ladder[:-1], sizes[shallower]] if shallower > ladder[-2].depth else ladder[:-1]
            auto = _routes(problem, ladder, epochs, points, "auto")
        return [
            *auto,
            *(route for size in sizes for route in _routes(problem, [size], epochs, points, _name(size, sizes))),
        ]
    size = size_at(sizes, depth)
    return _routes(problem, [size], epochs, points, _name(size, sizes))


def _name(size: DepthSize, sizes: Sequence[DepthSize]) -> str:
    if not size.depth:
        return "depth head"
    return "depth all" if size is sizes[-1] else f"depth {size.depth}"


def _routes(problem: Problem, ladder: Sequence[DepthSize], checkpoints: int, points: int, name: str) -> list[Route]:
    """Walks at these depths, with rows in memory or on disk where there are any."""
    s, speed, trace = problem.sizes, problem.speed, problem.trace
    assert trace is not None
    step = OPERATIONS_A_STEP * speed.dispatch
    head = 12.0 * trace.visits * s.classes * trace.features / FLOPS
    seconds, most = 0.0, 0
    for size in ladder:
        rows = s.samples * s.classes * size.numbers * s.itemsize
        read_seconds = 3.0 * trace.epochs * min(2, checkpoints) * rows / (speed.replay if math.isfinite(speed.replay) else 2e9)
        walks = 2 if points and size.depth else 1
        seconds += walks * (trace.steps * step + head + (read_seconds if size.depth else 0.0))
        if size.depth:
            seconds += checkpoints * s.samples * size.passes * speed.step + 2 * points * s.samples * speed.forward
            most = max(most, checkpoints * rows)
    exact_option: Any = problem.options["exact"]
    depth = "auto" if name == "auto" else ladder[-1].depth
    exact = len(exact_epochs(exact_option, trace.epochs, depth, own_loop=trace.own_loop))
    if most:
        seconds += exact * s.retain * speed.step
    trace_bytes = trace.visits * trace.features * s.itemsize  # the new trace, which goes to a folder where it is large
    work = (trace_bytes if trace_bytes <= IN_MEMORY * problem.memory else 0) + CHUNK_BYTES + 16 * 8 * s.parameters
    base = problem.fixed_seconds
    settings = {"ladder": tuple(size.depth for size in ladder)}
    if most == 0:
        return [Route(problem.method, "none", name, seconds + base, work, settings=settings)]
    making = s.input_copy + s.chunk * (problem.speed.row_bytes + s.classes * ladder[-1].numbers * s.itemsize)
    places: list[Rows] = [place for place in problem.places if place in ("memory", "disk")]
    if not places:
        why = "its rows are read at every step, and cannot be made as needed: rows are 'memory' or 'disk'"
        return [Route(problem.method, "stream", name, seconds + base, settings=settings, fits=False, why_not=why)]
    needs = {place: work + making + (most if place == "memory" else 0) for place in places}
    place = next((place for place in places if needs[place] <= problem.memory), places[-1])
    return [
        Route(problem.method, place, name, seconds + base, needs[place], disk=most if place == "disk" else 0, settings=settings)
    ]
