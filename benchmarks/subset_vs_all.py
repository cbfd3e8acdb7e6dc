"""The tuned subset against all parameters on ResNet-20 at 20 images a class: the paper's motivation in one table."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import fastntk
from benchmarks.common import PeakMemory, child, markdown, timed
from fastntk.tangent import checked_engine
from fastntk.tangent.in_memory import rows_in_memory

SPECS = ("norm+head", "all")


def run(*, quick: bool) -> dict[str, Any]:
    return {spec: child("benchmarks.subset_vs_all", spec, 1 if quick else 20) for spec in SPECS}


def table(result: dict[str, Any]) -> str:
    small, large = (result[spec] for spec in SPECS)
    keys = {
        "parameters": ("tuned parameters d", lambda v: f"{v}"),
        "rows_seconds": ("rows, s", lambda v: f"{v:.1f}"),
        "rows_bytes": ("rows, MB", lambda v: f"{v / 1e6:.0f}"),
        "kernel_seconds": ("kernel JJᵀ (float64), s", lambda v: f"{v:.1f}"),
        "growth": ("peak memory growth, MB", lambda v: f"{v / 1e6:.0f}"),
    }
    lines = [[name, form(small[k]), form(large[k]), f"{large[k] / small[k]:.0f} ×"] for k, (name, form) in keys.items()]
    return markdown([f"ResNet-20, {small['images']} images × 10 classes", *SPECS, "ratio"], lines)


def _measure(spec: str, per_class: int) -> dict[str, Any]:
    count = 10 * per_class
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    subset = fastntk.tune(model, spec)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.get_parameter("fc.weight").normal_(0, 0.1, generator=generator)
    images = torch.randn(count, 3, 32, 32, generator=generator)
    engine = checked_engine(model, subset, images)
    figures: dict[str, Any] = {"images": count, "parameters": subset.numel}
    outputs: list[Any] = []
    with PeakMemory() as memory:
        figures["rows_seconds"] = timed(lambda: outputs.append(rows_in_memory(engine, images)))
        rows = outputs[0]
        figures["rows_bytes"] = rows.body.nbytes + rows.features.nbytes
        figures["kernel_seconds"] = timed(lambda: outputs.append(rows.kernel(torch.float64)))
    return {**figures, "growth": memory.growth}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]))))
