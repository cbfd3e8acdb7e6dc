"""From the word on the command line to model-ready samples: ``digits``, ``cifar10:PATH@test``, ``photos/@train`` …

    SRC = digits | cifar10[:PATH] | cifar100[:PATH] | FILE.npz | FOLDER | hf:NAME    each with an optional @split

Each source has its own small file and opens as a :class:`~fastntk.data.catalog.Catalog`; here the word is taken
apart, and what was selected is decoded, resized and normalised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fastntk.base.errors import InputError, listing
from fastntk.base.progress import track
from fastntk.data.catalog import Catalog, Selection, hiding, select
from fastntk.data.cifar import LAYOUTS, open_cifar
from fastntk.data.digits import open_digits
from fastntk.data.folder import SPLITS as FOLDER_SPLITS
from fastntk.data.folder import open_folder
from fastntk.data.hub import open_hub
from fastntk.data.npz import open_npz
from fastntk.data.samples import Samples
from fastntk.data.transforms import check_spec, prepare
from fastntk.models.card import InputSpec

SPLITS: dict[str, tuple[str, ...]] = {
    "digits": ("train", "test"),
    "cifar10": ("train", "test"),
    "cifar100": ("train", "test"),
    "npz": ("train", "test"),
    "folder": FOLDER_SPLITS,
    "hf": ("train", "test", "validation"),
}

FORMS = "digits, cifar10[:PATH], cifar100[:PATH], an .npz file, an image folder, hf:<dataset>, each with @train or @test"


@dataclass(frozen=True)
class SourceName:
    """A source word taken apart: ``kind`` is a key of :data:`SPLITS`, ``place`` a path, a dataset's name, or empty."""

    kind: str
    place: str
    split: str | None


def parse_source(src: str) -> SourceName:
    """Take a source word apart; what it names is not opened, but a path has to exist."""
    word, split = _cut_split(src.strip())
    head, _, rest = word.partition(":")
    if word == "digits":
        kind, place = "digits", ""
    elif head in LAYOUTS:
        kind, place = head, rest
    elif head == "hf" and rest:
        kind, place = "hf", rest
    elif word.lower().endswith(".npz"):
        kind, place = "npz", word
    elif word and Path(word).expanduser().is_dir():
        kind, place = "folder", word
    else:
        looks = "is a file of a kind not known here" if word and Path(word).expanduser().is_file() else "is not there"
        raise InputError(f"unknown data source {src!r}: as a path it {looks}; expected {FORMS}")
    if split is not None and split not in SPLITS[kind]:
        raise InputError(f"{src!r}: unknown split @{split}; {kind} takes {listing('@' + s for s in SPLITS[kind])}")
    return SourceName(kind, place, split)


def open_source(src: str, *, emptied: bool = False) -> Catalog:
    """Open a source without decoding pictures; no split means ``train`` wherever there is a choice.

    ``emptied``: class folders of an image folder may be empty.
    """
    name = parse_source(src)
    if name.kind == "digits":
        return open_digits(name.split or "train")
    if name.kind in LAYOUTS:
        folder = Path(name.place).expanduser() if name.place else None
        return open_cifar(name.kind, folder, split=name.split or "train")
    if name.kind == "hf":
        return open_hub(name.place, name.split)
    place = Path(name.place).expanduser()
    return open_npz(place, name.split) if name.kind == "npz" else open_folder(place, name.split, emptied=emptied)


def load_source(
    src: str | Path,
    *,
    spec: InputSpec,
    images_per_class: int | None = None,
    only_classes: int | str | Sequence[int | str] | None = None,
    classes: Sequence[str] | None = None,
    vanished: Sequence[str] = (),
    hide: bytes | None = None,
) -> Samples:
    """Load a source as samples ready for a model that expects ``spec``: inputs (n, 3, size, size) float32.

    ``only_classes``: the first k classes (an int), or names or labels, which are numbered anew in that order.
    ``images_per_class``: the first N of each class in the source's order; too few is an error.
    ``classes``: another data set's class names: labels are matched to them by name and other classes are left out,
    which is how a hold-out set is loaded for a run. ``vanished``: those of them that the source may lack. ``hide``: a key;
    classes are then called by keyed digests of their names. Ids depend on none of these.
    """
    check_spec(spec)
    catalog = hiding(open_source(str(src), emptied=bool(vanished)), hide)
    part = select(catalog, images_per_class=images_per_class, only_classes=only_classes, classes=classes, vanished=vanished)
    return read_selection(catalog, part, spec)


def read_selection(catalog: Catalog, part: Selection, spec: InputSpec) -> Samples:
    """Decode and prepare what was selected."""
    inputs = torch.empty(len(part.rows), 3, spec.size, spec.size)
    for position, row in enumerate(track(part.rows.tolist(), f"reading {catalog.origin}")):
        picture = catalog.read(row)
        try:
            inputs[position] = prepare(picture, spec)
        except InputError as error:
            raise InputError(f"image {catalog.ids[row]} of {catalog.origin}: {error}") from error
    ids = [catalog.ids[row] for row in part.rows]
    return Samples(inputs, part.labels, ids, part.classes)


def _cut_split(src: str) -> tuple[str, str | None]:
    """Cut ``@split`` off the end; an @ that belongs to an existing path stays."""
    match = re.fullmatch(r"(.*)@(\w+)", src)
    if match is None or Path(src).expanduser().exists():
        return src, None
    return match[1], match[2]
