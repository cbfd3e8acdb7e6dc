"""Arrays in an ``.npz``: x (n, H, W, 3) or (n, H, W) uint8, y (n,) integers, id (n,) if wanted, classes (C,) names.

With two splits in one file the arrays are x_train, y_train, id_train, x_test, y_test, id_test.
Without ids the id is the row of the split's own array, so training and test ids may coincide.
Nothing is unpickled: arrays of Python objects are refused.
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import MAGIC_PREFIX

from fastntk.base.errors import InputError, listing
from fastntk.base.files import regular_file
from fastntk.base.memory import available_memory
from fastntk.base.text import byte_size
from fastntk.data.catalog import Catalog
from fastntk.data.samples import as_ids, class_names, label_tensor, sample_ids

BOMB_BYTES, BOMB_RATIO = 1 << 28, 100
"""An array larger than the one, and than the other times what it takes in the archive, is no data set of pictures."""

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def open_npz(path: Path, split: str | None) -> Catalog:
    """Return the arrays of one split; with no split asked, ``x`` or else ``x_train``."""
    if not path.exists():
        raise InputError(f"no file {path}")
    regular_file(path, expected="an .npz archive")
    with path.open("rb") as stream:
        if stream.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
            raise InputError(f"{path} is a single array, not an .npz archive of x and y; see numpy.savez")
    try:
        with zipfile.ZipFile(path) as archive:
            return _catalog(path, _Arrays(path, archive), split)
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        raise InputError(f"{path} cannot be read as .npz: {error}") from error


class _Arrays:
    """The arrays of an archive by name, each read only after its size was found to be what it says, and to fit into memory."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive = path, archive
        self._refuse_incomplete()
        self.names = [name.removesuffix(".npy") for name in archive.namelist()]

    def _refuse_incomplete(self) -> None:
        """Refuse a directory that lost or renamed members: arrays that may be absent (ids, names) would go unmissed."""
        members = self._archive.infolist()
        for member in members:
            self._archive.open(member).close()  # compares the two places where the name is
        with self._path.open("rb") as stream:
            stream.seek(-22, os.SEEK_END)
            end = stream.read()
        if end[:4] == b"PK\5\6" and int.from_bytes(end[10:12], "little") != len(members):
            raise ValueError("its directory is damaged")

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        member = self._archive.getinfo(f"{name}.npy")
        with self._archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"{name} is written in version {version} of the .npy format")
            shape, _, dtype = _HEADERS[version](stream)
            size, available = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which are never unpickled")
        if min(shape, default=0) < 0 or size != available:
            raise ValueError(f"{name} says it is {dtype} {shape}, {size} bytes, and has {available}")
        self._refuse_bomb(name, size, packed=member.compress_size)
        with self._archive.open(member) as stream:
            array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array

    def _refuse_bomb(self, name: str, size: int, *, packed: int) -> None:
        if size > available_memory():
            raise InputError(f"{self._path}: {name} has {byte_size(size)}, more than the memory that is available")
        if size > BOMB_BYTES and size > BOMB_RATIO * packed:
            raise InputError(
                f"{self._path}: {name} unpacks from {byte_size(packed)} to {byte_size(size)}, as no pictures do: a zip bomb. "
                " If the data is really like this, save it with numpy.savez, uncompressed"
            )


def _catalog(path: Path, arrays: _Arrays, split: str | None) -> Catalog:
    suffix = _suffix(path, arrays.names, split)
    if f"y{suffix}" not in arrays.names:
        raise InputError(f"{path} has x{suffix} but no y{suffix}; its arrays are {listing(arrays.names)}")
    _refuse_unread_ids(path, arrays.names, suffix)
    pixels = _pixels(path, arrays[f"x{suffix}"], name=f"x{suffix}")
    try:
        labels = label_tensor(arrays[f"y{suffix}"], count=len(pixels)).numpy()
        own_ids = as_ids(_text(arrays[f"id{suffix}"])) if f"id{suffix}" in arrays.names else None
        ids = sample_ids(own_ids, count=len(pixels))
        classes = class_names(_text(arrays["classes"]).tolist()) if "classes" in arrays.names else None
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return Catalog(str(path), ids, labels, classes, lambda row: pixels[row])


def _refuse_unread_ids(path: Path, names: list[str], suffix: str) -> None:
    """Ids under another name would be passed over, and a request would forget other samples than it names."""
    array = f"id{suffix}"
    likely = {f"{stem}{end}" for stem in ("ids", "sample_id", "sample_ids", "image_id", "image_ids") for end in {"", suffix}}
    others = sorted((likely | {"id"}) & set(names) - {array})
    if others and array not in names:
        raise InputError(
            f"{path} has {listing(others)}, which looks like ids and is not read: call the array {array}, or leave it out (ids "
            "are then 0, 1, …)"
        )


def _suffix(path: Path, names: list[str], split: str | None) -> str:
    suffixes = [f"_{split}"] if split else ["", "_train"]
    for suffix in suffixes:
        if f"x{suffix}" in names:
            return suffix
    array = " or ".join(f"x{suffix}" for suffix in suffixes)
    if split and "x" in names:
        raise InputError(f"{path} has one set of arrays, x and y, and no split {split!r}: leave out @{split}")
    raise InputError(f"{path} needs an array {array}; it has {listing(names) or 'none'}")


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
