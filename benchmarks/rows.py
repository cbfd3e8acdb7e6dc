"""Jacobian rows against other ways to make them, and against the floor (C + 1)·t_forward.

Everyone gets their best chunk size, found beforehand, and for the floor the faster memory layout; then rounds in which
all take turns, and the median. Before that, everybody's rows are compared with ours.
"""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fastntk
from benchmarks.common import SHARED, interleaved, markdown, number, timed
from benchmarks.rivals import ONE_BY_ONE, RIVALS, Cannot
from fastntk.models import logits
from fastntk.tangent import RowEngine, checked_engine
from fastntk.training.network import fast_layout
from fastntk.tuning import Subset

WANTED = {"vmap(jacrev)": 2.0, "per-sample loop": 5.0}
FLOOR_WANTED = 1.4


def run(*, quick: bool) -> dict[str, Any]:
    cases = {
        "ResNet-20, norm+head, C = 10, 32 px": (_resnet20, *((8, (4, 8)) if quick else (128, (4, 8, 16, 32, 64, 128)))),
        "ViT-S/14, prompts+head, C = 20, 112 px": (_vit_small, *((1, (1,)) if quick else (8, (1, 2, 4, 8)))),
    }
    return {name: _case(build, count, chunks, quick=quick) for name, (build, count, chunks) in cases.items()}


def _resnet20() -> tuple[nn.Module, Subset, tuple[int, ...]]:
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    return model, fastntk.tune(model, "norm+head"), (3, 32, 32)


def _vit_small() -> tuple[nn.Module, Subset, tuple[int, ...]]:
    file = SHARED / "weights" / "vit_small_patch14_dinov2.safetensors"
    model = fastntk.build_model(
        "timm:vit_small_patch14_dinov2", num_classes=20, image_size=112, weights=file if file.exists() else None
    )
    return model, fastntk.tune(model, "prompts+head"), (3, 112, 112)


def _case(
    build: Callable[[], tuple[nn.Module, Subset, tuple[int, ...]]], count: int, chunks: tuple[int, ...], *, quick: bool
) -> dict[str, Any]:
    model, subset, shape = build()
    generator = torch.Generator().manual_seed(0)
    subset.set(subset.get() + 0.02 * torch.randn(subset.numel, generator=generator))  # a zero head has zero rows
    images = torch.randn(count, *shape, generator=generator)
    # As unlearning does it: on a copy whose convolutions have the memory layout that CPUs prefer.
    own = copy.deepcopy(model).to(memory_format=torch.channels_last)
    engine = checked_engine(own, subset.on(own), images)
    fast = fast_layout(own, images)
    jobs: dict[str, tuple[Callable[[Tensor], object], Tensor, int]] = {}
    skipped: dict[str, str] = {}
    ours, best_ours = _best_chunk(engine.rows, fast, chunks)
    jobs["fastntk"] = (ours, fast, best_ours)
    expected = engine.rows(fast[:2]).dense()
    errors = {}
    for name, prepare in RIVALS.items():
        few = images[: max(1, count // 8)] if name in ONE_BY_ONE else images
        try:
            make = prepare(model, subset)
            errors[name] = float((make(images[:2]) - expected).norm() / expected.norm())
            if errors[name] > 1e-3:
                raise Cannot(f"its rows differ by {errors[name]:.1e}")
            jobs[name] = (*_layout_and_chunk(make, few, chunks if name not in ONE_BY_ONE else (len(few),)),)
        except Exception as error:  # whatever a package raises is its result
            skipped[name] = str(error).splitlines()[0] if isinstance(error, Cannot) else f"{type(error).__name__}: {error}"[:200]
    forward_chunks = (*chunks, 2 * chunks[-1])
    many = torch.randn(2 * count, *shape, generator=generator)
    candidates = [_layout_and_chunk(lambda x, m=m: _forward(m, x), many, forward_chunks) for m in (model, own)]
    jobs["forward"] = min(candidates, key=lambda job: min(timed(lambda: _over(*job)) for _ in range(3)))
    medians = interleaved({name: (lambda job=job: _over(*job)) for name, job in jobs.items()}, repeats=1 if quick else 5)
    per_image = {name: seconds / len(jobs[name][1]) for name, seconds in medians.items()}
    floor = (engine.backwards + 1) * per_image["forward"]
    return {
        "images": count,
        "classes": engine.classes,
        "parameters": subset.numel,
        "chunk": {name: job[2] for name, job in jobs.items()},
        "seconds_per_image": per_image,
        "floor_seconds_per_image": floor,
        "ours_over_floor": per_image["fastntk"] / floor,
        "times_slower": {name: per_image[name] / per_image["fastntk"] for name in RIVALS if name in per_image},
        "relative_difference": errors,
        "cannot": skipped,
        "where_time_goes": _profile(engine, fast[:best_ours]),
    }


def _forward(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return logits(model, x)


def _over(make: Callable[[Tensor], object], images: Tensor, chunk: int) -> None:
    for part in images.split(chunk):
        make(part)


def _best_chunk(
    make: Callable[[Tensor], object], images: Tensor, chunks: tuple[int, ...]
) -> tuple[Callable[[Tensor], object], int]:
    make(images[:1])
    fitting = [c for c in chunks if c <= len(images)] or [len(images)]
    times = {c: min(timed(lambda c=c: _over(make, images, c)) for _ in range(2)) for c in fitting}
    return make, min(times, key=lambda c: times[c])


def _layout_and_chunk(
    make: Callable[[Tensor], object], images: Tensor, chunks: tuple[int, ...]
) -> tuple[Callable[[Tensor], object], Tensor, int]:
    """The faster of plain and channels-last images, each with its best chunk."""
    layouts = [images, images.contiguous(memory_format=torch.channels_last)]
    candidates = [(layout, _best_chunk(make, layout, chunks)[1]) for layout in layouts]
    times = [min(timed(lambda f=f: _over(make, *f)) for _ in range(2)) for f in candidates]
    layout, chunk = candidates[times.index(min(times))]
    return make, layout, chunk


KINDS = {
    "convolution": ("conv",),
    "attention": ("attention", "softmax"),
    "matrix products": ("mm", "bmm", "addmm", "linear"),
    "sums (row assembly)": ("sum", "mean"),
    "copies": ("copy", "clone", "cat", "zero", "fill", "contiguous"),
    "element by element": ("mul", "add", "sub", "div", "threshold", "relu", "gelu", "norm", "sqrt", "neg", "pad"),
}


def _profile(engine: RowEngine, images: Tensor) -> dict[str, float]:
    """Shares of operator time, by kind."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        engine.rows(images)
    shares: collections.Counter[str] = collections.Counter()
    for event in profiler.key_averages():
        name = event.key.lower()
        matches = (kind for kind, words in KINDS.items() if any(word in name for word in words))
        shares[next(matches, "other")] += event.self_cpu_time_total
    total = sum(shares.values())
    return {kind: round(share / total, 4) for kind, share in shares.most_common()}


def table(result: dict[str, Any]) -> str:
    return "\n\n".join(_case_table(name, case) for name, case in result.items())


def _case_table(name: str, case: dict[str, Any]) -> str:
    per_image, chunk = case["seconds_per_image"], case["chunk"]
    lines: list[list[object]] = [
        ["floor (C + 1)·t_forward", chunk["forward"], number(1e3 * case["floor_seconds_per_image"]),
         f"{1 / case['ours_over_floor']:.2f}", ""],
        ["**fastntk**", chunk["fastntk"], number(1e3 * per_image["fastntk"]), "1",
         f"{case['ours_over_floor']:.2f} × the floor (wanted ≤ {FLOOR_WANTED})"],
    ]  # fmt: skip
    for rival in RIVALS:
        if rival in per_image:
            wanted = f"wanted ≥ {WANTED[rival]:g}" if rival in WANTED else ""
            size = 1 if rival in ONE_BY_ONE else chunk[rival]
            lines.append([rival, size, number(1e3 * per_image[rival]), f"{case['times_slower'][rival]:.2f}", wanted])
        else:
            lines.append([rival, "", "cannot", "", case["cannot"].get(rival, "")])
    shares = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in itertools.islice(case["where_time_goes"].items(), 5))
    head = ["rows of one image", "chunk", "ms", "relative to fastntk", ""]
    return f"**{name}** (d = {case['parameters']})\n\n{markdown(head, lines)}\n\nWhere our time goes: {shares}."
