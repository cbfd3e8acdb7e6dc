"""What every source offers before a single picture is decoded, and how a part of it is chosen.

A :class:`Catalog` has ids, labels and class names at hand and reads pictures on demand, so that a selection of
classes or of the first images of each costs only what it keeps. Ids belong to the source: no selection changes them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fastntk.base.digest import keyed_digest
from fastntk.base.errors import InputError, listing
from fastntk.data.samples import as_ids, class_names
from fastntk.data.transforms import Picture

Labels = npt.NDArray[np.int64]

GAPS = 1000
"""So many labels more than images are taken for classes without images; more are numbers of another kind."""
_HIDDEN = "hidden-"


@dataclass(frozen=True, eq=False)
class Catalog:
    """The contents of a source: ``read(row)`` returns the picture of a row; labels are (n,) int64.

    ``classes`` are the source's own names, None where it has none. Then labels are names: classes 0 to the largest label or,
    where that is far above the number of images, the labels that occur, and ``labels`` are numbered anew by them.
    """

    origin: str
    ids: tuple[str, ...]
    labels: Labels
    classes: tuple[str, ...] | None
    read: Callable[[int], Picture]
    names: tuple[str, ...] = field(init=False)
    """Class names; those of a source without names are its labels."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.labels):
            raise InputError(f"{self.origin}: {len(self.ids)} ids for {len(self.labels)} labels")
        if not len(self.labels):
            raise InputError(f"{self.origin} holds no images")
        count = None if self.classes is None else len(self.classes)
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= (np.inf if count is None else count)))
        if len(wrong):
            label_range = "0 or more" if count is None else f"0…{count - 1} for its {count} classes"
            values, where = sorted(set(self.labels[wrong].tolist())), listing(self.ids[row] for row in wrong)
            raise InputError(f"{self.origin}: labels must be {label_range}; found {listing(values)} at ids {where}")
        occurring = np.arange(len(self.classes or ()))
        if self.classes is None:
            largest = int(self.labels.max())
            occurring = np.arange(largest + 1) if largest < len(self.labels) + GAPS else np.unique(self.labels)
        names = self.classes or tuple(map(str, occurring.tolist()))
        object.__setattr__(self, "labels", np.searchsorted(occurring, self.labels))
        object.__setattr__(self, "names", names)
        try:
            as_ids(self.ids)
            class_names(names)
        except InputError as error:
            raise InputError(f"{self.origin}: {error}") from error


def hidden_name(name: str, key: bytes) -> str:
    """What stands for a class name that is not to be written anywhere: a keyed digest of it."""
    return _HIDDEN + keyed_digest(["class", name], key)[:16]


def is_hidden(name: str) -> bool:
    """Whether a class name is such a digest."""
    return name.startswith(_HIDDEN)


def hiding(catalog: Catalog, key: bytes | None) -> Catalog:
    """The catalog with its class names hidden; as it is without a key, or where it has labels only."""
    if key is None or catalog.classes is None:
        return catalog
    return dataclasses.replace(catalog, classes=tuple(hidden_name(name, key) for name in catalog.classes))


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows to read (k,), in source order, with their new labels (k,) and what the new labels are called."""

    rows: npt.NDArray[np.int64]
    labels: Labels
    classes: tuple[str, ...]


def select(
    catalog: Catalog,
    *,
    images_per_class: int | None = None,
    only_classes: int | str | Sequence[int | str] | None = None,
    classes: Sequence[str] | None = None,
    vanished: Sequence[str] = (),
) -> Selection:
    """Choose classes and the first images of each; see :func:`fastntk.data.sources.load_source`."""
    if only_classes is not None and classes is not None:
        raise InputError("give only_classes or the classes to align with, not both")
    if classes is not None:
        names = tuple(classes)
        source_labels: Sequence[int | None] = aligned(catalog, names, vanished)
    else:
        source_labels = chosen(catalog, only_classes)
        names = tuple(catalog.names[label] for label in source_labels if label is not None)
    if images_per_class is not None and images_per_class < 1:
        raise InputError(f"images_per_class must be at least 1, not {images_per_class}")
    order = np.argsort(catalog.labels, kind="stable")
    ends = np.cumsum(np.bincount(catalog.labels, minlength=len(catalog.names)))
    starts = np.concatenate([[0], ends[:-1]])
    empty = np.empty(0, np.int64)
    members = [empty if label is None else order[starts[label] : ends[label]] for label in source_labels]
    rows = [positions if images_per_class is None else positions[:images_per_class] for positions in members]
    _refuse_short(catalog.origin, dict(zip(names, map(len, rows))), images_per_class)
    new_labels = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    order = np.argsort(np.concatenate(rows), kind="stable")
    return Selection(np.concatenate(rows)[order], new_labels[order], names)


def select_ids(catalog: Catalog, ids: Sequence[str], classes: Sequence[str] | None) -> tuple[Selection, tuple[str, ...]]:
    """Choose the samples of these ids, in their order, labelled by class name; second, the ids that the source lacks.

    A class of ``classes`` that the source no longer has takes nothing from the labels of the others.
    """
    rows = {name: row for row, name in enumerate(catalog.ids)}
    names = catalog.names if classes is None else tuple(classes)
    numbers = {name: number for number, name in enumerate(names)}
    positions = [rows[name] for name in ids if name in rows and catalog.names[catalog.labels[rows[name]]] in numbers]
    labels = [numbers[catalog.names[catalog.labels[row]]] for row in positions]
    present = {catalog.ids[row] for row in positions}
    chosen_rows = Selection(np.asarray(positions, np.int64), np.asarray(labels, np.int64), names)
    return chosen_rows, tuple(name for name in ids if name not in present)


def chosen(catalog: Catalog, only_classes: int | str | Sequence[int | str] | None) -> list[int]:
    """Return the source labels to keep, in their new order.

    An int k (or its digits as str) means the first k classes; else names or labels, as a sequence or joined by
    commas. A str counts as a name first and, where no class has it, as a label.
    """
    names = catalog.names
    if only_classes is None:
        return list(range(len(names)))
    if isinstance(only_classes, str):
        text = only_classes.strip()
        parts = [part.strip() for part in text.split(",") if part.strip()]
        only_classes = int(text) if text.isdecimal() else [text] if text in names else parts
    if isinstance(only_classes, int):
        if not 1 <= only_classes <= len(names):
            raise InputError(f"{catalog.origin} has {len(names)} classes: choose 1 to {len(names)}, not {only_classes}")
        return list(range(only_classes))
    places = _places(catalog)
    matches = [places.get(item) for item in only_classes]
    unknown = [item for item, label in zip(only_classes, matches) if label is None]
    if unknown or not matches:
        what = f"no class {listing(map(repr, unknown))}" if unknown else "classes to choose from, but none was asked for"
        raise InputError(f"{catalog.origin} has {what}; its classes are {listing(names, most=20)}")
    labels = [label for label in matches if label is not None]
    twice = sorted(names[label] for label, times in Counter(labels).items() if times > 1)
    if twice:
        raise InputError(f"classes chosen more than once: {listing(twice)}")
    return labels


def aligned(catalog: Catalog, classes: tuple[str, ...], vanished: Sequence[str] = ()) -> list[int | None]:
    """Return, for each of these names, the source's label of that name.

    Where the source has no names, its labels are compared with names that are numbers; one without images is None, and so is
    one of the ``vanished`` that the source lacks.
    """
    if catalog.classes is None:
        words = [name for name in classes if not name.isdecimal()]
        if words:
            raise InputError(
                f"{catalog.origin} has no class names, so its labels cannot be matched with {listing(words)}; "
                "add them (an array `classes` in an .npz)"
            )
    places = {name: place for place, name in enumerate(catalog.names)}
    missing = [name for name in classes if name not in places and name not in vanished]
    if missing and catalog.classes is not None:
        raise InputError(f"{catalog.origin} lacks the classes {listing(missing)}; it has {listing(catalog.classes, most=20)}")
    return [places.get(name) for name in classes]


def _places(catalog: Catalog) -> dict[int | str, int]:
    """Where a class is in ``names``: by its label as int or str and, which comes first, by its name."""
    names = catalog.names
    labels: Iterable[int] = map(int, names) if catalog.classes is None else range(len(names))
    places: dict[int | str, int] = {}
    for place, label in enumerate(labels):
        places[label] = places[str(label)] = place
    return places | {name: place for place, name in enumerate(names)}


def _refuse_short(origin: str, counts: dict[str, int], images_per_class: int | None) -> None:
    if not any(counts.values()):
        raise InputError(f"{origin} has no images of the classes {listing(counts)}")
    short = [f"{name} ({count})" for name, count in counts.items() if count < (images_per_class or 0)]
    if short:
        raise InputError(
            f"{origin} has fewer than {images_per_class} images of {listing(short)}; lower images_per_class or "
            "leave those classes out"
        )
