"""The experiments: settings as data, cheapest and most telling first.

``UNLEARNING`` is reported; the paper's tables (:mod:`fastntk.experiments.cells`) select from its settings and add to them.
``DEVELOPMENT`` is where variants and defaults are chosen: other classes (7 to 9), other seeds (100 and up), another random
draw. No setting of one appears in the other. ``SINGLE`` removes one image at a time.
"""

from __future__ import annotations

from dataclasses import replace

from fastntk.experiments.setting import Method, Request, Setting
from fastntk.training.recipe import Recipe

FULL = Method("full", "full")
RETRAIN = Method("retrain", "retrain")
FAST_NTK = Method("fast-ntk", "fast-ntk")
RIDGE = Method("fast-ntk-ridge", "fast-ntk", {"form": "ridge"})
"""The paper's equation (1), corrected."""
REPLAY = Method("tangent-replay", "tangent-replay")
CORE = (FULL, RIDGE, FAST_NTK, REPLAY, RETRAIN)
MAX_LOSS = Method("max-loss", "max-loss")
RANDOM_LABEL = Method("random-label", "random-label")
PAPER = (FULL, MAX_LOSS, RANDOM_LABEL, RIDGE, FAST_NTK, REPLAY, RETRAIN)
"""The paper's methods and ``tangent-replay``."""

CALTECH_50 = (
    "Faces", "Leopards", "Motorbikes", "airplanes", "bonsai", "brain", "buddha", "butterfly", "car_side", "chandelier",
    "ewer", "grand_piano", "hawksbill", "helicopter", "kangaroo", "ketch", "menorah", "starfish", "trilobite", "watch",
)  # fmt: skip
"""The classes of Caltech that have 50 training images."""

RESNET = Setting(
    name="resnet20-100",
    model="resnet20",
    weights="cifar100",
    data="{shared}/data/cifar10-5k.npz@train",
    holdout="{shared}/data/cifar10-5k.npz@test",
    images_per_class=100,
    requests=(Request("class", 0), Request("class", 3), Request("random", 0.1, draw_seed=0)),
    seeds=(0, 1, 2, 3, 4),
    methods=CORE,
)
ONE_CLASS = (Request("class", 0),)
RESNET_200 = replace(RESNET, name="resnet20-200", images_per_class=200, requests=ONE_CLASS)
RESNET_500 = replace(RESNET, name="resnet20-500", images_per_class=500, requests=ONE_CLASS, seeds=(0, 1, 2))
MOBILENET = replace(
    RESNET,
    name="mobilenetv2-100",
    model="mobilenetv2_x0_5",
    weights="{shared}/weights/cifar100_mobilenetv2_x0_5.safetensors",
    requests=ONE_CLASS,
    seeds=(0, 1, 2),
    methods=CORE,
)
VIT = Setting(
    name="vit-caltech-20x50",
    model="timm:vit_small_patch14_dinov2",
    weights="{shared}/weights/vit_small_patch14_dinov2.safetensors",
    image_size=56,
    data="{shared}/data/caltech50@train",
    holdout="{shared}/data/caltech50@holdout",
    only_classes=CALTECH_50,
    images_per_class=50,
    tune="prompts+head",
    recipe=Recipe(epochs=6, lr=5e-3, batch_size=32, weight_decay=1e-4),
    requests=ONE_CLASS,
    seeds=(0, 1),
    extra_retrain_seeds=(2,),
    methods=CORE,
    note="Images of 56 pixels and 6 epochs, so that it finishes on two cores.",
)
VIT_50X20 = replace(
    VIT,
    name="vit-caltech-50x20",
    only_classes=None,
    images_per_class=20,
    image_size=42,
    note="Images of 42 pixels and 6 epochs, so that it finishes on two cores: rows take 51 passes here.",
)

UNLEARNING: tuple[Setting, ...] = (RESNET, RESNET_200, MOBILENET, RESNET_500, VIT, VIT_50X20)

VARIANTS = (
    *CORE,
    Method("fast-ntk-ridge, least squares", "fast-ntk", {"scale_fit": "least-squares"}),
    Method("fast-ntk-ridge, damping 0.1", "fast-ntk", {"damping": 0.1}),
    Method("fast-ntk-ridge, damping 0.001", "fast-ntk", {"damping": 0.001}),
    Method("tangent-replay, blend 0", "tangent-replay", {"blend": 0}),
    Method("tangent-replay, average 1", "tangent-replay", {"average": 1}),
    Method("tangent-replay, polish 4", "tangent-replay", {"polish": 4}),
)
DEVELOPMENT: tuple[Setting, ...] = (
    replace(
        RESNET,
        name="dev-resnet20-100",
        requests=(Request("class", 7), Request("class", 8), Request("random", 0.1, draw_seed=100)),
        seeds=(100, 101, 102),
        methods=VARIANTS,
    ),
    replace(MOBILENET, name="dev-mobilenetv2-100", requests=(Request("class", 7),), seeds=(100, 101, 102)),
    replace(
        VIT,
        name="dev-vit-caltech-20x50",
        requests=(Request("class", 7),),
        seeds=(100,),
        extra_retrain_seeds=(101, 102),
        methods=VARIANTS,
    ),
)

SINGLE: tuple[Setting, ...] = (
    replace(
        RESNET,
        name="single-resnet20-30",
        images_per_class=30,
        requests=(),
        seeds=(0,),
        methods=tuple(Method(label, method, {**options, "validate": False}) for label, method, options in (FAST_NTK, REPLAY)),
    ),
)
REMOVALS = 50
"""Single images removed, evenly spread over the data set."""

EXPERIMENTS: dict[str, tuple[Setting, ...]] = {"unlearning": UNLEARNING, "development": DEVELOPMENT, "single": SINGLE}
