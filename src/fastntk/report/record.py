"""Reading an audit record and refusing what cannot be one, so that a page is never made from half-understood figures.

The record is the dictionary that ``fastntk.audit`` returns and ``fastntk audit`` writes to ``RESULT/audit.json``. A
figure that was not computed is absent or null there; the page says so. A figure of the wrong kind is an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastntk.base.errors import InputError
from fastntk.report.shape import anything, count, each, fields, flag, fraction, maybe, number, one_of, text, values

SCHEMA = "fastntk-audit/1"
AUDIT = "audit.json"
LEVELS = ("like retrain", "differs from retrain", "memory left", "not to be trusted", "no reference")

_BY_MODEL = values(maybe(number))
_SHARES = values(maybe(fraction))
_CURVE = fields({"fpr": each(fraction), "tpr": each(fraction)})
_ATTACK = fields(
    {"auc": fraction}, {"tpr_at_1pct_fpr": fraction, "auc_standard_error": number, "by_feature": _SHARES, "roc": _CURVE}
)
_RELEARNED = fields({"epochs": maybe(count), "curve": each(maybe(number)), "threshold": number, "cap": count})
_COUNTS = each(number)
_DISTANCE = values(maybe(lambda value, where: (_BY_MODEL if isinstance(value, dict) else number)(value, where)))

_RECORD = fields(
    {
        "subject": fields(
            {"model": text, "samples": count, "method": text},
            {
                "weights": text,
                "tuned": count,
                "tuned_share": fraction,
                "parameters": count,
                "classes": each(text),
                "holdout": count,
                "run": values(maybe(text)),
                "result": values(maybe(text)),
                "recipe": values(anything),
                "options": values(anything),
            },
        ),
        "request": fields({"forget": count, "retain": count}, {"whole_classes": each(text), "ids_digest": text}),
        "accuracy": values(maybe(_SHARES)),
        "verdict": fields({"level": one_of(*LEVELS), "text": each(text)}, {"reasons": each(text)}),
    },
    {
        "created": text,
        "fastntk": text,
        "environment": values(anything),
        "details": values(anything),
        "reference": fields({"made": flag}, {"seed": count, "other_seeds": each(count)}),
        "loss": values(maybe(_BY_MODEL)),
        "relearn": values(maybe(_RELEARNED)),
        "probes": fields({}, {"own_head": values(maybe(_SHARES)), "linear_probe": values(maybe(_SHARES)), "note": text}),
        "distances": values(maybe(_DISTANCE)),
        "membership": fields(
            {},
            {
                "population": values(maybe(_ATTACK)),
                "u_lira": values(
                    maybe(lambda value, where: (anything if where.endswith(".ensemble") else _ATTACK)(value, where))
                ),
                "klom": values(maybe(anything)),
                "note": text,
            },
        ),
        "flow": fields({"classes": each(text)}, {name: each(_COUNTS) for name in ("full", "unlearned", "retrain")}),
        "loss_histogram": fields(
            {"edges": each(maybe(number))}, {name: values(maybe(_COUNTS)) for name in ("full", "unlearned", "retrain")}
        ),
        "samples": each(
            fields({"digest": text}, {"label": text, "full": text, "unlearned": text, "retrain": text, "loss": _BY_MODEL})
        ),
        "cost": fields(
            {},
            {
                "seconds": number,
                "retrain_seconds": number,
                "ratio_to_retrain": number,
                "peak_memory_bytes": number,
                "audit_seconds": number,
                "stages": values(anything),
                "rows_made_before": flag,
            },
        ),
        "definitions": values(fields({"title": text, "definition": text}, {"better": text, "unit": text})),
        "requirements": each(fields({"text": text, "passed": flag}, {"left": number, "right": number})),
        "limits": each(text),
    },
)


def read_record(path: str | Path) -> dict[str, Any]:
    """Read and check the record of a result folder, or a record file by its own name."""
    place = Path(path)
    if not place.exists():
        raise InputError(f"{place} is not there: expected the folder of a result, or an audit record.")
    file = place / AUDIT if place.is_dir() else place
    if not file.is_file():
        raise InputError(
            f"{place} has no {AUDIT}: it was not audited yet. Run `fastntk audit RUN {place} --holdout SRC` first, "
            "then `fastntk report` again."
        )
    try:
        record = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as an audit record: {error}. Make it anew with `fastntk audit`.") from error
    try:
        return check_record(record)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def check_record(record: Any) -> dict[str, Any]:
    """Return the record if it is one of this schema; otherwise say what is wrong with it."""
    if not isinstance(record, Mapping) or not isinstance(record.get("schema"), str):
        raise InputError(f"this is no audit record: it does not say schema {SCHEMA!r}. Make one with `fastntk audit`.")
    if record["schema"] != SCHEMA:
        raise InputError(
            f"this record has schema {record['schema']!r}, this fastntk reads {SCHEMA!r}: "
            "use the release that wrote it, or audit the result again."
        )
    try:
        _RECORD(record, "")
        _check_lengths(record)
    except InputError as error:
        raise InputError(f"malformed audit record: {error}. Audit the result again with `fastntk audit`.") from error
    return dict(record)


def record_digest(record: Mapping[str, Any]) -> str:
    """SHA-256 of a record's content: JSON with sorted keys and no spaces, so that formatting does not matter."""
    plain = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(plain.encode()).hexdigest()


def _check_lengths(record: Mapping[str, Any]) -> None:
    """Lists that belong together have to be as long as each other."""
    flow = record.get("flow") or {}
    size = len(flow.get("classes") or ())
    for model in ("full", "unlearned", "retrain"):
        rows = flow.get(model)
        if rows is not None and (len(rows) != size or any(len(row) != size for row in rows)):
            raise InputError(f"flow.{model}: expected {size} × {size} counts, one row and column a class")
    histogram = record.get("loss_histogram") or {}
    bins = len(histogram.get("edges") or ()) - 1
    for model in ("full", "unlearned", "retrain"):
        for group, counts in (histogram.get(model) or {}).items():
            if counts is not None and len(counts) != bins:
                raise InputError(f"loss_histogram.{model}.{group}: expected {bins} counts for {bins + 1} edges")
    for attack in ("population", "u_lira"):
        for model, figures in ((record.get("membership") or {}).get(attack) or {}).items():
            curve = (figures or {}).get("roc") or {}
            if len(curve.get("fpr") or ()) != len(curve.get("tpr") or ()):
                raise InputError(f"membership.{attack}.{model}.roc: fpr and tpr differ in length")
