"""The recorded path of a run, in the sub-folder ``trace/`` of its folder.

The manifest holds the digest of ``trace/trace.json``, which vouches for the other files there, so a trace of another run is never
taken for this one's. It is read from its files slice by slice and not loaded. It holds ids and labels (of a result: of the
retained samples only), and the features of every visit: whoever may not have the data may not have it either.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastntk.base.digest import file_digest
from fastntk.base.errors import InputError
from fastntk.training.trace import Trace
from fastntk.training.trace_folder import ADVICE, HEADER, read_trace, write_trace

TRACE = "trace"


def trace_places(folder: Path) -> tuple[Path, ...]:
    """Where a trace may lie while the run for a folder is trained, under which names: beside the folder, or, where parents of it
    were still to be made, beside the first of them. Nearest first; a killed training may have left one at any of them."""
    folder = Path(os.path.abspath(folder))
    return tuple(parent / f"{_inner_name(folder.relative_to(parent))}-trace" for parent in folder.parents if parent.is_dir())


def _inner_name(inner: Path) -> str:
    """Runs of one name in different folders to be made have different names."""
    return inner.name if len(inner.parts) == 1 else f"{inner.name}-{hashlib.sha256(inner.as_posix().encode()).hexdigest()[:8]}"


def store_trace(trace: Trace, folder: Path, *, take: bool = False) -> dict[str, Any]:
    """Put a trace into a new sub-folder and return what the manifest says of it.

    ``take``: move the files of a trace that lies in a folder of its own on the same disk, in place of copying them.
    """
    target, summary = folder / TRACE, trace.summary()
    target.mkdir(mode=0o700)
    if not take:
        return {"sha256": write_trace(trace, target), **summary}
    assert trace.folder is not None
    for path in sorted(trace.folder.iterdir()):
        os.rename(path, target / path.name)
    return {"sha256": file_digest(target / HEADER), **summary}


def stored_trace(folder: Path, manifest: Mapping[str, Any]) -> Trace | None:
    """The trace that belongs to a manifest, every file of it verified; None where the run was saved without."""
    expected = manifest.get("trace")
    if expected is None:
        return None
    header = folder / TRACE / HEADER
    if not header.is_file():
        raise InputError(f"{header} is missing: this run was saved with a trace of its fine-tuning. {ADVICE}")
    if file_digest(header) != expected["sha256"]:
        raise InputError(
            f"{header} is not what this run was saved with: it was changed, or the trace is that of another run. {ADVICE}"
        )
    trace = read_trace(folder / TRACE)
    if any(expected.get(name) != value for name, value in trace.summary().items()):
        raise InputError(f"{header} says something else of its trace than the manifest does. {ADVICE}")
    return trace
