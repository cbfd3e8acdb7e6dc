"""The experiments of this project: settings as data, cheapest and most telling first.

``UNLEARNING`` is reported; it shares settings and records with the paper's tables (:mod:`fastntk.reproduce.cells`). ``LENGTH``
trains the paper's networks for fewer epochs. ``DEVELOPMENT`` is where variants and defaults are chosen: other classes (7 to 9),
other seeds (100 and up), another random draw. No setting of one appears in the other. ``SINGLE`` removes one image at a time.
``PATH`` replays recorded fine-tunings to several depths (:mod:`lab.path`), ``SINGLE_PATH`` does that for one image at a time,
``AUGMENTED`` (:mod:`lab.augmented`) for a training loop of one's own, ``CHAIN`` (:mod:`lab.chain`) in requests that follow one
another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastntk.reproduce.cells import MOBILENET, RESNET, RESNET_200, RESNET_500, VIT, VIT_50X20, cells_of
from fastntk.reproduce.setting import FAST_NTK, FULL, REPLAY, RETRAIN, RIDGE, MethodRow, Request, Setting
from lab.augmented import AUGMENTED

CORE = (FULL, RIDGE, FAST_NTK, REPLAY, RETRAIN)
REQUESTS = (Request("class", 0), Request("class", 3), Request("random", 0.1, draw_seed=0))

OF_TABLES = {cell.setting.name: cell.setting for table in ("table1", "table2") for cell in cells_of(table, real=False)}
UNLEARNING: tuple[Setting, ...] = tuple(
    replace(setting, requests=REQUESTS if name == RESNET.name else setting.requests, methods=CORE)
    for name, setting in sorted(OF_TABLES.items(), key=lambda item: (item[1].model, item[1].images_per_class or 0))
)

LENGTHS = (5, 10)
"""Epochs of trainings shorter than the tables'."""
LENGTH: tuple[Setting, ...] = tuple(
    replace(
        OF_TABLES[name],
        name=f"{name}-{epochs}epochs",
        recipe=replace(OF_TABLES[name].recipe, epochs=epochs),
        methods=(FULL, RETRAIN),
    )
    for name in ("mobilenetv2-100", "resnet110-100")
    for epochs in LENGTHS
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

ONE_AND_RANDOM = (Request("class", 0), Request("random", 0.1, draw_seed=0))


def path_rows(stage: dict[str, int]) -> tuple[MethodRow, ...]:
    """Depths of ``path-replay``, cheap ones first; ``stage``: labels and numbers of blocks between the last one and all."""

    def path(label: str, **options: Any) -> MethodRow:
        return MethodRow(label, "path-replay", options)

    return (
        path("head", depth="head"),
        path("last block", depth=1),
        *(path(label, depth=blocks) for label, blocks in stage.items()),
        path("auto", depth="auto"),
        FAST_NTK,
        REPLAY,
        path("all", depth="all"),
        path("all, 2 checkpoints, rows only", depth="all", checkpoints=2, exact=0),
        path("all, 2 checkpoints, corrected", depth="all", checkpoints=2, correction=2, exact=2),
    )


RELEARNED = frozenset({"head", "auto", "all, 2 checkpoints, corrected"})
"""Rows of ``PATH`` whose models relearn a forgotten class, beside Full and Retrain."""
PATH: tuple[Setting, ...] = (
    *(
        replace(
            setting,
            requests=ONE_AND_RANDOM,
            seeds=(0, 1, 2, 3, 4),
            extra_retrain_seeds=(5, 6, 7, 8, 9) if setting is RESNET else (),
            methods=path_rows({"last stage": 3, "last two stages": 6}),
        )
        for setting in (RESNET, RESNET_200)
    ),
    replace(MOBILENET, requests=ONE_AND_RANDOM, seeds=(0, 1, 2), methods=path_rows({"last half": 9})),
    *(
        replace(
            setting,
            requests=ONE_AND_RANDOM,
            seeds=(0, 1, 2, 3, 4),  # 3 and 4: of the cheap rows, head and auto
            extra_retrain_seeds=(5, 6, 7, 8, 9),
            methods=path_rows({"last 2 blocks": 2}),
            probes=False,
        )
        for setting in (VIT, VIT_50X20)
    ),
    replace(
        RESNET_500, requests=ONE_AND_RANDOM, seeds=(0, 1, 2, 3, 4), methods=path_rows({"last stage": 3, "last two stages": 6})
    ),
)
CHAIN: tuple[Setting, ...] = (PATH[0],)
PACKED: tuple[Setting, ...] = (
    replace(PATH[0], extra_retrain_seeds=(), methods=tuple(row for row in PATH[0].methods if row.label in RELEARNED)),
)
"""The depths that the README shows, beside Retrains with batches of their own (:mod:`lab.packed`)."""
SINGLE_PATH: tuple[Setting, ...] = (
    replace(
        SINGLE[0],
        name="single-path-resnet20-30",
        methods=(
            MethodRow("head", "path-replay", {"depth": "head", "validate": False}),
            MethodRow("all, 1 checkpoint", "path-replay", {"depth": "all", "checkpoints": 1, "validate": False}),
            MethodRow("all, 3 checkpoints", "path-replay", {"depth": "all", "checkpoints": 3, "validate": False}),
        ),
    ),
)

EXPERIMENTS: dict[str, tuple[Setting, ...]] = {
    "unlearning": UNLEARNING,
    "length": LENGTH,
    "development": DEVELOPMENT,
    "single": SINGLE,
    "path": PATH,
    "single-path": SINGLE_PATH,
    "augmented": (AUGMENTED,),
    "chain": CHAIN,
    "packed": PACKED,
}
