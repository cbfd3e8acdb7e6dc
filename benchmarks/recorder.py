"""What ``fastntk.record`` adds to a training loop of one's own, in CPU seconds.

The same loop (AdamW, clipping, label smoothing) with and without the recorder takes turns, in changing order; the figure is the
median over rounds of the ratio within a round. The weights are compared: the same bytes.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fastntk
from benchmarks.common import SHARED, markdown
from fastntk.data import Samples, load_source
from fastntk.models import input_spec
from fastntk.tuning import Subset

WANTED = 1.05


def run(*, quick: bool) -> dict[str, Any]:
    return {"cases": [measured(title, build, repeats=1 if quick else 5) for title, build in cases(quick=quick).items()]}


def cases(*, quick: bool) -> dict[str, Callable[[], tuple[Subset, Samples]]]:
    images = 2 if quick else 40
    return {
        "ResNet-20, norm+head": lambda: _resnet20("norm+head", images),
        "ResNet-20, all": lambda: _resnet20("all", images),
        "ViT-S/14 at 56 px, norm+head": lambda: _vit_small(1 if quick else 6),
    }


def _resnet20(spec: str, images: int) -> tuple[Subset, Samples]:
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    samples = load_source(f"{SHARED}/data/cifar10-5k.npz@train", spec=input_spec(model), images_per_class=images)
    return fastntk.tune(model, spec), samples


def _vit_small(images: int) -> tuple[Subset, Samples]:
    weights = SHARED / "weights" / "vit_small_patch14_dinov2.safetensors"
    model = fastntk.build_model("timm:vit_small_patch14_dinov2", num_classes=20, image_size=56, weights=weights)
    samples = load_source(f"{SHARED}/data/caltech50@train", spec=input_spec(model), images_per_class=images, only_classes=20)
    return fastntk.tune(model, "norm+head"), samples


def measured(title: str, build: Callable[[], tuple[Subset, Samples]], *, repeats: int) -> dict[str, Any]:
    """Seconds of the loop, plain and recorded."""
    subset, samples = build()
    anchor = subset.get()
    ends: dict[bool, torch.Tensor] = {}

    def loop(recorded: bool) -> float:
        subset.set(anchor)
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        parameters = list(subset.parameters.values())
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        started = time.process_time()
        recorder = fastntk.record(subset.model, subset, optimizer, loss=loss) if recorded else None
        for batch in torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).split(32):
            targets = samples.labels[batch]
            ids = [samples.ids[position] for position in batch.tolist()]
            with contextlib.nullcontext() if recorder is None else recorder.batch(ids, targets):
                optimizer.zero_grad()
                loss(subset.model(samples.inputs[batch]), targets).backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
        if recorder is not None:
            recorder.finish()
        seconds = time.process_time() - started
        ends[recorded] = subset.get()
        return seconds

    loop(False)  # what is done once only
    rounds = []
    for number in range(repeats):
        order = (False, True) if number % 2 else (True, False)
        rounds.append({recorded: loop(recorded) for recorded in order})
    ratios = [each[True] / each[False] for each in rounds]
    return {
        "title": title,
        "repeats": repeats,
        "seconds": statistics.median(each[False] for each in rounds),
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
        "same_bytes": torch.equal(ends[False], ends[True]),
    }


def table(result: dict[str, Any]) -> str:
    header = ("loop of one epoch", "rounds", "seconds without", "recorded / plain", "lowest and highest", "weights")
    rows = [
        (
            case["title"],
            str(case["repeats"]),
            f"{case['seconds']:.1f}",
            f"{case['ratio']:.3f}",
            f"{case['ratios'][0]:.2f} … {case['ratios'][-1]:.2f}",
            "the same bytes" if case["same_bytes"] else "**differ**",
        )
        for case in result["cases"]
    ]
    return markdown(header, rows) + f"\nWanted: at most {WANTED}."
