"""Any map-style data set as tensors, labels, permanent ids and class names: pairs, dicts, image folders, Hugging Face tables.

An id has to mean the same picture tomorrow. So an image folder of torchvision gives paths below its root, a
``torch.utils.data.Subset`` the ids of the data set it is a part of, a table the column that is named. Positions come last.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from fastntk.base.errors import InputError, listing
from fastntk.base.progress import track
from fastntk.data.tables import Pictures, decode_cell, is_cell, is_table
from fastntk.data.transforms import UNREADABLE, prepare
from fastntk.models.card import InputSpec

# Where no column is named, the first of these that an item has.
IMAGE_COLUMNS = ("pixel_values", "image", "img")
LABEL_COLUMNS = ("label", "labels", "target", "fine_label")

# So many items or more, spread over the data set, are read twice: flips at probability 1/2 go unseen once in 4 · 10⁹ times.
_READ_TWICE = 32


@dataclass(frozen=True)
class Reading:
    """How items are read: columns of dicts (None: by their usual names), what makes inputs of pictures, whether they may vary."""

    image_column: str | None = None
    label_column: str | None = None
    id_column: str | None = None
    spec: InputSpec | None = None
    allow_random: bool = False


@dataclass(frozen=True, eq=False)
class Contents:
    """What a data set holds: inputs (n, ...), labels, ids and class names; the last two None where it has none."""

    inputs: Tensor
    labels: list[int]
    ids: list[Any] | None
    classes: Iterable[str] | None


def read_dataset(dataset: Any, reading: Reading, *, own_ids: bool = True) -> Contents:
    """Read every item once, some twice: a data set that draws its items at random is refused unless that is allowed.

    ``own_ids=False``: the caller has ids, none are looked for.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(
            f"{type(dataset).__name__} has no length or cannot be indexed: from_dataset takes map-style ones; "
            "collect a stream into tensors and use Samples(inputs, labels)"
        )
    if isinstance(dataset, Mapping):
        raise InputError(f"a dict of data sets ({listing(map(str, dataset))}): from_dataset takes one of them")
    if not len(dataset):
        raise InputError("the dataset is empty")
    ids = None
    if own_ids:
        ids = permanent_ids(dataset) if reading.id_column is None else _column(dataset, reading.id_column)
    classes = _classes(dataset, reading.label_column)
    if reading.spec is not None:
        dataset = _stored(dataset)
    item_ids: list[Any] | None = [] if ids is None and reading.id_column is not None else None
    images: list[Tensor] = []
    labels: list[int] = []
    step, times = max(1, len(dataset) // _READ_TWICE), -(-_READ_TWICE // len(dataset))
    for index in track(range(len(dataset)), "reading the dataset"):
        item = _item(dataset, index)
        image, label = _pair(item, index, reading)
        if images and image.shape != images[0].shape:
            raise InputError(
                f"item {index} has shape {tuple(image.shape)}, item 0 {tuple(images[0].shape)}: "
                "all images must have one shape; resize in the dataset's transform"
            )
        for _ in range(times if index % step == 0 and not reading.allow_random else 0):
            _refuse_random(index, (image, label), _pair(_item(dataset, index), index, reading))
        images.append(image)
        labels.append(label)
        if item_ids is not None:
            item_ids.append(_id(_entry(item, index, reading.id_column, (), what="id")))
    return Contents(torch.stack(images), labels, ids if item_ids is None else item_ids, classes)


def _stored(dataset: Any) -> Any:
    """A table without a transform of its own, or a Subset of one, with its pictures decoded here; other data sets as they are."""
    if isinstance(dataset, Subset):
        return Subset(_stored(dataset.dataset), dataset.indices)
    return Pictures(dataset) if is_table(dataset) and dataset.format["type"] is None else dataset


def _item(dataset: Any, index: int) -> Any:
    """One item; a file that the data set cannot decode is named."""
    try:
        return dataset[index]
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"item {index} of the data set cannot be read: {reason}; repair or remove it") from error


def permanent_ids(dataset: Any) -> list[Any] | None:
    """Paths below the root of an image folder, the parent's ids for a Subset of it, None where only positions are known."""
    if isinstance(dataset, Subset):
        parent = permanent_ids(dataset.dataset)
        ids: Any = range(len(dataset.dataset)) if parent is None else parent  # type: ignore[arg-type]
        return [ids[int(index)] for index in dataset.indices]
    if is_table(dataset):
        if getattr(dataset, "_indices", None) is not None:
            warnings.warn(
                "this table was shuffled or selected from another one, and its ids are row numbers as it is now: give id_column= "
                "(or ids=), or the same id will mean another picture next time",
                stacklevel=4,
            )
        return None
    return _paths(dataset)


def _paths(dataset: Any) -> list[str] | None:
    entries, root = getattr(dataset, "samples", getattr(dataset, "imgs", None)), getattr(dataset, "root", None)
    if not isinstance(root, (str, Path)) or not isinstance(entries, (list, tuple)) or len(entries) != len(dataset):
        return None
    if not all(isinstance(entry, tuple) and entry and isinstance(entry[0], (str, Path)) for entry in entries):
        return None
    outside = [str(entry[0]) for entry in entries if not Path(entry[0]).is_relative_to(root)]
    if outside:
        raise InputError(f"files outside the data set's root {root}: {listing(outside)}; give ids= yourself")
    return [Path(entry[0]).relative_to(root).as_posix() for entry in entries]


def _column(dataset: Any, name: str) -> list[Any] | None:
    """A column of a table, past any transform of its items; None for data sets that are no tables."""
    if isinstance(dataset, Subset):
        column = _column(dataset.dataset, name)
        return None if column is None else [column[int(index)] for index in dataset.indices]
    if not is_table(dataset):
        return None
    if name not in dataset.column_names:
        raise InputError(f"id_column={name!r}: the table has the columns {listing(dataset.column_names, most=20)}")
    return list(dataset.with_format(None)[name])


def _classes(dataset: Any, label_column: str | None) -> Iterable[str] | None:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if not is_table(dataset):
        names = getattr(dataset, "classes", None)
        return names if isinstance(names, Iterable) else None  # some keep their number there
    columns = LABEL_COLUMNS if label_column is None else (label_column,)
    labels = {key: kind.names for key, kind in (dataset.features or {}).items() if getattr(kind, "names", None)}
    # A transform may rename the column, so that a single ClassLabel counts under any name.
    return next((labels[key] for key in columns if key in labels), next(iter(labels.values())) if len(labels) == 1 else None)


def _pair(item: Any, index: int, reading: Reading) -> tuple[Tensor, int]:
    """Read (image tensor, label) from an item, saying what came where it is something else."""
    if isinstance(item, Mapping):
        image = _entry(item, index, reading.image_column, IMAGE_COLUMNS, what="image")
        label = _entry(item, index, reading.label_column, LABEL_COLUMNS, what="label")
    elif isinstance(item, (tuple, list)) and len(item) == 2:
        image, label = item
    else:
        raise InputError(f"item {index} must be a pair (image tensor, label) or a dict of them, not {type(item).__name__}")
    if reading.spec is not None and not isinstance(image, Tensor):
        try:
            image = prepare(decode_cell(image, name="it") if is_cell(image) else image, reading.spec)
        except InputError as error:
            raise InputError(f"item {index}: {error}") from error
    if not isinstance(image, Tensor):
        raise InputError(
            f"the image of item {index} is {type(image).__name__}, not a tensor; give the dataset a "
            "transform that makes it model-ready, or give spec=fastntk.input_spec(model)"
        )
    if isinstance(label, (Tensor, np.ndarray)) and label.ndim == 0:
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, (int, np.integer)):
        raise InputError(f"the label of item {index} must be an integer, not {label!r}")
    return image, int(label)


def _entry(item: Any, index: int, name: str | None, usual: tuple[str, ...], *, what: str) -> Any:
    if not isinstance(item, Mapping):
        raise InputError(f"{what}_column={name!r} is for items that are dicts: item {index} is {type(item).__name__}; give ids=")
    names = usual if name is None else (name,)
    for key in names:
        if key in item:
            return item[key]
    raise InputError(
        f"item {index} has no {what} called {' or '.join(names)}; it has {listing(map(str, item), most=20)}: say {what}_column="
    )


def _id(value: Any) -> Any:
    return value.item() if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0 else value


def _refuse_random(index: int, first: tuple[Tensor, int], second: tuple[Tensor, int]) -> None:
    same_shape = first[0].shape == second[0].shape and first[0].dtype == second[0].dtype
    equal = same_shape and bool(((first[0] == second[0]) | ((first[0] != first[0]) & (second[0] != second[0]))).all())
    if equal and first[1] == second[1]:
        return
    raise InputError(
        f"item {index} was read twice and came out {'differently' if same_shape else 'in another shape'}: the data set draws "
        "at random (augmentation?). Samples are what rows, checks and audits look at, so they have to be the same each time: "
        "give the data set with the transform you evaluate with (the ids stay the same). allow_random=True keeps one draw of each"
    )
