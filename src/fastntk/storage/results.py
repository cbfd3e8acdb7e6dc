"""Unlearned models on disk: the same folder as a run's, with what was asked and done, and never with what was erased.

    weights            as in a run: tuned, anchor, base
    data               digests of the *retained* samples
    extra.request      counts, and a digest of each forgotten id
    extra.origin       digests of the run it came from
    extra.details      method, options, validity, seconds

A digest of an id names nobody by itself, but whoever holds the data can find its sample again: that is how a result is
paired with its run afterwards. Ids that can be guessed can be tried, so treat the digests as pseudonyms.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError
from fastntk.data import ForgetRequest, Split
from fastntk.storage.manifest import read_manifest
from fastntk.storage.runs import check_data, load_run, save_run
from fastntk.training.network import working_copy
from fastntk.training.run import Run
from fastntk.unlearning.result import Unlearned

RESULT = "result"


def save_result(result: Unlearned, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write an unlearned model to a new folder, atomically; return the folder.

    Its weights have the names of the run's model, so whatever loaded that one loads this one.
    """
    run = result.run
    # No source and no history: both describe the run with the forgotten samples in it.
    after = Run(result.model, result.subset, run.anchor, result.retained, recipe=run.recipe)
    return save_run(after, folder, overwrite=overwrite, kind=RESULT, extra=_extra(result))


def load_result(folder: str | Path, run: Run) -> Unlearned:
    """Read and verify a result and pair it with the run it was made from.

    The run has to have its data, which alone can tell what was forgotten. ``delta`` is counted from the run; the
    linearisation is not kept on disk.
    """
    path = Path(folder)
    manifest = read_manifest(path, kinds=(RESULT,))
    extra = manifest["extra"]
    if extra["origin"] != _origin(run):
        differs = [name for name, value in _origin(run).items() if extra["origin"].get(name) != value]
        raise InputError(f"{path} was not made from this run: they differ in {', '.join(differs)}. Give its own run.")
    split = _split(run, extra["request"]["forgotten"])
    check_data(manifest, run.data.subset(split.retain))
    loaded = load_run(path, kinds=(RESULT,), model=working_copy(run))
    return Unlearned(
        run=run,
        model=loaded.model,
        delta=loaded.subset.get() - run.subset.get(),
        method=extra["method"],
        split=split,
        seconds=extra["seconds"],
        details=extra["details"],
    )


def id_digest(sample_id: str, *, data_digest: str) -> str:
    """SHA-256 of one id together with the digest of the data it belongs to."""
    return hashlib.sha256(f"{data_digest}:{sample_id}".encode()).hexdigest()


def _extra(result: Unlearned) -> dict[str, Any]:
    data_digest = result.run.data.digest()
    return {
        "method": result.method,
        "seconds": result.seconds,
        "request": {
            "forget": len(result.split.forget),
            "retain": len(result.split.retain),
            "forgotten": sorted(id_digest(name, data_digest=data_digest) for name in result.forgotten.ids),
        },
        "origin": _origin(result.run),
        "details": result.details,
    }


def _origin(run: Run) -> dict[str, Any]:
    return {
        "data": run.data.digest(),
        "tuned": tensor_digest(run.subset.get()),
        "anchor": tensor_digest(run.anchor),
    }


def _split(run: Run, digests: list[str]) -> Split:
    data_digest, wanted = run.data.digest(), set(digests)
    ids = [name for name in run.data.ids if id_digest(name, data_digest=data_digest) in wanted]
    if len(ids) != len(wanted):
        raise InputError(f"{len(wanted) - len(ids)} of the {len(wanted)} forgotten samples are not in the run's data.")
    return ForgetRequest(ids=tuple(ids)).resolve(run.data, allow_empty=True)
