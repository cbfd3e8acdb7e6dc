"""The paper's largest case in size: ViT-Base, prompts+head (d = 46 090), 10 classes × 500 images.

Neither d×d (17 GB) nor n·C × n·C (20 GB) fits comfortably: rows go to disk (about 8 GB) and the solve is matrix-free.
Random weights, 16 px (2 tokens): the sizes are what is measured, not the network. Wanted: below 16 GB resident.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import fastntk
from benchmarks.common import PeakMemory, child, markdown, timed
from fastntk.linalg import MatrixFree
from fastntk.tangent import checked_engine
from fastntk.tangent.on_disk import rows_on_disk

LIMIT = 16e9


def run(*, quick: bool) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="fastntk-largest-", dir="."))
    try:
        return child("benchmarks.largest", folder / "rows", 30 if quick else 5000)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(result: dict[str, Any]) -> str:
    lines = [
        ["rows to disk", f"{result['rows_seconds']:.0f} s", f"{result['rows_bytes'] / 1e9:.2f} GB"],
        ["matrix-free solve", f"{result['solve_seconds']:.0f} s", f"{result['iterations']} iterations, residual "
         f"{result['residual']:.1e} ({result['status']})"],
        ["peak resident", f"{result['peak'] / 1e9:.2f} GB", f"wanted < {LIMIT / 1e9:g} GB (mapped file included)"],
    ]  # fmt: skip
    return markdown([f"ViT-B/16, d = {result['parameters']}, {result['images']} images × 10 classes", "", ""], lines)


def _measure(folder: Path, count: int) -> dict[str, Any]:
    model = fastntk.build_model("timm:vit_base_patch16_224", num_classes=10, image_size=16)
    subset = fastntk.tune(model, "prompts+head")
    generator = torch.Generator().manual_seed(0)
    subset.set(subset.get() + 0.02 * torch.randn(subset.numel, generator=generator))
    images = torch.randn(count, 3, 16, 16, generator=generator)
    targets = torch.nn.functional.one_hot(torch.arange(count) % 10, 10).double() - 0.1
    engine = checked_engine(model, subset, images)
    outputs: list[Any] = []
    with PeakMemory() as memory:
        rows_seconds = timed(lambda: outputs.append(rows_on_disk(engine, images, folder)))
        rows = outputs.pop()
        rows.product_dtype = torch.float32
        damping = 1e-2 * float(rows.column_norms2().sum()) / subset.numel
        solver = MatrixFree(tol=1e-5, max_iterations=500)
        solve_seconds = timed(lambda: outputs.append(solver.solve(rows, targets, damping=damping)))
    solution = outputs.pop()
    return {
        "images": count,
        "parameters": subset.numel,
        "rows_seconds": rows_seconds,
        "rows_bytes": sum(file.stat().st_size for file in folder.glob("*.bin")),
        "solve_seconds": solve_seconds,
        "growth": memory.growth,
        "peak": memory.peak,
        "below_limit": memory.peak < LIMIT,
        **{key: value for key, value in solution.details().items() if key in ("iterations", "residual", "status")},
    }


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    print(json.dumps(_measure(Path(sys.argv[1]), int(sys.argv[2]))))
