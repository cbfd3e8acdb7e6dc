"""``fastntk erase``: remove a run or a result with everything in its folder, whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.errors import InputError, listing
from fastntk.base.text import byte_size, printable
from fastntk.cli.options import Json
from fastntk.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_REMOVED = (
    "the data itself (image files, archives), wherever it lies",
    "results made from this run, and copies of this folder",
    "rows kept in a folder outside it (--option folder=…), and ensembles of audits (~/.cache/fastntk or --cache)",
    "what the disk still holds of deleted files: nothing is overwritten with zeros",
)


def erase(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A folder written by `fastntk finetune` or `fastntk unlearn`, to be removed.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed where nobody sits at a terminal.")] = False,
    json: Json = False,
) -> None:
    """Remove a run for good: weights, trace, and rows and caches inside its folder, which saw samples that have to go.

    Says what is there and asks first. The folder vanishes at once, or stays whole: a kill in between leaves at most a hidden
    remainder that no command reads, and the same command again sweeps it. Folders that fastntk did not write are refused.

    The key of its digests of ids, in a file beside it, goes too. Not removed: the original data, copies and results elsewhere,
    and caches outside the folder. Files are deleted, not overwritten with zeros: on most disks of today that would promise what
    it cannot keep. Exit code 130: you said no.

    Examples:

    fastntk erase runs/digits

    fastntk erase runs/digits --yes --json
    """
    from fastntk.base.atomic import leftovers, refused, remove_folder, sweep
    from fastntk.storage.keys import check_keys, remove_key
    from fastntk.storage.traces import trace_places

    output = Output(as_json=json)
    places = (folder, *trace_places(folder))  # a training that was killed leaves ids, labels and features beside its run
    remnants = [path for place in places for path in sweep(place)]
    debris = [path for place in places for path in refused(place)]
    if debris:
        raise InputError(
            f"Files of an earlier command are left that the system refuses to remove: {listing(map(str, debris))}. Remove them "
            "with the rights that it takes, then erase again."
        )
    in_use = tuple(f"{path}: unfinished work of a command that may be running" for place in places for path in leftovers(place))
    if not folder.exists() and remnants:
        output.say(f"{folder} was gone already; the remainder of an interrupted command beside it is removed.")
        output.finish(_record(folder, kind=None, content=[], left=in_use))
        return
    kind = _check_ours(folder)
    content = contents(folder)
    output.say(f"{folder}: a {kind} of {byte_size(sum(part['bytes'] for part in content))}")
    output.table(("what", "files", "size"), [(part["what"], part["files"], byte_size(part["bytes"])) for part in content])
    if not yes:
        _confirm(folder)
    name = key_of(folder)
    check_keys(folder)
    remove_folder(folder)
    remove_key(folder, name)
    output.say(f"Removed {folder}. Not removed:")
    for line in (*in_use, *NOT_REMOVED):
        output.say(f"  - {line}")
    output.finish(_record(folder, kind=kind, content=content, left=in_use))


def key_of(folder: Path) -> str | None:
    """The name of the key that the digests in a folder were made with, None where there is none or nobody can tell."""
    from fastntk.storage.manifest import read_manifest

    try:
        name = read_manifest(folder)["data"].get("key")
    except (InputError, KeyError, AttributeError):
        return None  # a damaged folder is removed all the same
    return name if isinstance(name, str) else None


def contents(folder: Path) -> list[dict[str, Any]]:
    """What lies in the folder, by what it is: names, numbers of files and bytes."""
    parts: dict[str, dict[str, Any]] = {}
    for entry in sorted(folder.iterdir()):
        files = list(_files(entry))
        what = _what(entry)
        part = parts.setdefault(what, {"what": what, "files": 0, "bytes": 0})
        part["files"] += len(files)
        part["bytes"] += sum(path.lstat().st_size for path in files)
    return list(parts.values())


def _what(entry: Path) -> str:
    """The name for people of one entry of a run's folder."""
    from fastntk.storage.adapters import ADAPTER
    from fastntk.storage.manifest import MANIFEST, is_bundle
    from fastntk.storage.traces import TRACE

    if entry.is_dir() and not entry.is_symlink():
        if is_bundle(entry):
            return f"{entry.name}, a run or result of its own"
        names = {TRACE: "trace (features, gradients, ids, labels)", ADAPTER: "adapter (weights, as peft saves them)"}
        return names.get(entry.name, f"folder {entry.name} (rows, caches, other)")
    if entry.suffix == ".safetensors":
        return "weights"
    return "manifest" if entry.name == MANIFEST else f"file {entry.name}"


def _files(entry: Path) -> Iterator[Path]:
    """The files of an entry; links are counted and not followed."""
    if entry.is_symlink() or not entry.is_dir():
        yield entry
        return
    for child in entry.iterdir():
        yield from _files(child)


def _check_ours(folder: Path) -> str:
    """Refuse what is not a run or a result of ours; return which it is. A damaged one may be erased."""
    from fastntk.base.atomic import is_temporary
    from fastntk.base.schema import read_json
    from fastntk.storage.manifest import MANIFEST, is_bundle

    if folder.is_symlink():
        raise InputError(f"{folder} is a link: name the folder itself, which is {os.path.realpath(folder)}.")
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder written by fastntk, but {_instead(folder)}.")
    if is_temporary(folder) or not is_bundle(folder):
        raise InputError(f"{folder} was not written by `fastntk finetune` or `fastntk unlearn`, so it is not removed.")
    return str(read_json(folder / MANIFEST).get("kind", "run"))


def _instead(folder: Path) -> str:
    return "it is a file" if folder.exists() else "there is no such folder"


def _confirm(folder: Path) -> None:
    """Ask; refuse where nobody can answer."""
    if not sys.stdin.isatty():
        raise InputError("Nothing was removed: nobody is there to confirm it. Add --yes where that is intended.")
    if not typer.confirm(printable(f"Remove {folder} for good?"), err=True):
        typer.echo("Nothing was removed.", err=True)
        raise typer.Exit(130)


def _record(folder: Path, *, kind: str | None, content: list[dict[str, Any]], left: tuple[str, ...]) -> dict[str, Any]:
    """The record that ``--json`` prints; ``kind`` is null where only a remainder was swept."""
    return {
        "command": "erase",
        "folder": str(folder),
        "kind": kind,
        "removed": content,
        "bytes": sum(part["bytes"] for part in content),
        "not_removed": [*left, *NOT_REMOVED],
    }
