"""CIFAR-10 and CIFAR-100 in their publisher's "python version": from a folder, the .tar.gz, or downloaded.

Ids are official indices, 0…49999 for training images and test/0…test/9999 for test images. CIFAR-100 has its 100
fine labels. Pickles are read by :mod:`fastntk.data.safe_pickle`; of an archive only the known members are read,
nothing is extracted, and its checksum has to be right. An extracted folder has none: damage that leaves a readable pickle goes
unseen there.
"""

from __future__ import annotations

import gzip
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastntk.base.download import download
from fastntk.base.errors import InputError, listing
from fastntk.base.files import read_bytes, regular_file
from fastntk.base.text import byte_size
from fastntk.data.catalog import Catalog, Labels
from fastntk.data.safe_pickle import load_plain
from fastntk.data.samples import class_names

MOST_BYTES = 1 << 29
"""Of one file, and of an archive when it is unpacked."""


@dataclass(frozen=True)
class Layout:
    """Where a CIFAR version keeps what."""

    folder: str
    url: str
    md5: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    label_key: bytes
    names_key: bytes


LAYOUTS = {
    "cifar10": Layout(
        folder="cifar-10-batches-py",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        meta="batches.meta",
        label_key=b"labels",
        names_key=b"label_names",
    ),
    "cifar100": Layout(
        folder="cifar-100-python",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        train=("train",),
        test=("test",),
        meta="meta",
        label_key=b"fine_labels",
        names_key=b"fine_label_names",
    ),
}


def open_cifar(name: str, path: Path | None, *, split: str = "train") -> Catalog:
    """Return one split; ``path`` is the extracted folder, the folder it lies in, or the .tar.gz."""
    layout = LAYOUTS[name]
    if path is None:
        path = download(layout.url, md5=layout.md5)
    batches = layout.test if split == "test" else layout.train
    contents = read_members(path, layout, (*batches, layout.meta))
    classes = _names(load_plain(contents[layout.meta], origin=f"{path}: {layout.meta}"), layout, path)
    parts = [_batch(load_plain(contents[batch], origin=f"{path}: {batch}"), layout, path) for batch in batches]
    pixels = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    prefix = "test/" if split == "test" else ""
    ids = tuple(f"{prefix}{index}" for index in range(len(labels)))
    return Catalog(f"{name} ({path})", ids, labels, classes, lambda row: pixels[row])


def read_members(path: Path, layout: Layout, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the named files from a folder or a .tar.gz; all of them must be there."""
    if path.is_dir():
        folder = path / layout.folder if (path / layout.folder).is_dir() else path
        present = [name for name in names if (folder / name).exists()]
        contents = {name: read_bytes(folder / name, expected="a file of CIFAR", most=MOST_BYTES) for name in present}
    elif path.exists():
        contents = _tar_members(path, {f"{layout.folder}/{name}": name for name in names})
    else:
        raise InputError(f"no file or folder {path}; give the extracted {layout.folder} or the archive from {layout.url}")
    missing = [name for name in names if name not in contents]
    if missing:
        raise InputError(f"{path} lacks {listing(missing)} of {layout.folder}; get {layout.url} again")
    return contents


def _tar_members(path: Path, wanted: dict[str, str]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    regular_file(path, expected="a .tar.gz")
    try:
        with gzip.open(path) as gzip_file:
            stream = _Bounded(gzip_file)
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]  # it takes any reader
                for member in archive:
                    name = wanted.get(member.name.removeprefix("./"))
                    file = archive.extractfile(member) if name is not None and member.isfile() and not member.issparse() else None
                    if name is not None and file is not None:
                        contents[name] = file.read()
            while stream.read(1 << 20):  # the checksum comes last, after the end of the archive
                pass
    except InputError as error:
        raise InputError(f"{path} {error}") from error
    except Exception as error:  # a damaged archive can raise nearly anything
        raise InputError(f"{path} cannot be read as a .tar.gz: {error}; get it again from its publisher") from error
    return contents


class _Bounded:
    """A stream that may not grow beyond all bounds while it is unpacked."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._count = stream, 0

    def read(self, size: int) -> bytes:
        content = self._stream.read(min(size, 1 << 20))
        self._count += len(content)
        if self._count > MOST_BYTES:
            raise InputError(f"unpacks to more than {byte_size(MOST_BYTES)}, where the published archives have 190 MB")
        return content


def _entry(content: Any, key: bytes, path: Path) -> Any:
    """Return an entry of a dict whose keys are bytes (the published files) or str (files written since)."""
    for name in (key, key.decode()):
        if isinstance(content, dict) and name in content:
            return content[name]
    raise InputError(f"{path}: expected a dict with {key.decode()!r}, as in the published files")


def _names(content: Any, layout: Layout, path: Path) -> tuple[str, ...]:
    """Return the class names in the file that describes the others."""
    names = _entry(content, layout.names_key, path)
    if not isinstance(names, list) or not all(isinstance(name, (bytes, str)) for name in names):
        raise InputError(f"{path}: expected a list of names as {layout.names_key.decode()!r}")
    try:
        classes = class_names(name.decode() if isinstance(name, bytes) else name for name in names)
    except ValueError as error:  # no UTF-8, control characters, a name given twice
        raise InputError(f"{path}: {layout.names_key.decode()}: {error}") from error
    assert classes is not None
    return classes


def _batch(content: Any, layout: Layout, path: Path) -> tuple[npt.NDArray[np.uint8], Labels]:
    """Return pixels (n, 32, 32, 3) and labels (n,) of one file: rows of 3 072 bytes, red, green, blue planes."""
    data = _entry(content, b"data", path)
    labels = _entry(content, layout.label_key, path)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        description = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise InputError(f"{path}: expected data as uint8 (n, 3072), not {description}")
    plain = isinstance(labels, np.ndarray) or (isinstance(labels, list) and all(type(label) is int for label in labels))
    if not plain or np.shape(labels) != (len(data),) or not all(0 <= label < 1 << 31 for label in labels):
        raise InputError(f"{path}: expected {len(data)} integer labels as {layout.label_key.decode()!r}")
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.asarray(labels, np.int64)
