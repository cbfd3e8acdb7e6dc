"""A folder of tensors with a manifest that vouches for every byte of it.

    folder/manifest.json       what it is, and name, size and SHA-256 of every file below
    folder/<part>.safetensors  tensors by name
    folder/…                   what the writer of its kind adds (a trace), and vouches for itself

Writing is atomic (:mod:`fastntk.base.atomic`); reading verifies everything before anything is used, and hands out the very
bytes it verified. The manifest carries a digest of itself. That finds accidents, not forgers: whoever edits a folder on
purpose can seal it again.

This file does not know what the tensors mean: :mod:`fastntk.storage.runs` does.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fastntk.base.atomic import Replaceable, is_temporary, leftovers, new_folder, recover
from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError, listing
from fastntk.base.schema import read_json
from fastntk.base.version import __version__
from fastntk.storage.schema import check_manifest

FORMAT = "fastntk"
VERSION = 1
MANIFEST = "manifest.json"
SEAL = "manifest_sha256"


@dataclass(frozen=True, eq=False)
class Bundle:
    """A verified folder: its manifest, and the tensors of each part by name."""

    folder: Path
    manifest: dict[str, Any]
    parts: dict[str, dict[str, Tensor]]


def write_bundle(
    folder: Path,
    parts: Mapping[str, Mapping[str, Tensor]],
    *,
    kind: str,
    content: Mapping[str, Any],
    replaceable: Replaceable | None = None,
    fill: Callable[[Path], Mapping[str, Any]] | None = None,
) -> Path:
    """Write one ``<part>.safetensors`` a part and the manifest, atomically; return the folder.

    ``content`` is what the manifest says besides format, versions, time and files; it has to be JSON-able. ``fill`` puts further
    things into the unfinished folder and returns what else the manifest should say; verifying them is their reader's task.
    ``replaceable``: a folder that is there is replaced where this allows it; refused where it is None.
    """
    with new_folder(folder, overwrite=replaceable is not None, replaceable=replaceable) as work:
        files = {}
        for part, tensors in parts.items():
            data = safetensors.torch.save({name: _plain(value) for name, value in tensors.items()})
            (work / file_name(part)).write_bytes(data)
            files[file_name(part)] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "kind": kind,
            **content,
            **({} if fill is None else fill(work)),
            "versions": versions(),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "files": files,
        }
        manifest[SEAL] = seal(manifest)
        (work / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False, ensure_ascii=False) + "\n", "utf-8")
    return folder


def read_bundle(folder: Path, *, kinds: tuple[str, ...] | None = None) -> Bundle:
    """Read a folder and verify manifest and files; refuse with the reason what is not as it was written."""
    manifest = read_manifest(folder, kinds=kinds)
    parts = {}
    for name, expected in manifest["files"].items():
        data = _verified_bytes(folder / name, expected)
        try:
            parts[name.removesuffix(".safetensors")] = safetensors.torch.load(data)
        except safetensors.SafetensorError as error:
            raise InputError(f"{folder / name} is not a safetensors file: {error}") from error
    return Bundle(folder, manifest, parts)


def read_manifest(folder: Path, *, kinds: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Read and verify the manifest alone (the files it lists are not opened)."""
    recover(folder)
    if is_temporary(folder):
        raise InputError(f"{folder} is unfinished work of an interrupted command, not a result; delete it.")
    if not folder.is_dir():
        problem = "it is a file" if folder.exists() else f"there is no such folder{_beside(folder)}"
        raise InputError(f"{folder}: expected a folder written by fastntk, but {problem}.")
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} has no {MANIFEST}: it was not written by fastntk, or the file was lost.")
    try:
        manifest = read_json(path)
    except InputError as error:
        raise InputError(f"{error}. {_ADVICE}") from error
    _check_manifest(path, manifest)
    if kinds is not None and manifest["kind"] not in kinds:
        raise InputError(f"{folder} holds a {manifest['kind']!r}; expected {' or '.join(repr(kind) for kind in kinds)}.")
    return dict(manifest)


def _beside(folder: Path) -> str:
    """Where an earlier folder may be that somebody set aside who still writes, or wrote from another machine."""
    aside = [path.name for path in leftovers(folder) if ".old-" in path.name]
    return (
        f" ({listing(aside)} beside it is the earlier one: rename it if no command is writing {folder.name} now)" if aside else ""
    )


def is_bundle(folder: Path) -> bool:
    """Whether a folder claims to be one of ours, of any version; nothing is verified."""
    try:
        manifest = read_json(folder / MANIFEST)
    except InputError:
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def file_name(part: str) -> str:
    """The file that holds a part."""
    return f"{part}.safetensors"


def versions() -> dict[str, str]:
    """What made this folder."""
    return {
        "fastntk": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


_ADVICE = "Copy the folder again from where it is whole, or make it anew."


def _check_manifest(path: Path, manifest: Any) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{path} is not a manifest of fastntk (its format is not {FORMAT!r}).")
    if manifest.get("version") != VERSION:
        raise InputError(
            f"{path} has format version {manifest.get('version')!r}; this fastntk reads version {VERSION}. "
            "Use the release that wrote it, or make the folder anew."
        )
    if manifest.get(SEAL) != seal(manifest):
        raise InputError(f"{path} was changed after it was written: its own digest does not match. {_ADVICE}")
    try:
        check_manifest(manifest)
    except InputError as error:
        raise InputError(f"{path} is damaged, though its own digest matches: {error}. {_ADVICE}") from error
    names = manifest["files"]
    if any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
        raise InputError(f"{path} lists files it cannot vouch for: {listing(names)}.")


def _verified_bytes(path: Path, expected: Mapping[str, Any]) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing. {_ADVICE}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if len(data) != expected["bytes"]:
        raise InputError(f"{path} has {len(data)} bytes, its manifest says {expected['bytes']}: truncated or replaced. {_ADVICE}")
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise InputError(f"{path} was changed: its SHA-256 does not match the manifest's {expected['sha256'][:12]}…. {_ADVICE}")
    return data


def seal(manifest: Mapping[str, Any]) -> str:
    """The digest of a manifest without its seal."""
    return json_digest({name: value for name, value in manifest.items() if name != SEAL})


def _plain(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU that shares memory with nothing (safetensors refuses shared storage)."""
    return tensor.detach().cpu().contiguous().clone()
