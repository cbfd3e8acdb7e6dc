"""Hold-out accuracy of fine-tuning on real images: not a speed, but the ground everything else stands on.

ResNet-20 with embedded CIFAR-100 weights, norm+head, 100 images per class of CIFAR-10; ViT-S/14 at 112 px, prompts+head, ten
classes of Caltech-101. Data and ViT weights are read from the folder ``shared``.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import fastntk
from benchmarks.common import SHARED, markdown
from fastntk.models import input_spec

VIT = "timm:vit_small_patch14_dinov2"


def run(*, quick: bool) -> dict[str, Any]:
    return {
        "ResNet-20, norm+head, CIFAR-10, 100 images per class": _case(
            {"name": "resnet20", "num_classes": 10, "weights": "cifar100"},
            spec="norm+head",
            data=("data/cifar10-5k.npz@train", "data/cifar10-5k.npz@test"),
            select={"images_per_class": 5 if quick else 100},
            recipe=fastntk.Recipe(epochs=1 if quick else 20),
            seeds=(0,) if quick else (0, 1, 2),
        ),
        "ViT-S/14 at 112 px, prompts+head, ten Caltech classes, 20 images per class": _case(
            {
                "name": VIT,
                "num_classes": 10,
                "weights": SHARED / "weights/vit_small_patch14_dinov2.safetensors",
                "image_size": 112,
            },
            spec="prompts+head",
            data=("data/caltech50@train", "data/caltech50@holdout"),
            select={"images_per_class": 2 if quick else 20, "only_classes": 10},
            recipe=fastntk.Recipe(epochs=1 if quick else 6, lr=5e-3, batch_size=32, weight_decay=1e-4),
            seeds=(0,),
        ),
    }


def _case(
    build: dict[str, Any],
    *,
    spec: str,
    data: tuple[str, str],
    select: dict[str, Any],
    recipe: fastntk.Recipe,
    seeds: tuple[int, ...],
) -> dict[str, Any]:
    accuracies, seconds = [], []
    for seed in seeds:
        model = fastntk.build_model(build["name"], **{key: value for key, value in build.items() if key != "name"})
        subset = fastntk.tune(model, spec)
        samples = fastntk.load_source(str(SHARED / data[0]), spec=input_spec(model), **select)
        holdout = fastntk.load_source(str(SHARED / data[1]), spec=input_spec(model), classes=samples.classes)
        start = time.perf_counter()
        fastntk.fit(model, subset, samples, fastntk.Recipe(**(recipe.to_dict() | {"seed": seed})))
        seconds.append(time.perf_counter() - start)
        correct = fastntk.predict(model, holdout.inputs).argmax(1) == holdout.labels
        accuracies.append(100 * correct.float().mean().item())
    return {
        "parameters": subset.numel,
        "ratio": subset.ratio,
        "recipe": recipe.to_dict(),
        "seeds": list(seeds),
        "holdout": len(holdout),
        "accuracies": accuracies,
        "seconds": seconds,
    }


def table(result: dict[str, Any]) -> str:
    lines = []
    for name, case in result.items():
        spread = f" ± {statistics.stdev(case['accuracies']):.2f}" if len(case["accuracies"]) > 1 else ""
        lines.append(
            [
                name,
                f"{case['parameters']} ({100 * case['ratio']:.2f} %)",
                case["recipe"]["epochs"],
                len(case["seeds"]),
                f"{statistics.mean(case['accuracies']):.1f}{spread}",
                case["holdout"],
                f"{statistics.mean(case['seconds']):.0f}",
            ]
        )
    return markdown(["fine-tuning", "d", "epochs", "seeds", "hold-out accuracy, %", "hold-out images", "s a run"], lines)
