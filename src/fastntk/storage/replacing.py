"""What ``overwrite`` may replace: a folder of the same kind, whole, with nothing in it that fastntk did not write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fastntk.base.atomic import Replaceable
from fastntk.base.errors import InputError, listing
from fastntk.base.marks import AUDIT, REPORT, check_audit, check_report
from fastntk.storage.adapters import ADAPTER
from fastntk.storage.manifest import MANIFEST, read_manifest
from fastntk.storage.traces import TRACE
from fastntk.training.trace_folder import trace_files

_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "README.md")


def replaceable(kind: str) -> Replaceable:
    """A check of folders: those of this kind, made by fastntk and not added to, may go; it names what goes."""

    def check(folder: Path) -> tuple[str, ...]:
        manifest = read_manifest(folder, kinds=(kind,))
        own_files = {MANIFEST, *manifest["files"]}
        going = [f"a {kind} of {manifest['created']}"]
        if manifest.get("trace") is not None:
            own_files |= {f"{TRACE}/{name}" for name in trace_files(folder / TRACE)}
            going.append("its trace")
        if manifest.get("adapter") is not None:
            own_files |= {f"{ADAPTER}/{name}" for name in _ADAPTER_FILES}
        for name, companion in ((AUDIT, check_audit), (REPORT, check_report)):
            if (folder / name).exists():
                companion(folder / name)
                own_files.add(name)
                going.append(f"its {name}")
        strangers = [name for name in entries(folder) if name not in own_files]
        if strangers:
            raise InputError(f"it holds what its manifest does not list: {listing(strangers)}")
        return tuple(going)

    return check


def entries(folder: Path) -> Iterator[str]:
    """Names of what lies in a folder and below, without folders that hold something; links are named, not followed."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir()):
            yield path.relative_to(folder).as_posix()
