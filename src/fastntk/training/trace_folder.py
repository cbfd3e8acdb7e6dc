"""A trace in a folder of its own: plain files of numbers, and ``trace.json``, which vouches for every byte of them.

trace.json      facts, sizes, dtypes and SHA-256 of the files, and a digest of itself
listed.json     ids, labels and class names
steps.safetensors   bounds, rates, clipping factors, first steps of the epochs, batches of accumulated steps
samples.bin, features.bin, gradients.bin, weights.bin, targets.bin   row after row
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from fastntk.base.digest import file_digest, json_digest
from fastntk.base.errors import InputError, listing
from fastntk.data import Samples
from fastntk.training.series import DTYPES, Series
from fastntk.training.trace import Trace, TraceFacts

FORMAT = "fastntk-trace/2"
HEADER = "trace.json"
STEPS = "steps.safetensors"
LISTED = "listed.json"
_ADVICE = "Copy it again from where it is whole; without a trace, unlearn by another method or fine-tune again."


def seal_trace(trace: Trace, folder: Path, digests: dict[str, str]) -> str:
    """Write what completes a folder whose ``.bin`` files are there; returns the digest of ``trace.json``."""
    small = {name: part.contiguous() for name, part in trace.small.items()}
    listed = trace.listed
    entries = {
        "ids": list(listed.ids),
        "labels": listed.labels.tolist(),
        "classes": None if listed.classes is None else list(listed.classes),
        "num_classes": listed.num_classes,
    }
    written = {STEPS: safetensors.torch.save(small), LISTED: json.dumps(entries, ensure_ascii=False).encode()}
    files: dict[str, dict[str, Any]] = {}
    for name, data in written.items():
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
    small = safetensors.torch.load_file(folder / STEPS)
    entries = json.loads((folder / LISTED).read_text("utf-8"))
    listed = Samples(torch.empty(len(entries["ids"]), 0), entries["labels"], ids=entries["ids"], classes=entries["classes"])
    listed = listed.counting(entries["num_classes"])
    series: dict[str, Series] = {}
    for name, facts in files.items():
        if name.endswith(".bin"):
            shape, kind = tuple(facts["shape"]), DTYPES[facts["dtype"]]
            series[name.removesuffix(".bin")] = Series(facts["rows"], shape, kind, folder / name)
    trace = Trace(
        facts=TraceFacts.from_dict(header["facts"]),
        listed=listed,
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
    )
    _check_counts(trace, folder)
    return trace


def _header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    try:
        header = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} holds no trace: {HEADER} is missing. {_ADVICE}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}. {_ADVICE}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"{path} is not a trace that this fastntk reads (its format is not {FORMAT!r}).")
    if header.get("seal") != json_digest({name: value for name, value in header.items() if name != "seal"}):
        raise InputError(f"{path} was changed after it was written: its own digest does not match. {_ADVICE}")
    names = {STEPS, LISTED, "samples.bin", "features.bin"}
    known = names | {"gradients.bin", "weights.bin", "targets.bin"}
    files = header["files"]
    if not isinstance(files, dict) or not names <= set(files) <= known:
        raise InputError(f"{path} lists other files than a trace has: {listing(sorted(set(files) ^ names))}.")
    return header


def _check_file(path: Path, expected: dict[str, Any], *, verify: bool) -> None:
    if not path.is_file():
        raise InputError(f"{path} is missing. {_ADVICE}")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise InputError(f"{path} has {size} bytes, {HEADER} says {expected['bytes']}: truncated or replaced. {_ADVICE}")
    if verify and file_digest(path) != expected["sha256"]:
        raise InputError(f"{path} was changed: its SHA-256 does not match that in {HEADER}. {_ADVICE}")


def _check_counts(trace: Trace, folder: Path) -> None:
    """Refuse parts that do not fit each other, whoever sealed them."""
    steps, visits, groups = trace.steps, trace.visits, len(trace.facts.groups)
    fits = (
        len(trace.bounds) == steps + 1
        and len(trace.clips) == steps
        and all(part.shape == (steps, groups) for part in (trace.rates, *trace.varying.values()))
        and (trace.norms is None or len(trace.norms) == steps)
        and (trace.targets is None or (len(trace.targets) == visits and trace.targets.shape == (trace.facts.classes,)))
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
        raise InputError(f"{folder}: the parts of this trace do not fit each other (steps, visits or samples). {_ADVICE}")


def _parts_fit(trace: Trace) -> bool:
    """Whether the batches of accumulated steps lie within their steps."""
    if trace.parts is None or trace.shares is None:
        return trace.parts is None and trace.shares is None
    inside = bool((trace.parts.diff() >= 0).all()) and bool(torch.isin(trace.bounds, trace.parts).all())
    return inside and len(trace.shares) == len(trace.parts) - 1 and int(trace.parts[-1]) == trace.visits
