"""Tuned vectors on disk, named by what they were made from: the models of an ensemble are trained once.

    <folder>/ensembles/<digest of everything that decides them>/<name>.safetensors

Files are written whole or not at all; they and the folders are their owner's alone to read. One that cannot be read, or whose
digest does not match, is made again with a warning. They hold models that saw the data to be forgotten: delete the folder when
the audits are done. The default place is ``$FASTNTK_CACHE``, else ``~/.cache/fastntk``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fastntk.base.atomic import write_file
from fastntk.base.digest import tensor_digest
from fastntk.base.download import CACHE_VARIABLE
from fastntk.base.download import cache_folder as download_cache
from fastntk.base.errors import InputError


def cache_folder(cache: str | Path | None = None) -> Path:
    """Where things are kept: the place given, the variable's, or the default."""
    folder = download_cache() if cache is None else Path(cache).expanduser()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"The cache {folder} is not a folder: give another with cache=... (--cache) or {CACHE_VARIABLE}.")
    return folder


def cached(path: Path, make: Callable[[], dict[str, Tensor]], *, names: tuple[str, ...]) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a file, or made and written; and whether they were there."""
    existing = _read(path, names)
    if existing is not None:
        return existing, True
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in make().items()}
    digests = {name: tensor_digest(value) for name, value in tensors.items()}
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # of an older release, or of a lax umask
    write_file(path, safetensors.torch.save(tensors, metadata=digests), overwrite=True, private=True)
    return tensors, False


def _read(path: Path, names: tuple[str, ...]) -> dict[str, Tensor] | None:
    if not path.is_file():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            digests = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
        warnings.warn(f"{path} cannot be read ({error}): made again.", stacklevel=3)
        return None
    if any(digests.get(name) != tensor_digest(value) for name, value in tensors.items()):
        warnings.warn(f"{path} was changed after it was written: made again.", stacklevel=3)
        return None
    return tensors
