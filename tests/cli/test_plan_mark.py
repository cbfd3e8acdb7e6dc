"""The table of ``fastntk plan``: one route is marked, that of the command it ends with."""

from __future__ import annotations

import math

import pytest

from fastntk.cli.plan import table_with_one_mark
from fastntk.planning import Calibration, Plan, Route, Sizes, make_plan

SPEED = Calibration(
    forward=1e-3, rows=1e-2, step=3e-3, row_bytes=1_000_000, gemm32=1e11, gemm64=5e10, cholesky=3e10, read=1e10,
    dispatch=1e-6, threads=2, read_many=2e9, replay=3e9,
)  # fmt: skip
SIZES = Sizes(samples=1000, retain=900, classes=10, parameters=2026, body=1376, features=64, itemsize=4, chunk=20, input_copy=0)
ROUTES = [
    Route("path-replay", "memory", "auto", 5.0, memory=2_000_000),
    Route("path-replay", "none", "depth head", 0.1, memory=1000),
    Route("fast-ntk", "memory", "newton", 8.0, memory=2_000_000),
    Route("fast-ntk", "stream", "primal", 9.0, memory=1000),
    Route("tangent-replay", "memory", "replays", math.nan, memory=1000),
]


def planned(*more: Route, memory: int = 10_000_000) -> Plan:
    return make_plan(SIZES, SPEED, [*ROUTES, *more], memory=memory, disk=0, retrain_seconds=7.0, epochs=3)


def marked_lines(plan: Plan, method: str) -> list[str]:
    return [line for line in table_with_one_mark(plan, method).splitlines() if "->" in line]


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("path-replay", "path-replay: rows in memory, auto"),
        ("fast-ntk", "fast-ntk: rows in memory, newton"),
        ("tangent-replay", "tangent-replay: rows in memory, replays"),
        ("retrain", "retrain"),
    ],
)
def test_one_route_is_marked(method: str, route: str) -> None:
    (line,) = marked_lines(planned(), method)
    assert line.startswith(f"->  {route}  ")


def test_the_mark_is_at_the_route_that_fits() -> None:
    (line,) = marked_lines(planned(memory=10_000), "fast-ntk")
    assert line.startswith("->  fast-ntk: rows made as needed, primal  ")


def test_retrain_as_a_route_of_its_own() -> None:
    (line,) = marked_lines(planned(Route("retrain", "none", "", 7.0)), "retrain")
    assert line.startswith("->  retrain: no rows  ")


def test_nothing_else_of_the_table_changes() -> None:
    plan = planned()
    before, after = plan.table(), table_with_one_mark(plan, "fast-ntk")
    assert before.count("->") == 3
    assert before.replace("->", "  ") == after.replace("->", "  ")
