"""What a setting loads beyond a plain source: classes drawn at random, and a hold-out set of the images training leaves.

ImageNet-R is one folder of 200 classes without a split: 20 or 50 of them are drawn with a seed, the first images of each are
trained on, and the next ones are held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fastntk.base.errors import InputError, listing
from fastntk.data import Samples
from fastntk.data.catalog import Catalog, Selection
from fastntk.data.sources import read_selection
from fastntk.models.card import InputSpec
from fastntk.reproduce.setting import SHARED, Setting, locate


def chosen_classes(setting: Setting, names: Sequence[str]) -> tuple[str, ...] | int | None:
    """The setting's ``only_classes``, drawn where it says so: in drawn order, so that label 0 is a random class."""
    if setting.class_draw is None:
        return setting.only_classes
    count = setting.only_classes
    assert isinstance(count, int)
    if not 1 <= count <= len(names):
        raise InputError(f"{setting.name}: {count} classes cannot be drawn from {len(names)} in {setting.data}.")
    labels = np.random.default_rng(setting.class_draw).choice(len(names), count, replace=False)
    return tuple(names[label] for label in labels.tolist())


def check_files(settings: Sequence[Setting], shared: Path) -> None:
    """Refuse, before hours of work, settings whose files are not below ``shared``; all that is missing is named at once."""
    sources = [text for setting in settings for text in (setting.data, setting.holdout, setting.weights) if text]
    places = {Path(locate(_place(text), shared)) for text in sources if SHARED in text}
    missing = sorted(str(path) for path in places if not path.exists())
    if missing:
        raise InputError(
            f"Not found: {listing(missing, most=20)}. Choose the folder that holds data/ and weights/ (docs/reproduce.md says "
            "what belongs there), or leave those cells out."
        )


def _place(text: str) -> str:
    """The path in a source: without its kind and its split."""
    word = text.rpartition("@")[0] or text
    return word[word.index(SHARED) :]


def load_rest(catalog: Catalog, samples: Samples, *, spec: InputSpec, most: int | None) -> Samples:
    """The images of the samples' classes that are not among the samples, the first ``most`` of each class."""
    assert samples.classes is not None
    trained_ids = set(samples.ids)
    rows: list[int] = []
    labels: list[int] = []
    for label, name in enumerate(samples.classes):
        of_class = np.flatnonzero(catalog.labels == catalog.names.index(name)).tolist()
        others = [row for row in of_class if catalog.ids[row] not in trained_ids][:most]
        rows += others
        labels += [label] * len(others)
    if not rows:
        raise InputError(f"{catalog.origin}: training takes every image of its classes; lower images_per_class.")
    return read_selection(catalog, Selection(np.array(rows), np.array(labels), samples.classes), spec)
