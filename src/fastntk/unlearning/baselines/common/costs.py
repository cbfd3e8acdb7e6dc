"""What the baselines' costs are counted in: training passes, one sample once forward and once backward each."""

from __future__ import annotations

import math
from dataclasses import replace

from fastntk.planning import Problem, Route

RATES = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
"""Learning rates that several search spaces share."""
DENSE = 1.0
"""Gradients of single samples by vectors, with the head's block written out, over rows of as many backward passes."""


def count_of(problem: Problem, name: str, *, least: int = 1) -> int:
    """An option that counts; one that cannot be counted is refused by the method itself, and costs the least here."""
    value = problem.options[name]
    return value if isinstance(value, int) and value > 0 else least


def paired_passes(problem: Problem) -> float:
    """Forgotten samples in an epoch that puts a batch of them beside every batch of retained ones."""
    s, size = problem.sizes, count_of(problem, "batch_size")
    return math.ceil(s.retain / size) * s.forget / math.ceil(max(s.forget, 1) / size)


def gradients_route(problem: Problem, *, samples: int, vectors: int) -> Route:
    """Squared gradients of single samples: a forward pass for the outputs, then a sweep of backward passes."""
    s, speed = problem.sizes, problem.speed
    sweep = speed.rows * (1 + vectors) / (1 + s.classes)
    seconds = samples * (2 * speed.forward + DENSE * sweep)
    route = problem.passes(0, batch=1, extra_seconds=seconds, note="gradients of samples")
    memory = min(32, samples) * (speed.row_bytes + 4 * vectors * s.parameters * s.itemsize)
    return replace(route, memory=route.memory + memory)


def head_path_seconds(problem: Problem) -> float:
    """The recorded path walked once: two products with the head a visit, and some small operations a step."""
    path = problem.trace
    assert path is not None
    operations = 4.0 * path.visits * path.features * problem.sizes.classes
    return operations / problem.speed.gemm32 + path.steps * 60 * problem.speed.dispatch
