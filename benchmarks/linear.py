"""Time of accumulating A against the number of images: it grows linearly."""

from __future__ import annotations

from typing import Any

import torch

import fastntk
from benchmarks.common import interleaved, markdown
from fastntk.tangent import accumulate, checked_engine


def run(*, quick: bool) -> dict[str, Any]:
    counts = (32, 64, 128) if quick else (500, 1000, 2000)
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    subset = fastntk.tune(model, "norm+head")
    generator = torch.Generator().manual_seed(0)
    subset.set(subset.get() + 0.02 * torch.randn(subset.numel, generator=generator))
    images = torch.randn(counts[-1], 3, 32, 32, generator=generator)
    engine = checked_engine(model, subset, images)
    accumulate(engine, images[:32], dtype=torch.float32)
    seconds = interleaved(
        {str(n): (lambda n=n: accumulate(engine, images[:n], dtype=torch.float32)) for n in counts},
        repeats=1 if quick else 3,
    )
    return {"parameters": subset.numel, "seconds": seconds}


def table(result: dict[str, Any]) -> str:
    seconds = {int(n): s for n, s in result["seconds"].items()}
    first = min(seconds)
    lines = [[n, f"{s:.2f}", f"{1e3 * s / n:.2f}", f"{s / n / (seconds[first] / first):.2f}"] for n, s in seconds.items()]
    return markdown([f"images (ResNet-20, d = {result['parameters']})", "s", "ms an image", "relative to the first"], lines)
