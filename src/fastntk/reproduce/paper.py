"""What the paper published: its four tables' figures, read from a copy of its results that ships with the package.

Accuracies are in per cent, mean and standard deviation over the paper's 5 seeds; relearning that took more than ``censored``
epochs has no mean. Knows no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

TABLES = ("table1", "table2", "table3", "table4")
TITLES = {
    "mobilenetv2": "MobileNetV2",
    "resnet110": "ResNet-110",
    "vit_tiny": "ViT-Tiny",
    "vit_small": "ViT-Small",
    "vit_base": "ViT-Base",
}


@dataclass(frozen=True)
class Published:
    """One figure of the paper; ``censored`` is the cap where relearning exceeded it."""

    mean: float | None
    std: float | None
    censored: int | None = None


@dataclass(frozen=True)
class Column:
    """One column of a published table."""

    model: str
    classes: int
    images_per_class: int
    ratio_percent: float | None

    @property
    def title(self) -> str:
        """In words."""
        return f"{TITLES[self.model]}, {self.classes} classes × {self.images_per_class} images"


@dataclass(frozen=True)
class PublishedTable:
    """A published table: ``figures[metric][method]`` is one figure a column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    figures: dict[str, dict[str, tuple[Published, ...]]]

    def figure(self, metric: str, label: str, column: int) -> Published | None:
        """The published figure of one of our methods' labels, None where the paper has none; both forms of Fast-NTK have it."""
        figures = self.figures[metric].get(label.removesuffix("-ridge").replace("-", "_"))
        return None if figures is None else figures[column]


@cache
def published_table(name: str) -> PublishedTable:
    """One of :data:`TABLES`."""
    text = resources.files("fastntk.reproduce").joinpath("data", "paper.json").read_text("utf-8")
    return _parsed(next(entry for entry in json.loads(text)["tables"] if entry["id"] == name))


def _parsed(entry: dict[str, Any]) -> PublishedTable:
    columns = tuple(
        Column(c["model"], c["classes"], c["images_per_class"], c.get("params_ratio_percent")) for c in entry["columns"]
    )
    figures = {
        metric: {method: tuple(_figure(value) for value in values) for method, values in methods.items()}
        for metric, methods in entry["results"].items()
    }
    return PublishedTable(entry["id"], entry["title"], columns, figures)


def _figure(value: dict[str, Any]) -> Published:
    return Published(value.get("mean"), value.get("std"), value.get("censored_at"))
