"""What a folder knows of the data of its run, which is not in it: counts, class names, digests, and where to load it again.

A result is the run of the next request, on the retained samples: ``source`` still names the source of all, and ``without`` in
it holds a keyed digest of each id that went (:mod:`fastntk.storage.keys`), so that the retained ones are found again. Where
there is a trace, its list of ids is used: it stands although further images, or the folder of a class, have vanished from the
source.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastntk.base.digest import key_name, keyed_digest
from fastntk.base.errors import InputError, listing
from fastntk.data import Samples, load_source
from fastntk.data.catalog import Catalog, hiding, select_ids
from fastntk.data.sources import open_source, read_selection
from fastntk.models.card import card_from_dict
from fastntk.storage.keys import SUFFIX
from fastntk.storage.schema import Source, source_of
from fastntk.training.run import Run

_MOVED = "If it was moved, say where it is: --data SRC."


class DataGoneError(InputError):
    """The source, or some of the samples in it, is not there any more, or was never named."""


def data_facts(run: Run) -> dict[str, Any]:
    """What a manifest says of a run's data; of one that has none at hand, what it was loaded with or its trace tells."""
    if run.samples is not None:
        return facts_of(run.samples, key=run.key)
    return facts_of(run.listed, seen=False, key=run.key) if run.data_facts is None else dict(run.data_facts)


def facts_of(samples: Samples, *, seen: bool = True, key: bytes | None = None) -> dict[str, Any]:
    """The same of some samples; ``seen=False``: their inputs are not those of the run, so nothing is said of them.

    ``key``: of a run from which samples were erased, or whose class names are hidden: the digest of its ids is keyed.
    """
    return {
        "count": len(samples),
        "shape": list(samples.inputs.shape[1:]) if seen else None,
        "classes": None if samples.classes is None else list(samples.classes),
        "num_classes": samples.num_classes,
        "digest": samples.digest() if seen else None,
        "ids_digest": _ids_digest(samples, key),
        "key": None if key is None else key_name(key),
        "per_class": torch.bincount(samples.labels.cpu(), minlength=samples.num_classes).tolist(),
    }


def _ids_digest(samples: Samples, key: bytes | None) -> str:
    return samples.ids_digest() if key is None else keyed_digest(list(samples.ids), key)


def id_digest(sample_id: str, *, key: bytes | str) -> str:
    """A digest of one id: keyed; in folders of older releases SHA-256 with the digest of the data, a str, before it."""
    if isinstance(key, bytes):
        return keyed_digest(sample_id, key)
    return hashlib.sha256(f"{key}:{sample_id}".encode()).hexdigest()


def hiding_key(source: Mapping[str, Any] | None, key: bytes | None) -> bytes | None:
    """The key that hides the class names of a run with this source; None where they are not hidden."""
    if source is None or source.get("class_names") != "hidden":
        return None
    if key is None:
        raise InputError(
            f"The class names of this run are hidden, and its key is not there: put its {SUFFIX} file beside it. Where "
            "the run has a trace, plan and unlearn do without images: --no-images."
        )
    return key


def source_samples(manifest: Mapping[str, Any], *, ids: Sequence[str] | None = None, key: bytes | None = None) -> Samples:
    """Load a run's data again from the source in its manifest, and verify that it is the same data.

    Prepared for the run's own model, whose input spec the manifest has. ``ids``: those of its trace; exactly these are loaded, in
    this order. ``key``: the run's, where it has one. DataGoneError where the source or one of them is not there.
    """
    source, card, data = source_of(manifest), manifest["model"]["card"], manifest["data"]
    if card is None:
        raise DataGoneError(
            f"The model of this run, a {manifest['model']['class']}, was not made by build_model, so nothing says how pictures "
            "become its inputs, and no source of data (--data) can be read for it. Give samples that are ready, in Python: "
            "Run.load(folder, samples=...)."
        )
    if source is None:
        raise DataGoneError(
            "This run does not say where its data came from. Give it: --data SRC, in Python Run.load(folder, samples=...)."
        )
    spec, selection = card_from_dict(card).input, _chosen(source)
    hide = hiding_key(source, key)
    if ids is None and not source.get("without"):
        try:
            samples = load_source(source["data"], spec=spec, hide=hide, **selection)
        except InputError as error:
            raise InputError(f"The data of this run cannot be read: {_sentence(error)} {_MOVED}") from error
    else:
        try:
            catalog = hiding(open_source(source["data"], emptied=True), hide)
        except InputError as error:
            raise DataGoneError(f"The data of this run cannot be opened: {_sentence(error)} {_MOVED}") from error
        if data["classes"] is None:
            raise InputError("This run does not name its classes, so its samples cannot be found in the source again.")
        run_ids = _not_forgotten(catalog, source, data, key) if ids is None else ids
        part, lacking = select_ids(catalog, run_ids, data["classes"])
        if lacking:
            raise DataGoneError(
                f"{len(lacking):,} of the {len(run_ids):,} samples of this run are not in {source['data']}: "
                f"{listing(lacking, most=3)}. {_MOVED}"
            )
        samples = read_selection(catalog, part, spec)
    samples = fitted(samples, data)
    check_data(manifest, samples, key=key)
    return samples


def _sentence(error: InputError) -> str:
    return f"{str(error).rstrip('.')}."


def _chosen(source: Source) -> dict[str, Any]:
    """Which part of the source the run had."""
    return {"images_per_class": source.get("images_per_class"), "only_classes": source.get("only_classes")}


def _not_forgotten(catalog: Catalog, source: Source, data: Mapping[str, Any], key: bytes | None) -> list[str]:
    """Ids of the run's selection less those that earlier requests forgot, known by their digests.

    A selection of the first images of each class leaves its first ones that were not forgotten, whether the forgotten ones are
    still in the source or not: as many as ``per_class`` says; folders of older releases do not, and count the forgotten ones too.
    """
    requests = [(_key_of(entry, key), frozenset(entry["ids"])) for entry in source["without"]]

    def stays(row: int) -> bool:
        return all(id_digest(catalog.ids[row], key=each) not in digests for each, digests in requests)

    most, counts = source.get("images_per_class"), data.get("per_class")
    rows: list[int] = []
    for number, name in enumerate(data["classes"]):
        label = catalog.names.index(name) if name in catalog.names else -1
        present = np.flatnonzero(catalog.labels == label).tolist()
        if most is None or counts is None:
            rows += [row for row in present[:most] if stays(row)]
        else:
            rows += list(itertools.islice((row for row in present if stays(row)), counts[number]))
    return [catalog.ids[row] for row in sorted(rows)]


def _key_of(entry: Mapping[str, Any], key: bytes | None) -> bytes | str:
    """What goes into the digests of an earlier request's ids."""
    if "key" not in entry:
        return str(entry["data"])
    if key is None or key_name(key) != entry["key"]:
        raise DataGoneError(
            f"Which samples earlier requests forgot is known by keyed digests only, and the key is not there: put the {SUFFIX} "
            "file beside the folder."
        )
    return key


def fitted(samples: Samples, data: Mapping[str, Any]) -> Samples:
    """The samples, with the number of classes that the run had: the last one's samples may all be forgotten."""
    return samples.counting(data["num_classes"]) if samples.num_classes < data["num_classes"] and not samples.classes else samples


def check_data(manifest: Mapping[str, Any], samples: Samples, *, key: bytes | None = None) -> None:
    """Refuse samples that are not those of the manifest, saying what differs as far as digests tell.

    A manifest that was written without seeing the data (from a trace alone) vouches for the ids only. Where the digest of its ids
    is keyed and the key is not there, ids are compared by the trace alone.
    """
    expected = manifest["data"]
    name = expected.get("key")
    comparable = name is None or (key is not None and key_name(key) == name)
    if len(samples) != expected["count"]:
        what = f"{len(samples)} samples, the run had {expected['count']}"
    elif comparable and _ids_digest(samples, None if name is None else key) != expected["ids_digest"]:
        what = "other ids, or the same in another order"
    elif expected["shape"] is not None and list(samples.inputs.shape[1:]) != expected["shape"]:
        what = f"inputs of shape {tuple(samples.inputs.shape[1:])}, the run had {tuple(expected['shape'])}"
    elif expected["digest"] is not None and samples.classes != (
        None if expected["classes"] is None else tuple(expected["classes"])
    ):
        what = "other class names"
    elif expected["digest"] in (None, samples.digest()):
        return
    else:
        what = "the same ids but other pixels or labels (changed files, or another version of the image library)"
    raise InputError(f"The data changed since this run was made: {what}. Give the data it was fine-tuned on, or fine-tune again.")
