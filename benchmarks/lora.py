"""Rows of LoRA on ViT-S/14 against ``vmap(jacrev)`` and the floor: one forward pass and C backward passes over activations alone.

One thread and CPU seconds, so that other work on the machine counts little; everyone with their best chunk, then rounds in which
all take turns, and the median. Needs peft. Run it with ``--threads 1``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fastntk
from benchmarks.common import SHARED, markdown, number
from benchmarks.rivals import vmap_jacrev
from fastntk.base.live_bytes import LiveBytes
from fastntk.models import logits
from fastntk.tangent import checked_engine
from fastntk.tuning import Subset

EVERY_LAYER = r".*blocks\.\d+\..*(qkv|attn\.proj|fc1|fc2)"
CASES: dict[str, dict[str, Any]] = {
    "qkv, rank 8, C = 10, 224 px": {"rank": 8, "targets": ["qkv"], "classes": 10, "size": 224},
    "qkv, rank 8, C = 20, 224 px": {"rank": 8, "targets": ["qkv"], "classes": 20, "size": 224},
    "qkv, proj, fc1, fc2, rank 16, C = 10, 112 px": {"rank": 16, "targets": EVERY_LAYER, "classes": 10, "size": 112},
}
Work = Callable[[Tensor], object]


def run(*, quick: bool) -> dict[str, Any]:
    if quick:
        return {"quick": _case(rank=4, targets=["qkv"], classes=2, size=28, count=1, repeats=1)}
    return {name: _case(**case, count=4, repeats=3) for name, case in CASES.items()}


def _case(*, rank: int, targets: Any, classes: int, size: int, count: int, repeats: int) -> dict[str, Any]:
    model, subset = _vit_small(rank=rank, targets=targets, classes=classes, size=size)
    images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))
    engine = checked_engine(model, subset, images)
    jobs: dict[str, Work] = {"floor": _floor(model, classes), "fastntk": engine.rows, "vmap(jacrev)": vmap_jacrev(model, subset)}
    chunks = {name: _best_chunk(work, images) for name, work in jobs.items()}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, work in jobs.items():
            times[name].append(_seconds(work, images, chunks[name]))
    seconds = {name: statistics.median(values) / count for name, values in times.items()}
    return {
        "images": count,
        "classes": classes,
        "parameters": subset.numel,
        "chunk": chunks,
        "seconds_per_image": seconds,
        "ours_over_floor": seconds["fastntk"] / seconds["floor"],
        "times_slower": seconds["vmap(jacrev)"] / seconds["fastntk"],
        "live_bytes_one_image": {name: _live_bytes(work, images[:1]) for name, work in jobs.items() if name != "floor"},
        "relative_difference": {
            "float32": _difference(model, subset, images[:1]),
            "float64": _difference(model.double(), subset, images[:1].double()),
        },
    }


def _vit_small(*, rank: int, targets: Any, classes: int, size: int) -> tuple[nn.Module, Subset]:
    file = SHARED / "weights" / "vit_small_patch14_dinov2.safetensors"
    weights = file if file.exists() else None
    model = fastntk.build_model("timm:vit_small_patch14_dinov2", num_classes=classes, image_size=size, weights=weights)
    subset = fastntk.tune(model, "lora+head", lora_rank=rank, lora_targets=targets)
    noise = torch.randn(subset.numel, generator=torch.Generator().manual_seed(0))
    subset.set(subset.get() + 0.02 * noise)  # where B and the head are zero, so are rows
    return model, subset


def _floor(model: nn.Module, classes: int) -> Work:
    """Backward passes from the logits to where the first adapter enters, without any parameter's gradient."""
    first = model.get_submodule("blocks.0.attn.qkv")

    def work(images: Tensor) -> None:
        flags = {parameter: parameter.requires_grad for parameter in model.parameters()}
        model.requires_grad_(False)
        hook = first.register_forward_hook(lambda module, args, output: output.requires_grad_())
        try:
            output = logits(model, images)
            for k in range(classes):
                seed = torch.zeros_like(output)
                seed[:, k] = 1
                output.backward(seed, retain_graph=k + 1 < classes)
        finally:
            hook.remove()
            for parameter, flag in flags.items():
                parameter.requires_grad_(flag)

    return work


def _seconds(work: Work, images: Tensor, chunk: int) -> float:
    start = time.process_time()
    for part in images.split(chunk):
        work(part)
    return time.process_time() - start


def _best_chunk(work: Work, images: Tensor) -> int:
    work(images[:1])
    times = {chunk: _seconds(work, images, chunk) for chunk in (1, 2, 4) if chunk <= len(images)}
    return min(times, key=lambda chunk: times[chunk])


def _live_bytes(work: Work, image: Tensor) -> int:
    with LiveBytes() as count:
        work(image)
    return count.peak


def _difference(model: nn.Module, subset: Subset, image: Tensor) -> float:
    expected = vmap_jacrev(model, subset)(image)
    return float((fastntk.jacobian(model, subset, image) - expected).norm() / expected.norm())


def table(result: dict[str, Any]) -> str:
    head = ["LoRA on ViT-S/14", "d", "floor, ms", "fastntk, ms", "over the floor", "vmap(jacrev), ms", "over fastntk",
            "live memory, MB: fastntk / vmap", "difference, float32 / float64"]  # fmt: skip
    return markdown(head, [_line(name, case) for name, case in result.items()])


def _line(name: str, case: dict[str, Any]) -> list[object]:
    seconds, live, difference = case["seconds_per_image"], case["live_bytes_one_image"], case["relative_difference"]
    return [
        name,
        case["parameters"],
        number(1e3 * seconds["floor"]),
        number(1e3 * seconds["fastntk"]),
        f"{case['ours_over_floor']:.2f}",
        number(1e3 * seconds["vmap(jacrev)"]),
        f"{case['times_slower']:.2f}",
        f"{live['fastntk'] / 1e6:.0f} / {live['vmap(jacrev)'] / 1e6:.0f}",
        f"{difference['float32']:.0e} / {difference['float64']:.0e}",
    ]
