"""What needs the models of several seeds: distances to other seeds' Retrains, Retrain's own spread, figures of extra Retrains.

From kept logits alone, a few seconds for a setting. What was computed before and whose logits are gone stays as it was.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from fastntk.reproduce.environment import environment
from fastntk.reproduce.records import read_record, write_record
from fastntk.reproduce.setting import Request, Setting, slug
from lab.path_models import SCHEMA as SEED_SCHEMA
from lab.path_models import Outputs, outputs_file, own_figures, read_outputs, variation

SCHEMA = "fastntk-path-between/1"
FILE = "between.json"


def write_between(setting: Setting, *, out: Path, models: Path) -> Path:
    """Write the setting's file; ``models``: the folder of its trained weights."""
    folder = out / "path" / setting.name
    path = folder / FILE
    known = read_record(path, schema=SCHEMA) if path.exists() else {}
    if known.get("training", setting.training_digest) != setting.training_digest:
        known = {}
    records = {seed: _rows(folder / f"seed{seed}.json") for seed in setting.seeds}
    requests = {
        request.name: _request(setting, request, records, known.get("requests", {}).get(request.name, {}), models=models)
        for request in setting.requests
    }
    facts = {"schema": SCHEMA, "setting": setting.name, "training": setting.training_digest}
    write_record(path, facts | {"requests": requests, "environment": environment()})
    return path


def _rows(path: Path) -> dict[str, Any]:
    """A seed's rows by label."""
    rows: dict[str, Any] = read_record(path, schema=SEED_SCHEMA)["rows"] if path.exists() else {}
    return rows


def _request(
    setting: Setting, request: Request, records: dict[int, dict[str, Any]], known: dict[str, Any], *, models: Path
) -> dict[str, Any]:
    retrains = {
        seed: outputs
        for seed in setting.retrain_seeds
        if (outputs := read_outputs(outputs_file(models, request, "retrain", seed))) is not None
    }
    figures = {str(seed): own_figures(outputs) for seed, outputs in retrains.items()}
    pairs = {f"{a}-{b}": variation(retrains[a], retrains[b]) for a, b in itertools.combinations(sorted(retrains), 2)}
    others: dict[str, Any] = {label: dict(entries) for label, entries in known.get("others", {}).items()}
    for seed, rows in records.items():
        for label, entry in rows.items():
            outputs = read_outputs(outputs_file(models, request, f"{slug(label)}-{entry['digest'][:8]}", seed))
            if outputs is not None:
                _add(others, label, outputs, seed, retrains, entry["digest"])
        full = read_outputs(outputs_file(models, request, "full", seed))
        if full is not None:
            _add(others, "full", full, seed, retrains, None)
    return {
        "retrains": known.get("retrains", {}) | figures,
        "spread": known.get("spread", {}) | pairs,
        "others": others,
    }


def _add(
    others: dict[str, Any], label: str, outputs: Outputs, seed: int, retrains: dict[int, Outputs], digest: str | None
) -> None:
    """Put in a row's distances to other seeds' Retrains; those to Retrains whose logits are gone stay, if it is the same row."""
    entries = others.setdefault(label, {})
    before = entries.get(str(seed), {})
    known = before.get("by_seed", {}) if before.get("digest") == digest else {}
    distances = {str(other): variation(outputs, retrain) for other, retrain in retrains.items() if other != seed}
    entries[str(seed)] = {"digest": digest, "by_seed": known | distances}
