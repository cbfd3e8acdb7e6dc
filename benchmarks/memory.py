"""Peak resident growth while A is accumulated (float32) and both systems of the closed form are solved (float64).

ResNet-110, norm+head, d = 8 746, 10 classes, in a process of its own; beside it what ``plan`` expects of equation (1) with A
summed as rows come. Wanted: below 2 GB for 5 000 images, and the estimate within a factor of 1.5.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import fastntk
from benchmarks.common import PeakMemory, child, markdown, timed
from fastntk.linalg import GramAccumulator, PrimalCholesky
from fastntk.tangent import accumulate, checked_engine, iter_rows

LIMIT = 2e9
FACTOR = 1.5


def run(*, quick: bool) -> dict[str, Any]:
    count = 300 if quick else 5000
    measured = child("benchmarks.memory", "measure", count)
    expected = child("benchmarks.memory", "plan", count)["memory"]
    ratio = expected / measured["growth"]
    return {
        **measured,
        "planned": expected,
        "planned_over_measured": ratio,
        "below_limit": measured["growth"] < LIMIT,
        "plan_within_factor": 1 / FACTOR <= ratio <= FACTOR,
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        ["peak growth", f"{result['growth'] / 1e9:.2f} GB", f"wanted < {LIMIT / 1e9:g} GB"],
        ["plan's estimate", f"{result['planned'] / 1e9:.2f} GB", f"{result['planned_over_measured']:.2f} × measured"],
        [
            "seconds",
            f"{result['seconds']:.0f}",
            f"residuals {result['residuals'][0]:.1e}, {result['residuals'][1]:.1e}",
        ],
    ]
    what = f"ResNet-110, norm+head (d = {result['parameters']}), {result['images']} images × 10 classes"
    return markdown([what, "", ""], lines)


def _run(count: int) -> fastntk.Run:
    model = fastntk.build_model("resnet110", num_classes=10)
    subset = fastntk.tune(model, "norm+head")
    generator = torch.Generator().manual_seed(0)
    subset.set(subset.get() + 0.02 * torch.randn(subset.numel, generator=generator))
    samples = fastntk.Samples(torch.randn(count, 3, 32, 32, generator=generator), torch.arange(count) % 10)
    return fastntk.Run(model, subset, subset.get(), samples, recipe=fastntk.Recipe())


def _measure(count: int) -> dict[str, Any]:
    origin = _run(count)
    samples = origin.data
    engine = checked_engine(origin.model, origin.subset, samples.inputs)
    targets = torch.nn.functional.one_hot(samples.labels, 10).double() - 0.1
    cut = count - count // 10
    residuals: list[float] = []

    def both() -> None:
        sums = accumulate(engine, samples.inputs[:cut], targets[:cut], dtype=torch.float32)
        residuals.append(_solve(sums, keep=True))
        for part, rows in iter_rows(engine, samples.inputs[cut:]):
            sums.add(rows, targets[cut:][part])
        residuals.append(_solve(sums, keep=False))

    with PeakMemory() as memory:
        seconds = timed(both)
    return {
        "growth": memory.growth,
        "peak": memory.peak,
        "seconds": seconds,
        "residuals": residuals,
        "images": count,
        "parameters": origin.subset.numel,
    }


def _solve(sums: GramAccumulator, *, keep: bool) -> float:
    damping = 1e-2 * sums.trace / sums.d
    matrix = sums.matrix() if keep else sums.take_matrix()
    return PrimalCholesky().factorise(matrix, damping, overwrite=True).solve(sums.rhs).checked().residual


def _plan(count: int) -> dict[str, Any]:
    options: dict[str, Any] = {"rows": "stream", "solver": "primal", "memory_budget": 10**11}
    return {"memory": fastntk.plan(_run(count), classes=[0], method="fast-ntk", **options).route("fast-ntk").memory}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    print(json.dumps({"measure": _measure, "plan": _plan}[sys.argv[1]](int(sys.argv[2]))))
