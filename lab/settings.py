"""The experiments of this project: settings as data, cheapest and most telling first.

``UNLEARNING`` is reported; it shares settings and records with the paper's tables (:mod:`fastntk.reproduce.cells`).
``DEVELOPMENT`` is where variants and defaults are chosen: other classes (7 to 9), other seeds (100 and up), another random
draw. No setting of one appears in the other. ``SINGLE`` removes one image at a time.
"""

from __future__ import annotations

from dataclasses import replace

from fastntk.reproduce.cells import MOBILENET, RESNET, RESNET_200, RESNET_500, VIT, VIT_50X20
from fastntk.reproduce.setting import FAST_NTK, FULL, REPLAY, RETRAIN, RIDGE, MethodRow, Request, Setting

CORE = (FULL, RIDGE, FAST_NTK, REPLAY, RETRAIN)
REQUESTS = (Request("class", 0), Request("class", 3), Request("random", 0.1, draw_seed=0))

UNLEARNING: tuple[Setting, ...] = (
    replace(RESNET, requests=REQUESTS, methods=CORE),
    *(replace(setting, methods=CORE) for setting in (RESNET_200, MOBILENET, RESNET_500, VIT, VIT_50X20)),
)

VARIANTS = (
    *CORE,
    MethodRow("fast-ntk-ridge, least squares", "fast-ntk", {"scale_fit": "least-squares"}),
    MethodRow("fast-ntk-ridge, damping 0.1", "fast-ntk", {"damping": 0.1}),
    MethodRow("fast-ntk-ridge, damping 0.001", "fast-ntk", {"damping": 0.001}),
    MethodRow("tangent-replay, blend 0", "tangent-replay", {"blend": 0}),
    MethodRow("tangent-replay, average 1", "tangent-replay", {"average": 1}),
    MethodRow("tangent-replay, polish 4", "tangent-replay", {"polish": 4}),
)
DEVELOPMENT: tuple[Setting, ...] = (
    replace(
        RESNET,
        name="dev-resnet20-100",
        requests=(Request("class", 7), Request("class", 8), Request("random", 0.1, draw_seed=100)),
        seeds=(100, 101, 102),
        methods=VARIANTS,
    ),
    replace(MOBILENET, name="dev-mobilenetv2-100", requests=(Request("class", 7),), seeds=(100, 101, 102), methods=CORE),
    replace(
        VIT,
        name="dev-vit-caltech-20x50",
        requests=(Request("class", 7),),
        seeds=(100,),
        extra_retrain_seeds=(101, 102),
        methods=VARIANTS,
        probes=False,
    ),
)

SINGLE: tuple[Setting, ...] = (
    replace(
        RESNET,
        name="single-resnet20-30",
        images_per_class=30,
        requests=(),
        seeds=(0,),
        methods=tuple(row._replace(options={**row.options, "validate": False}) for row in (FAST_NTK, REPLAY)),
    ),
)
REMOVALS = 50
"""Single images removed, evenly spread over the data set."""

EXPERIMENTS: dict[str, tuple[Setting, ...]] = {"unlearning": UNLEARNING, "development": DEVELOPMENT, "single": SINGLE}
