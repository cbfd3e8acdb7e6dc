"""A trace in a folder of its own: plain files of numbers, and ``trace.json``, which vouches for every byte of them.

trace.json      facts, sizes, dtypes and SHA-256 of the files, and a digest of itself
listed.json     ids, labels and class names
steps.safetensors   bounds, rates, clipping factors, first steps of the epochs, batches of accumulated steps
samples.bin, features.bin, gradients.bin, weights.bin, targets.bin, bias.bin   row after row
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import safetensors
import safetensors.torch
import torch
from msgspec import Meta
from torch import Tensor

from fastntk.base.digest import file_digest, json_digest
from fastntk.base.errors import InputError, listing
from fastntk.base.schema import Count, Sha256, parse, read_json
from fastntk.data import Samples
from fastntk.training.series import DTYPES, Dtype, Series
from fastntk.training.trace import Trace, TraceFacts

FORMAT = "fastntk-trace/2"
HEADER = "trace.json"
STEPS = "steps.safetensors"
LISTED = "listed.json"
SERIES = ("samples", "features", "gradients", "weights", "targets", "bias")
WHOLE = ("bounds", "epoch_steps", "parts")
"""Of the parts of a few numbers a step, those that are whole numbers."""
ADVICE = (
    "Copy it again from where it is whole, or fine-tune again. All but the trace can be had: --no-trace, by another method than "
    "path-replay; in Python fastntk.load_run(folder, trace=False)."
)


class FileEntry(TypedDict):
    """Size and digest of a file; of a file of rows also what is in it."""

    bytes: Count
    sha256: Sha256
    rows: NotRequired[Count]
    shape: NotRequired[Annotated[list[Count], Meta(max_length=8)]]
    dtype: NotRequired[Dtype]


class Header(TypedDict):
    """The file ``trace.json``."""

    format: Literal["fastntk-trace/2"]
    facts: TraceFacts
    files: dict[str, FileEntry]
    seal: Sha256


class Listed(TypedDict):
    """The file ``listed.json``."""

    ids: list[str]
    labels: list[Count]
    classes: list[str] | None
    num_classes: Count


def seal_trace(trace: Trace, folder: Path, digests: dict[str, str]) -> str:
    """Write what completes a folder whose ``.bin`` files are there; returns the digest of ``trace.json``."""
    small = {name: part.contiguous() for name, part in trace.small.items()}
    samples = trace.listed
    entries = {
        "ids": list(samples.ids),
        "labels": samples.labels.tolist(),
        "classes": None if samples.classes is None else list(samples.classes),
        "num_classes": samples.num_classes,
    }
    contents = {STEPS: safetensors.torch.save(small), LISTED: json.dumps(entries, ensure_ascii=False).encode()}
    files: dict[str, dict[str, Any]] = {}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    for name, series in trace.series.items():
        files[f"{name}.bin"] = {"bytes": series.nbytes, "sha256": digests[name], **series.facts()}
    header = {"format": FORMAT, "facts": trace.facts.to_dict(), "files": files}
    header["seal"] = json_digest(header)
    text = json.dumps(header, indent=1) + "\n"
    (folder / HEADER).write_text(text, "utf-8")
    for path in folder.iterdir():  # what a trace says of the samples is for its owner alone
        path.chmod(0o600)
    folder.chmod(0o700)
    return hashlib.sha256(text.encode()).hexdigest()


def write_trace(trace: Trace, folder: Path) -> str:
    """Copy a trace into an empty folder; returns the digest of its ``trace.json``."""
    digests = {}
    for name, series in trace.series.items():
        sha = hashlib.sha256()
        with (folder / f"{name}.bin").open("xb") as stream:
            rows = max(1, 2**24 // max(1, series.nbytes // max(1, len(series))))
            for start in range(0, len(series), rows):
                data = series.read(start, min(start + rows, len(series))).contiguous().numpy().tobytes()
                stream.write(data)
                sha.update(data)
        digests[name] = sha.hexdigest()
    return seal_trace(trace, folder, digests)


def read_trace(folder: Path, *, verify: bool = True) -> Trace:
    """Read a folder; with ``verify`` every file is hashed first, and what is not as it was written is refused."""
    header = _header(folder)
    files = header["files"]
    for name, expected in files.items():
        _check_file(folder / name, expected, verify=verify)
    small = _small(folder / STEPS)
    series = {name: _series(folder / f"{name}.bin", files[f"{name}.bin"]) for name in SERIES if f"{name}.bin" in files}
    trace = Trace(
        facts=header["facts"],
        listed=_listed(folder / LISTED, header["facts"]),
        bounds=small["bounds"],
        rates=small["rates"],
        clips=small["clips"],
        epoch_steps=small["epoch_steps"],
        samples=series["samples"],
        features=series["features"],
        gradients=series.get("gradients"),
        weights=series.get("weights"),
        folder=folder,
        varying={name.removeprefix("varying."): part for name, part in small.items() if name.startswith("varying.")},
        norms=small.get("norms"),
        parts=small.get("parts"),
        shares=small.get("shares"),
        targets=series.get("targets"),
        bias=series.get("bias"),
    )
    _check_counts(trace, folder)
    return trace


def trace_files(folder: Path) -> list[str]:
    """Names of the files that belong to the trace in a folder."""
    return [HEADER, *_header(folder)["files"]]


def _small(path: Path) -> dict[str, Tensor]:
    """The parts of a few numbers a step, of the kinds they should have."""
    try:
        small = safetensors.torch.load(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}. {ADVICE}") from error
    absent = [name for name in ("bounds", "rates", "clips", "epoch_steps") if name not in small]
    empty = [name for name, part in small.items() if part.numel() == 0]
    if "bounds" in small and small["bounds"].numel() == 1:  # a fine-tuning of no epochs has no steps to say anything of
        empty = [name for name in empty if name in ("bounds", "epoch_steps")]
    odd = [name for name, part in small.items() if part.is_floating_point() == (name in WHOLE) or name in empty]
    odd += [name for name in ("rates", "clips", "shares") if name in small and not bool(small[name].isfinite().all())]
    if absent or odd:
        raise InputError(f"{path}: expected whole or finite numbers of every step, not so {listing(absent + odd)}. {ADVICE}")
    return small


def _listed(path: Path, facts: TraceFacts) -> Samples:
    """Ids, labels and class names, with inputs of no pixels."""
    try:
        entries = parse(read_json(path, most=2**30), Listed, what="the list")
        if len(entries["labels"]) != len(entries["ids"]) or max(entries["labels"], default=0) >= facts.classes:
            raise InputError(f"expected a label below {facts.classes} for each id")
        nothing = torch.empty(len(entries["ids"]), 0)
        samples = Samples(nothing, entries["labels"], ids=entries["ids"], classes=entries["classes"])
        return samples.counting(entries["num_classes"])
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}. {ADVICE}") from error


def _series(path: Path, facts: FileEntry) -> Series:
    """The rows of a file, whose size has to be theirs."""
    if "rows" not in facts or "shape" not in facts or "dtype" not in facts:
        raise InputError(f"{path.parent / HEADER} does not say what numbers are in {path.name}. {ADVICE}")
    series = Series(facts["rows"], tuple(facts["shape"]), DTYPES[facts["dtype"]], path)
    if series.nbytes != facts["bytes"]:
        raise InputError(f"{path} has {facts['bytes']} bytes, its rows would have {series.nbytes}. {ADVICE}")
    return series


def _header(folder: Path) -> Header:
    path = folder / HEADER
    if not path.is_file():
        raise InputError(f"{folder} holds no trace: {HEADER} is missing. {ADVICE}")
    try:
        header = read_json(path)
    except InputError as error:
        raise InputError(f"{error}. {ADVICE}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"{path} is not a trace that this fastntk reads (its format is not {FORMAT!r}).")
    if header.get("seal") != json_digest({name: value for name, value in header.items() if name != "seal"}):
        raise InputError(f"{path} was changed after it was written: its own digest does not match. {ADVICE}")
    try:
        fields = parse(header, Header, what=HEADER)
        TraceFacts.from_dict(header["facts"])  # none is left out
    except InputError as error:
        raise InputError(f"{path} is damaged, though its own digest matches: {error}. {ADVICE}") from error
    names = {STEPS, LISTED, "samples.bin", "features.bin"}
    files = set(fields["files"])
    if not names <= files <= names | {f"{name}.bin" for name in SERIES}:
        raise InputError(f"{path} lists other files than a trace has: {listing(sorted(files ^ names))}.")
    return fields


def _check_file(path: Path, expected: FileEntry, *, verify: bool) -> None:
    if not path.is_file():
        raise InputError(f"{path} is missing. {ADVICE}")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise InputError(f"{path} has {size} bytes, {HEADER} says {expected['bytes']}: truncated or replaced. {ADVICE}")
    if verify and file_digest(path) != expected["sha256"]:
        raise InputError(f"{path} was changed: its SHA-256 does not match that in {HEADER}. {ADVICE}")


def _check_counts(trace: Trace, folder: Path) -> None:
    """Refuse parts that do not fit each other, whoever sealed them."""
    steps, visits, groups = trace.steps, trace.visits, len(trace.facts.groups)
    fits = (
        len(trace.bounds) == steps + 1
        and len(trace.clips) == steps
        and len(trace.epoch_steps) >= 1
        and trace.samples.dtype == torch.int32
        and trace.samples.shape == ()
        and all(series.dtype != torch.int32 for name, series in trace.series.items() if name != "samples")
        and all(part.shape == (steps, groups) for part in (trace.rates, *trace.varying.values()))
        and (trace.norms is None or len(trace.norms) == steps)
        and (trace.targets is None or (len(trace.targets) == visits and trace.targets.shape == (trace.facts.classes,)))
        and (trace.bias is None or (len(trace.bias) == steps and trace.bias.shape == (trace.facts.classes,)))
        and (trace.bias is None or trace.facts.head_bias is not None)
        and _parts_fit(trace)
        and int(trace.bounds[0]) == 0
        and int(trace.bounds[-1]) == visits == len(trace.features)
        and bool((trace.bounds.diff() >= 0).all())
        and int(trace.epoch_steps[-1]) == steps
        and bool((trace.epoch_steps.diff() >= 0).all())
        and (trace.gradients is None or len(trace.gradients) == steps)
        and (trace.weights is None or len(trace.weights) == len(trace.epoch_steps))
        and trace.features.shape == (trace.facts.features,)
        and (visits == 0 or (int(trace.visited.min()) >= 0 and int(trace.visited.max()) < len(trace.listed)))
    )
    if not fits:
        raise InputError(f"{folder}: the parts of this trace do not fit each other (steps, visits or samples). {ADVICE}")


def _parts_fit(trace: Trace) -> bool:
    """Whether the batches of accumulated steps lie within their steps."""
    if trace.parts is None or trace.shares is None:
        return trace.parts is None and trace.shares is None
    inside = bool((trace.parts.diff() >= 0).all()) and bool(torch.isin(trace.bounds, trace.parts).all())
    return inside and len(trace.shares) == len(trace.parts) - 1 and int(trace.parts[-1]) == trace.visits
