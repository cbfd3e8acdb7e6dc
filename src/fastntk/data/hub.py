"""Hugging Face datasets, by hub name or from disk (``save_to_disk``, parquet files, an image folder).

The picture and the label column are found by their feature types. Ids are row numbers, with the split's name before
them except in ``train``: 17, test/17. Needs the extra ``hf``; no dataset script is ever run.

Trap: the library keeps converted copies of what it loads in its own cache (HF_DATASETS_CACHE). A sample that a model
has forgotten is still there until that cache is deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastntk.base.errors import InputError, listing
from fastntk.data.catalog import Catalog
from fastntk.data.tables import Pictures

# Where several columns are class labels, the one that is called so; CIFAR-100 has fine and coarse ones.
_LABEL_NAMES = ("label", "labels", "fine_label")


def open_hub(name: str, split: str | None) -> Catalog:
    """Return one split of a Hugging Face dataset, ``train`` unless asked otherwise."""
    table, split = _pick(_load(name), name, split)
    image, label = columns(table.features, name)
    labels = np.asarray(list(table[label]))
    if labels.dtype.kind not in "iu":
        raise InputError(f"hf:{name}: column {label!r} must hold integer labels, not {labels.dtype}")
    prefix = "" if split == "train" else f"{split}/"
    ids = tuple(f"{prefix}{row}" for row in range(len(table)))
    names = getattr(table.features[label], "names", None)
    classes = None if names is None else tuple(str(item) for item in names)
    pictures = Pictures(table.select_columns([image]).with_format(None))

    def read(row: int) -> Image.Image:
        try:
            picture = pictures[row][image]
        except InputError as error:
            raise InputError(f"hf:{name}: {error}") from error
        if not isinstance(picture, Image.Image):
            raise InputError(f"hf:{name}: row {ids[row]} has no image in column {image!r}")
        return picture

    return Catalog(f"hf:{name}", ids, labels.astype(np.int64), classes, read)


def columns(features: Any, name: str) -> tuple[str, str]:
    """Return the names of the picture and the label column; refuse where the types do not decide."""
    import datasets

    images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if not labels:
        labels = [key for key, kind in features.items() if key in _LABEL_NAMES and "int" in str(getattr(kind, "dtype", ""))]
    if len(labels) > 1:
        labels = [key for key in _LABEL_NAMES if key in labels][:1] or labels
    if len(images) != 1 or len(labels) != 1:
        types = listing(f"{key}: {type(kind).__name__}" for key, kind in features.items())
        raise InputError(
            f"hf:{name} needs one image column and one label column (ClassLabel, or integers called "
            f"{listing(_LABEL_NAMES)}); it has {types}. Cast or drop columns, save_to_disk, and give that folder"
        )
    return images[0], labels[0]


def _load(name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise InputError(f"hf:{name} needs Hugging Face datasets: pip install 'fastntk[hf]' ({error})") from error
    path = Path(name).expanduser()
    try:
        if path.suffix == ".parquet" and path.is_file():
            return datasets.load_dataset("parquet", data_files=str(path))
        if path.is_dir() and any((path / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(str(path))
        # A hub name, or a folder of parquet files or pictures: the library tells these apart itself.
        return datasets.load_dataset(str(path) if path.exists() else name)
    except Exception as error:  # the library raises many kinds: not found, no network, no permission, bad files
        raise InputError(f"hf:{name} cannot be loaded: {type(error).__name__}: {error}") from error


def _pick(loaded: Any, name: str, split: str | None) -> tuple[Any, str]:
    """Return the table of a split and the split's name."""
    if hasattr(loaded, "keys"):
        split_name = split or "train"
        if split_name not in loaded:
            advice = listing(f"hf:{name}@{key}" for key in loaded)
            raise InputError(f"hf:{name} has no split {split_name!r}; say which one: {advice}")
        return loaded[split_name], split_name
    own = str(loaded.split) if loaded.split is not None else None
    if split is not None and split != own:
        raise InputError(f"hf:{name} is a single table{f' ({own})' if own else ''} and has no split {split!r}")
    return loaded, own or "train"
