"""Pictures in Hugging Face tables, decoded here and not by that library, which opens whatever Pillow knows and any address.

A cell holds the bytes of a file, or the path of one on this machine. As the library does it, a picture is turned as its EXIF data
say and converted to the column's mode. Told without importing the library.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, ImageOps

from fastntk.base.errors import InputError
from fastntk.data.pictures import decode


def is_table(dataset: Any) -> bool:
    """Whether this is a Hugging Face table."""
    return hasattr(dataset, "features") and hasattr(dataset, "column_names") and hasattr(dataset, "with_format")


class Pictures:
    """Rows of a table, as dicts, with the pictures in them decoded here."""

    def __init__(self, table: Any) -> None:
        kinds = dict(table.features or {}).items()
        columns = {name: kind for name, kind in kinds if type(kind).__name__ == "Image" and getattr(kind, "decode", False)}
        for name, kind in columns.items():
            feature = copy.copy(kind)
            feature.decode = False
            table = table.cast_column(name, feature)
        self._table = table
        self._modes = {name: getattr(kind, "mode", None) for name, kind in columns.items()}

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = dict(self._table[index])
        for name, mode in self._modes.items():
            if is_cell(row[name]):
                row[name] = decode_cell(row[name], name=f"row {index}", mode=mode)
        return row


def is_cell(value: Any) -> bool:
    """Whether this is a picture that is not decoded: the bytes of a file, or a cell of a table."""
    return isinstance(value, bytes) or (isinstance(value, Mapping) and set(value) == {"bytes", "path"})


def decode_cell(value: Any, *, name: str, mode: str | None = None) -> Image.Image:
    """Decode what :func:`is_cell` describes; ``name`` says in errors which one."""
    content = value["bytes"] if isinstance(value, Mapping) else value
    if content is None and value["path"] is None:
        raise InputError(f"{name} has no image")
    image = decode(Path(value["path"]) if content is None else content, name=name)
    try:
        if image.getexif().get(ExifTags.Base.Orientation) is not None:
            image = ImageOps.exif_transpose(image)
        return image.convert(mode) if mode and mode != image.mode else image
    except Exception as error:  # damaged EXIF data can raise nearly anything
        raise InputError(f"{name} cannot be turned as its EXIF data say, or converted to {mode}: {error}; repair it") from error
