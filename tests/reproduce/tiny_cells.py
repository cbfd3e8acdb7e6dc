"""Cells of seconds: table 1 on a few digits, and the paper's own settings cut down. As a program, the command line on them."""

from __future__ import annotations

from dataclasses import replace

from fastntk.reproduce import cells
from fastntk.reproduce.cells import PROBED, Cell, cells_of
from fastntk.reproduce.setting import PAPER, Request, Setting
from fastntk.training.recipe import Recipe

SHORT = Recipe(epochs=2, batch_size=4)
TINY = Setting(
    name="tiny",
    model="resnet20",
    weights="cifar100",
    image_size=16,
    data="digits@train",
    holdout="digits@test",
    only_classes=3,
    images_per_class=4,
    requests=(Request("class", 0),),
    seeds=(0,),
    recipe=SHORT,
    relearn_cap=2,
    methods=PAPER,
    probes=True,
)
HERE = (
    Cell("table1", 3, "tiny", "Tiny", TINY, 3, stand_in="ResNet-20 on digits for ResNet-110"),
    Cell("table3", 0, "tiny", "Tiny", TINY, 3, probed=PROBED, stand_in="digits for ImageNet-R"),
)


def cut_down() -> tuple[Cell, ...]:
    """The paper's own settings with small networks, few images and one seed; sources, draws and layouts as they are."""
    cnn = next(cell for cell in cells_of("table1", real=True) if cell.model == "resnet110")
    vit = next(cell for cell in cells_of("table2", real=True) if cell.model == "vit_tiny")
    methods = tuple(method for method in PAPER if method.label in ("fast-ntk", "retrain"))
    small = {"recipe": SHORT, "seeds": (0,), "relearn_cap": 2, "images_per_class": 2, "methods": methods}
    few = {"only_classes": 3, "holdout_per_class": 1, "image_size": 32, "weights": None}
    return (
        replace(cnn, setting=replace(cnn.setting, name="cnn", model="resnet20", weights="cifar100", **small)),  # type: ignore[arg-type]
        replace(vit, setting=replace(vit.setting, name="vit", model="timm:test_vit", **small, **few)),  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    cells.CELLS = HERE
    from fastntk.cli import main

    main()
