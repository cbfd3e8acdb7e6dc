"""The cells of the paper's four tables: which setting of ours stands in which published column.

*Here* cells run on two CPU cores from the files in ``{shared}``; what is not the paper's own network or data says in
``stand_in`` what replaces what. *Real* cells are the paper's settings on the public files, laid out below one folder:

    {shared}/data/cifar-10-batches-py/                    CIFAR-10, the publisher's python version
    {shared}/data/imagenet-r/<200 class folders>/         ImageNet-R
    {shared}/weights/cifar100_resnet110.safetensors       made by ``fastntk pretrain``; no public weights fit

Tables share records: cells of one setting differ in the methods they show only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastntk.reproduce.setting import FULL, PAPER, PATH_HEAD, REST, WITHOUT_BEST, MethodRow, Request, Setting
from fastntk.training.recipe import Recipe

ONE_CLASS = (Request("class", 0),)
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
    requests=ONE_CLASS,
    seeds=(0, 1, 2, 3, 4),
    methods=PAPER,
)
RESNET_200 = replace(RESNET, name="resnet20-200", images_per_class=200)
RESNET_500 = replace(RESNET, name="resnet20-500", images_per_class=500, seeds=(0, 1, 2))
RESNET_110 = replace(
    RESNET,
    name="resnet110-100",
    model="resnet110",
    weights="{shared}/weights/cifar100_resnet110.safetensors",
    seeds=(0, 1, 2),
)
MOBILENET = replace(
    RESNET_110,
    name="mobilenetv2-100",
    model="mobilenetv2_x0_5",
    weights="{shared}/weights/cifar100_mobilenetv2_x0_5.safetensors",
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
    seeds=(0, 1, 2),
    methods=WITHOUT_BEST,
    note="Images of 56 pixels and 6 epochs, so that it finishes on two cores.",
    probes=True,
)
VIT_20X20 = replace(VIT, name="vit-caltech-20x20", images_per_class=20)
VIT_50X20 = replace(
    VIT,
    name="vit-caltech-50x20",
    only_classes=None,
    images_per_class=20,
    image_size=42,
    note="Images of 42 pixels and 6 epochs, so that it finishes on two cores: rows take 51 passes here.",
)
VIT_CIFAR = replace(
    VIT,
    name="vit-cifar10-100",
    data=RESNET.data,
    holdout=RESNET.holdout,
    only_classes=None,
    images_per_class=100,
    probes=False,
)

HERE_CIFAR = "real CIFAR-10: the first images of each class, 2 000 of the 10 000 test images held out"
HERE_CNN = f"{HERE_CIFAR}; CIFAR-100 weights trained for this project"
RESNET_FOR = "ResNet-20 for ResNet-110"
CALTECH_FOR = "ViT-S/14 (DINOv2) for the paper's ViT-S/16, Caltech-101 for ImageNet-R"
VIT_FOR = "ViT-S/14 (DINOv2) for the paper's ViT-S/16"

UNTRAINED = ("pre-trained", "random-init")
"""Models without a head for the classes at hand: they have a probe only."""
PROBED: tuple[str, ...] = (*UNTRAINED, "full", "fast-ntk", "tangent-replay", PATH_HEAD.label, "retrain")
"""Rows of the probing table; the paper has the first two and ``fast-ntk``."""


@dataclass(frozen=True)
class Cell:
    """One setting in one published column. ``model`` is the name that selects it; an ``optional`` cell runs when asked for.

    ``column`` is its position in the published table. ``probed`` names the models of the probing table, and is empty in the
    others; the figures of untrained models are in every record that was probed, and are read from Full's.
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
    def methods(self) -> tuple[MethodRow, ...]:
        """The method rows whose records the cell is made from."""
        if not self.probed:
            return self.setting.methods
        labels = {FULL.label if label in UNTRAINED else label for label in self.probed}
        return tuple(row for row in self.setting.methods if row.label in labels)

    @property
    def request(self) -> Request:
        """The one request of the cell."""
        return self.setting.requests[0]

    @property
    def images_per_class(self) -> int:
        """Training images of each class."""
        assert self.setting.images_per_class is not None
        return self.setting.images_per_class


def _here() -> tuple[Cell, ...]:
    """Retrain is timed in the process that times a method: other work runs on the same two cores."""
    cells = (*_cnns_here(), *_caltech_here(), *_cifar_vits_here())
    return tuple(replace(cell, setting=replace(cell.setting, timed=True)) for cell in cells)


def _cnns_here() -> Iterator[Cell]:
    """Cheap ones first: ResNet-20, which two cores train in a fifth of ResNet-110's time, then the paper's two networks."""
    for place, setting in enumerate((RESNET, RESNET_200, RESNET_500)):
        yield Cell("table1", 3 + place, "resnet20", "ResNet-20", setting, 10, stand_in=RESNET_FOR, note=HERE_CNN)
    for place, images in enumerate((100, 200, 500)):
        setting = replace(MOBILENET, name=f"mobilenetv2-{images}", images_per_class=images)
        yield Cell("table1", place, "mobilenetv2", "MobileNetV2 ×0.5", setting, 10, note=HERE_CNN)
    for place, images in enumerate((100, 200, 500)):
        setting = replace(RESNET_110, name=f"resnet110-{images}", images_per_class=images)
        yield Cell("table1", 3 + place, "resnet110", "ResNet-110", setting, 10, note=HERE_CNN)


def _caltech_here() -> Iterator[Cell]:
    """In the columns of the network of the same width, ViT-Small."""
    for table, settings in (("table2", {2: VIT, 3: VIT_50X20}), ("table3", {0: VIT_20X20, 1: VIT, 2: VIT_50X20})):
        for place, setting in settings.items():
            yield Cell(
                table,
                place,
                "vit_small_patch14",
                f"ViT-S/14 at {setting.image_size} px",
                setting,
                50 if setting is VIT_50X20 else 20,
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
    methods=WITHOUT_BEST,
    probes=True,
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
            setting, probe_labels = _imagenet_r(model, classes, images), PROBED if table == "table3" else ()
            cells.append(Cell(table, place, model, VITS[model], setting, classes, real=True, probed=probe_labels))
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
        probes=False,
    )


CELLS: tuple[Cell, ...] = (*_here(), *_real())


def cells_of(table: str, *, real: bool) -> tuple[Cell, ...]:
    """The cells of one table, ours or the paper's own settings."""
    return tuple(cell for cell in CELLS if cell.table == table and cell.real == real)
