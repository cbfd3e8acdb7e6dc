"""Unlearned models on disk: the same folder as a run's, with what was asked and done, and never with what was erased.

    weights            as in a run: tuned, anchor, base
    trace              the new path, where the method made one: retained samples only
    data               digests of the *retained* samples
    source             the run's, and a keyed digest of each id that went
    extra.request      counts, and a keyed digest of each forgotten id
    extra.origin       digests of the run it came from
    extra.details      method, options, validity, seconds

A result is the run of the next request: ``load_run`` takes it as such. Who has the data and the key, which is kept beside the
folder (:mod:`fastntk.storage.keys`), can find the forgotten samples again: that is how a result is paired with its run
afterwards. Without the key a digest tells nothing, not even to somebody who guesses the id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastntk.base.digest import key_name, tensor_digest
from fastntk.base.errors import InputError
from fastntk.data import ForgetRequest, Split
from fastntk.storage.data import check_data, data_facts, facts_of, id_digest
from fastntk.storage.keys import missing_key, read_key
from fastntk.storage.manifest import read_manifest
from fastntk.storage.runs import RESULT, load_run, save_run
from fastntk.storage.schema import ResultExtra, result_of
from fastntk.training.network import working_copy
from fastntk.training.run import Run
from fastntk.unlearning.result import Unlearned


def save_result(result: Unlearned, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write an unlearned model to a new folder, atomically; return the folder.

    Its weights have the names of the run's model, so whatever loaded that one loads this one. Its trace goes with it.
    """
    facts = facts_of(result.retained, seen=False, key=result.key) | {"shape": data_facts(result.run)["shape"]}
    after = dataclasses.replace(result.as_run(), data_facts=facts)
    return save_run(after, folder, overwrite=overwrite, kind=RESULT, extra=_extra(result))


def load_result(folder: str | Path, run: Run) -> Unlearned:
    """Read and verify a result and pair it with the run it was made from.

    The run has to have its data or a trace, which alone can tell what was forgotten. ``delta`` is counted from the run; the
    linearisation is not kept on disk.
    """
    path = Path(folder)
    manifest = read_manifest(path, kinds=(RESULT,))
    extra = result_of(manifest)
    split = _split(run, path, extra)
    key = _key(path, extra["request"])
    if run.samples is not None:
        check_data(manifest, run.samples.subset(split.retain), key=key)
    loss = None if run.trace is None else run.trace.function
    unlearned_run = load_run(path, kinds=(RESULT,), model=working_copy(run), loss=loss)
    return Unlearned(
        run=run,
        model=unlearned_run.model,
        delta=unlearned_run.subset.get() - run.subset.get(),
        method=extra["method"],
        split=split,
        seconds=extra["seconds"],
        details=manifest["extra"]["details"],
        trace=unlearned_run.trace,
        key=key or b"",
    )


def _extra(result: Unlearned) -> dict[str, Any]:
    return {
        "method": result.method,
        "seconds": result.seconds,
        "request": {
            "forget": len(result.split.forget),
            "retain": len(result.split.retain),
            "forgotten": result.forgotten_digests,
            "key": key_name(result.key),
        },
        "origin": _origin(result.run),
        "details": result.details,
    }


def _origin(run: Run) -> dict[str, Any]:
    return {
        "data": data_facts(run)["digest"],
        "tuned": tensor_digest(run.subset.get()),
        "anchor": tensor_digest(run.anchor),
    }


def _same(stored: str | None, present: str | None) -> bool:
    """Whether two digests agree; None is that of data nobody has seen, of which the ids are compared later."""
    return stored is None or present is None or stored == present


def stored_split(folder: str | Path, run: Run) -> Split:
    """Which samples of the run the result in this folder forgot, and which it retained."""
    path = Path(folder)
    return _split(run, path, result_of(read_manifest(path, kinds=(RESULT,))))


def _split(run: Run, folder: Path, extra: ResultExtra) -> Split:
    origin: Mapping[str, Any] = extra["origin"]
    differs = [name for name, value in _origin(run).items() if not _same(origin[name], value)]
    if differs:
        raise InputError(f"{folder} was not made from this run: they differ in {', '.join(differs)}. Give its own run.")
    digests = set(extra["request"]["forgotten"])
    key = _key(folder, extra["request"]) or extra["origin"]["data"] or run.listed.ids_digest()
    ids = [name for name in run.listed.ids if id_digest(name, key=key) in digests]
    if len(ids) != len(digests):
        raise InputError(f"{len(digests) - len(ids)} of the {len(digests)} forgotten samples are not in the run's data.")
    return ForgetRequest(ids=tuple(ids)).resolve(run.listed, allow_empty=True)


def _key(folder: Path, request: Mapping[str, Any]) -> bytes | None:
    """The key of a request's digests; None for one of an older release, which had none."""
    if "key" not in request:
        return None
    key = read_key(folder, request["key"])
    if key is None:
        raise InputError(f"Which samples {folder} forgot is known by keyed digests only, and {missing_key(folder)}")
    return key
