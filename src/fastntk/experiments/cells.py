"""The cells of the paper's four tables: which setting of ours stands in which published column.

*Here* cells run on two CPU cores from the files in ``{shared}``; what is not the paper's own network or data says in
``stand_in`` what replaces what. *Real* cells are the paper's settings on the public files, laid out below one folder:

    {shared}/data/cifar-10-batches-py/                    CIFAR-10, the publisher's python version
    {shared}/data/imagenet-r/<200 class folders>/         ImageNet-R
    {shared}/weights/cifar100_resnet110.safetensors       made by ``fastntk pretrain``; no public weights fit

Records are shared: a cell uses the very settings of the unlearning experiment where those exist, with more methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastntk.experiments.lists import CALTECH_50, MOBILENET, ONE_CLASS, PAPER, RESNET, RESNET_200, RESNET_500, VIT, VIT_50X20
from fastntk.experiments.setting import REST, Method, Request, Setting
from fastntk.training.recipe import Recipe

HERE_CIFAR = "real CIFAR-10: the first images of each class, 2 000 of the 10 000 test images held out"
HERE_CNN = f"{HERE_CIFAR}; CIFAR-100 weights trained for this project"
RESNET_FOR = "ResNet-20 for ResNet-110"
CALTECH_FOR = "ViT-S/14 (DINOv2) for the paper's ViT-S/16, Caltech-101 for ImageNet-R"
VIT_FOR = "ViT-S/14 (DINOv2) for the paper's ViT-S/16"

UNTRAINED = ("pre-trained", "random-init")
"""Models without a head for the classes at hand: they have a probe only."""
PROBED: tuple[str, ...] = (*UNTRAINED, "full", "fast-ntk", "tangent-replay", "retrain")
"""Rows of the probing table; the paper has the first two and ``fast-ntk``."""


@dataclass(frozen=True)
class Cell:
    """One setting in one published column. ``model`` is the name that selects it; an ``optional`` cell runs when asked for.

    ``column`` is its position in the published table. ``probed`` names the models of the probing table, and is empty in the
    others.
    """

    table: str
    column: int
    model: str
    title: str
    setting: Setting
    classes: int
    real: bool = False
    optional: bool = False
    probed: tuple[str, ...] = ()
    stand_in: str | None = None
    note: str | None = None

    @property
    def request(self) -> Request:
        """The one request of the cell."""
        return self.setting.requests[0]

    @property
    def images_per_class(self) -> int:
        """Training images of each class."""
        assert self.setting.images_per_class is not None
        return self.setting.images_per_class


def _asked(setting: Setting) -> Setting:
    """The setting with the tables' request and methods; neither is part of its digest."""
    return replace(setting, requests=ONE_CLASS, methods=PAPER)


VIT_CIFAR = _asked(
    replace(
        VIT,
        name="vit-cifar10-100",
        data="{shared}/data/cifar10-5k.npz@train",
        holdout="{shared}/data/cifar10-5k.npz@test",
        only_classes=None,
        images_per_class=100,
    )
)
VIT_20X20 = _asked(replace(VIT, name="vit-caltech-20x20", only_classes=CALTECH_50, images_per_class=20))


def _here() -> tuple[Cell, ...]:
    return (*_cnns_here(), *_caltech_here(), *_cifar_vits_here())


def _cnns_here() -> Iterator[Cell]:
    for place, setting in enumerate((RESNET, RESNET_200, RESNET_500)):
        made = _asked(setting)
        yield Cell("table1", 3 + place, "resnet20", "ResNet-20", made, 10, stand_in=RESNET_FOR, note=HERE_CNN)
    for place, images in enumerate((100, 200, 500)):
        made = _asked(replace(MOBILENET, name=f"mobilenetv2-{images}", images_per_class=images))
        title = "MobileNetV2 ×0.5"
        yield Cell("table1", place, "mobilenetv2", title, made, 10, optional=images > 100, note=HERE_CNN)


def _caltech_here() -> Iterator[Cell]:
    """In the columns of the network of the same width, ViT-Small."""
    small, wide = _asked(VIT), _asked(VIT_50X20)
    for table, settings in (("table2", {2: small, 3: wide}), ("table3", {0: VIT_20X20, 1: small, 2: wide})):
        for place, setting in settings.items():
            yield Cell(
                table,
                place,
                "vit_small_patch14",
                f"ViT-S/14 at {setting.image_size} px",
                setting,
                50 if setting is wide else 20,
                probed=PROBED if table == "table3" else (),
                stand_in=CALTECH_FOR,
                note=setting.note,
            )


def _cifar_vits_here() -> Iterator[Cell]:
    for place, images in enumerate((100, 200, 500)):
        setting = replace(VIT_CIFAR, name=f"vit-cifar10-{images}", images_per_class=images)
        yield Cell(
            "table4",
            place,
            "vit_small_patch14",
            f"ViT-S/14 at {setting.image_size} px",
            setting,
            10,
            optional=images > 100,
            stand_in=VIT_FOR,
            note=f"{HERE_CIFAR}; {setting.recipe.epochs} epochs",
        )


FIVE = (0, 1, 2, 3, 4)
REAL_CNN = Setting(
    name="real-resnet110-100",
    model="resnet110",
    weights="{shared}/weights/cifar100_resnet110.safetensors",
    data="cifar10:{shared}/data@train",
    holdout="cifar10:{shared}/data@test",
    images_per_class=100,
    requests=ONE_CLASS,
    seeds=FIVE,
    methods=PAPER,
)
REAL_VIT = Setting(
    name="real-vit_small-imagenet-r-20x50",
    model="timm:vit_small_patch16_224",
    weights="pretrained",
    data="{shared}/data/imagenet-r",
    holdout=REST,
    only_classes=20,
    class_draw=0,
    images_per_class=50,
    holdout_per_class=30,
    tune="prompts+head",
    recipe=Recipe(epochs=12, lr=5e-3, batch_size=32, weight_decay=1e-4),
    requests=ONE_CLASS,
    seeds=FIVE,
    methods=PAPER,
)
VITS = {"vit_tiny": "ViT-Tiny/16", "vit_small": "ViT-Small/16", "vit_base": "ViT-Base/16"}


def _real() -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for first, model, name, weights, title in (
        (0, "mobilenetv2", "mobilenetv2_x0_5", "cifar100", "MobileNetV2 ×0.5"),
        (3, "resnet110", "resnet110", REAL_CNN.weights, "ResNet-110"),
    ):
        for place, images in enumerate((100, 200, 500)):
            setting = replace(REAL_CNN, name=f"real-{model}-{images}", model=name, weights=weights, images_per_class=images)
            cells.append(Cell("table1", first + place, model, title, setting, 10, real=True))
    for table, models, sizes in (
        ("table2", ("vit_tiny", "vit_small", "vit_base"), ((20, 50), (50, 20))),
        ("table3", ("vit_small", "vit_base"), ((20, 20), (20, 50), (50, 20))),
    ):
        places = [(model, size) for model in models for size in sizes]
        for place, (model, (classes, images)) in enumerate(places):
            setting, probed = _imagenet_r(model, classes, images), PROBED if table == "table3" else ()
            cells.append(Cell(table, place, model, VITS[model], setting, classes, real=True, probed=probed))
    places4 = [(model, images) for model in ("vit_small", "vit_base") for images in (100, 200, 500)]
    for place, (model, images) in enumerate(places4):
        cells.append(Cell("table4", place, model, VITS[model], _cifar_vit(model, images), 10, real=True))
    return tuple(cells)


def _imagenet_r(model: str, classes: int, images: int) -> Setting:
    name = f"real-{model}-imagenet-r-{classes}x{images}"
    return replace(REAL_VIT, name=name, model=f"timm:{model}_patch16_224", only_classes=classes, images_per_class=images)


def _cifar_vit(model: str, images: int) -> Setting:
    return replace(
        REAL_VIT,
        name=f"real-{model}-cifar10-{images}",
        model=f"timm:{model}_patch16_224",
        data=REAL_CNN.data,
        holdout=REAL_CNN.holdout,
        holdout_per_class=None,
        only_classes=None,
        class_draw=None,
        images_per_class=images,
    )


CELLS: tuple[Cell, ...] = (*_here(), *_real())


def cells_of(table: str, *, real: bool) -> tuple[Cell, ...]:
    """The cells of one table, ours or the paper's own settings."""
    return tuple(cell for cell in CELLS if cell.table == table and cell.real == real)


def methods_of(cell: Cell, labels: tuple[str, ...] | None) -> tuple[Method, ...]:
    """The cell's methods with these labels, in the table's order; all for None."""
    return tuple(method for method in cell.setting.methods if labels is None or method.label in labels)
