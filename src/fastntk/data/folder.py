"""An image folder with one sub-folder a class, ImageNet-R's layout among others.

Classes are the sub-folders in sorted order, ids the files' paths relative to the folder (or to the split's
sub-folder), with "/" on every system. Hidden files and folders, and files that do not end like an image, are not looked at;
linked folders are.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

from fastntk.base.errors import InputError, listing
from fastntk.data.catalog import Catalog
from fastntk.data.pictures import ENDINGS, decode

SPLITS = ("train", "test", "holdout", "val", "valid", "validation", "dev")


def open_folder(path: Path, split: str | None, *, emptied: bool = False) -> Catalog:
    """Return the images below ``path``, or below its sub-folder named ``split``; nothing is decoded yet.

    ``emptied``: class folders without images, and links to images that are gone, are passed over (somebody erased them) and not
    refused.
    """
    root = _root(path, split)
    classes = _subfolders(root)
    if not classes:
        raise InputError(f"{root} has no sub-folders; an image folder holds one sub-folder a class")
    files = {name: _files(root, name, emptied=emptied) for name in classes}
    empty = [name for name, images in files.items() if not images]
    if empty and not emptied:
        raise InputError(
            f"class folders without images in {root}: {listing(empty)}; add images ({listing(ENDINGS, most=20)}) "
            "or remove the folder"
        )
    ids = tuple(name for images in files.values() for name in images)
    labels = np.repeat(np.arange(len(classes)), [len(images) for images in files.values()])
    return Catalog(str(root), ids, labels, classes, lambda row: read_image(root / ids[row]))


def read_image(path: Path) -> Image.Image:
    """Decode a picture, naming the file if that fails."""
    return decode(path, name=str(path))


def _root(path: Path, split: str | None) -> Path:
    if not path.is_dir():
        raise InputError(f"no folder {path}")
    inside = _subfolders(path)
    if split is None:
        splits = [name for name in inside if name in SPLITS]
        if splits and (len(splits) == len(inside) or ("train" in splits and len(splits) > 1)):
            advice = listing(f"{path}@{name}" for name in splits)
            raise InputError(f"{path} holds splits ({listing(splits)}), not classes: say which one, {advice}")
        return path
    if split not in inside:
        raise InputError(f"{path} has no sub-folder {split!r} for @{split}; it has {listing(inside) or 'none'}")
    return path / split


def _subfolders(path: Path) -> tuple[str, ...]:
    return tuple(sorted(item.name for item in path.iterdir() if item.is_dir() and not item.name.startswith(".")))


def _files(root: Path, name: str, *, emptied: bool) -> list[str]:
    """Return the images of one class, at any depth, as sorted paths relative to ``root``."""
    paths, real_paths = [], set()
    for folder, inner, names in os.walk(root / name, followlinks=True):
        real = os.path.realpath(folder)
        if real in real_paths:  # a link that leads back
            inner.clear()
            continue
        real_paths.add(real)
        dirs = [each for each in inner if not each.startswith(".")]
        inner[:] = sorted(dirs, key=lambda each: (Path(folder, each).is_symlink(), each))  # a folder keeps its own name in ids
        for file in names:
            if file.lower().endswith(ENDINGS) and not file.startswith("."):
                path = Path(folder) / file
                if not emptied or path.exists():
                    paths.append(path.relative_to(root).as_posix())
    return sorted(paths)
