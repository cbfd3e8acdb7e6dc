"""Arrays in an ``.npz``: x (n, H, W, 3) or (n, H, W) uint8, y (n,) integers, id (n,) if wanted, classes (C,) names.

With two splits in one file the arrays are x_train, y_train, id_train, x_test, y_test, id_test.
Without ids the id is the row of the split's own array, so training and test ids may coincide.
Nothing is unpickled: arrays of Python objects are refused.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastntk.base.errors import InputError, listing
from fastntk.data.catalog import Catalog
from fastntk.data.samples import as_ids, class_names, label_tensor, sample_ids


def open_npz(path: Path, split: str | None) -> Catalog:
    """Return the arrays of one split; with no split asked, ``x`` or else ``x_train``."""
    if not path.is_file():
        raise InputError(f"no file {path}")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is a single array, not an .npz archive of x and y; see numpy.savez")
        with archive:
            return _catalog(path, archive, split)
    except InputError:
        raise
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read as .npz: {error}") from error


def _catalog(path: Path, archive: Any, split: str | None) -> Catalog:
    suffix = _suffix(path, archive.files, split)
    if f"y{suffix}" not in archive.files:
        raise InputError(f"{path} has x{suffix} but no y{suffix}; its arrays are {listing(archive.files)}")
    pixels = _pixels(path, archive[f"x{suffix}"], name=f"x{suffix}")
    try:
        labels = label_tensor(archive[f"y{suffix}"], count=len(pixels)).numpy()
        own_ids = as_ids(_text(archive[f"id{suffix}"])) if f"id{suffix}" in archive.files else None
        ids = sample_ids(own_ids, count=len(pixels))
        classes = class_names(_text(archive["classes"]).tolist()) if "classes" in archive.files else None
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return Catalog(str(path), ids, labels, classes, lambda row: pixels[row])


def _suffix(path: Path, names: list[str], split: str | None) -> str:
    suffixes = [f"_{split}"] if split else ["", "_train"]
    for suffix in suffixes:
        if f"x{suffix}" in names:
            return suffix
    wanted = " or ".join(f"x{suffix}" for suffix in suffixes)
    if split and "x" in names:
        raise InputError(f"{path} has one set of arrays, x and y, and no split {split!r}: leave out @{split}")
    raise InputError(f"{path} needs an array {wanted}; it has {listing(names) or 'none'}")


def _pixels(path: Path, array: npt.NDArray[Any], *, name: str) -> npt.NDArray[np.uint8]:
    description = f"{path}: {name} is {array.dtype} {array.shape}"
    if array.dtype != np.uint8:
        raise InputError(
            f"{description}, expected uint8 pixels 0…255 (normalisation is the model's business and done on loading); "
            "for arrays that are ready for a model use fastntk.Samples in Python"
        )
    if array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3):
        return array
    advice = ""
    if array.ndim == 4 and array.shape[1] in (1, 3):
        advice = "; channels come last: transpose with x.transpose(0, 2, 3, 1)"
    elif array.ndim == 4 and array.shape[3] == 1:
        advice = "; drop the last axis of gray images"
    raise InputError(f"{description}, expected (n, H, W, 3), or (n, H, W) for gray{advice}")


def _text(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Decode an array of bytes to str, leave others alone."""
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
