"""What a command had in hands, as digests that can be compared with those of the original; called in forked children."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from tiny_cells import TINY

from fastntk.base.digest import json_digest, tensor_digest
from fastntk.data import load_source
from fastntk.models.card import InputSpec
from fastntk.report import read_content
from fastntk.reproduce import cells
from fastntk.reproduce.cells import Cell
from fastntk.reproduce.setting import MethodRow
from fastntk.storage.manifest import read_bundle
from fastntk.storage.results import load_result
from fastntk.storage.runs import load_run

METHODS = (MethodRow("full", "full"), MethodRow("fast-ntk", "fast-ntk"), MethodRow("retrain", "retrain"))
_SETTING = dataclasses.replace(TINY, methods=METHODS, probes=False)
cells.CELLS = (Cell("table1", 3, "tiny", "Tiny", _SETTING, 3, stand_in="digits"),)


def folder(path: str) -> dict[str, Any]:
    """Of a run or a result: weights, what the trace says, and the manifest."""
    bundle = read_bundle(Path(path))
    parts = {
        part: {name: tensor_digest(value) for name, value in sorted(tensors.items())} for part, tensors in bundle.parts.items()
    }
    run = load_run(path)
    trace = run.trace
    known: dict[str, Any] = dict.fromkeys(("ids", "labels", "classes", "numbers"))
    if trace is not None:
        series = {name: tensor_digest(rows.read(0, len(rows))) for name, rows in trace.series.items()}
        small = {name: tensor_digest(part) for name, part in trace.small.items()}
        listed = trace.listed
        known = {"ids": listed.ids, "labels": listed.labels.tolist(), "classes": listed.classes, "numbers": [series, small]}
    in_use = tensor_digest(torch.cat([value.reshape(-1).double() for _, value in sorted(run.model.state_dict().items())]))
    return {"weights": json_digest(parts), "model": in_use, "manifest": json_digest(bundle.manifest), **known}


def result(path: str, run: str) -> dict[str, Any]:
    """Of a result: the same, and which samples of its run it forgot."""
    return {**folder(path), "forgotten": load_result(path, load_run(run)).forgotten.ids}


def forgotten(path: str, run: str) -> dict[str, Any]:
    """Which samples a result forgot."""
    return {"forgotten": load_result(path, load_run(run)).forgotten.ids}


def audit(path: str) -> dict[str, Any]:
    """Of an audit record: the verdict, and all of it."""
    content = read_content(path)
    return {"verdict": content["verdict"]["level"], "whole": json_digest({**content, "record_sha256": None})}


def table(path: str) -> dict[str, Any]:
    """The tables made of the records in a folder."""
    return {"table": (Path(path) / "table1.md").read_text()}


def data(source: str) -> dict[str, Any]:
    """Pixels, labels, ids and classes of a source."""
    samples = load_source(source, spec=InputSpec(32, (0.0,) * 3, (1.0,) * 3))
    return {"digest": samples.digest(), "ids": samples.ids, "labels": samples.labels.tolist(), "classes": samples.classes}
