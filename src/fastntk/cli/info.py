"""``fastntk info``: what the folder of a run or a result holds, after verifying every byte of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.marks import AUDIT, REPORT
from fastntk.base.text import byte_size, duration, percent
from fastntk.cli.options import Json
from fastntk.cli.output import Output

if TYPE_CHECKING:
    from fastntk.auditing.record import AuditRecord
    from fastntk.storage.schema import ResultExtra

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder written by `fastntk finetune` or `fastntk unlearn`.")]


def info(folder: Folder, json: Json = False) -> None:
    """Show what the folder of a run or a result holds.

    Verified: every file's size and SHA-256, those of the trace too, the manifest's own digest, and of an audit record its digest
    and whether its verdict follows from its figures.

    Examples:

    fastntk info runs/digits

    fastntk info runs/digits --json | jq .recipe
    """
    from fastntk.report.record import read_record
    from fastntk.storage.manifest import read_bundle
    from fastntk.storage.runs import RESULT, RUN
    from fastntk.storage.traces import stored_trace

    output = Output(as_json=json)
    manifest = read_bundle(folder, kinds=(RUN, RESULT)).manifest
    stored_trace(folder, manifest)
    record = read_record(folder) if (folder / AUDIT).is_file() else None
    if not json:
        output.say(f"{folder}: a {manifest['kind']} of fastntk {manifest['versions']['fastntk']}, {manifest['created']}")
        output.facts(_facts(manifest) | _beside(folder, manifest, record))
        output.table(
            ("file", "bytes", "SHA-256"),
            [(name, f"{file['bytes']:,}", file["sha256"][:16] + "…") for name, file in manifest["files"].items()],
        )
        output.say("All files are as they were written.")
    output.finish({"command": "info", "folder": str(folder), "verified": True, **manifest}, then=_next(folder, manifest))


def _next(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """The next sensible command: for a run a plan, for a result its evidence, then a further request."""
    counts = manifest["data"].get("per_class") or [1]
    present = next(label for label, count in enumerate(counts) if count)  # earlier requests may have forgotten class 0
    plan_command = ["fastntk", "plan", str(folder), "--classes", str(present)]
    if manifest["kind"] == "run":
        return plan_command
    if (folder / AUDIT).is_file():
        return plan_command if (folder / REPORT).exists() else ["fastntk", "report", str(folder)]
    if manifest["model"]["card"] is None:  # no source can be read for it here, so neither can it be audited
        return plan_command
    data = ["--data", "SRC"] if manifest["source"] is None else []
    reference = ["--retrain-with", "MODULE:FUNCTION"] if manifest["recipe"] is None else ["--reference", "retrain"]
    return ["fastntk", "audit", "RUN", str(folder), "--holdout", "SRC", *data, *reference]


def _facts(manifest: Mapping[str, Any]) -> dict[str, object]:
    from fastntk.storage.schema import result_of, source_of

    card, data, recipe = manifest["model"]["card"], manifest["data"], manifest["recipe"]
    history, source = manifest["history"], source_of(manifest)
    name = f"{manifest['model']['class']} (not made by build_model)" if card is None else card["name"]
    weights = "unknown" if card is None else card["weights"] or "random"
    facts: dict[str, object] = {
        "model": name,
        "weights": weights,
        "tuned": f"{manifest['tuned']:,} parameters ({percent(manifest['ratio'])})",
        "data": f"{data['count']:,} samples, {data['num_classes']} classes, digest {_start(data['digest'])}",
        "source": "not recorded" if source is None else source["data"],
        "recipe": "not recorded" if recipe is None else ", ".join(f"{key} {value}" for key, value in recipe.items()),
        "BN statistics": manifest["bn_stats"],
        "trace": _trace(manifest.get("trace")),
    }
    if manifest["kind"] == "result":
        facts |= _result_facts(result_of(manifest))
        if source is not None:
            facts["source"] = "the run's, without the forgotten samples"
    if history and {"loss", "accuracy"} <= set(history[-1]):
        facts["last epoch"] = f"loss {history[-1]['loss']:.4f}, accuracy {percent(history[-1]['accuracy'])}"
    return facts


def _beside(folder: Path, manifest: Mapping[str, Any], record: AuditRecord | None) -> dict[str, object]:
    """What else belongs to the folder: its key, and the verdict of its audit."""
    from fastntk.auditing.verdict import older_rules
    from fastntk.storage.keys import key_file, read_key

    facts: dict[str, object] = {}
    name = manifest["data"].get("key")
    if name is not None:
        where = key_file(folder)
        facts["key of ids"] = str(where) if read_key(folder, name) is not None else f"not there ({where})"
    if record is not None:
        facts["audit"] = f"{record.verdict.level} ({record.created})"
        older = older_rules(record)
        if older is not None:
            facts["audit"] = f"{facts['audit']}, {older}"
    return facts


def _trace(summary: Mapping[str, Any] | None) -> str:
    """The trace for people."""
    if summary is None:
        return "none was recorded"
    words = [
        byte_size(summary["nbytes"]),
        f"{summary['visits']:,} visits of {summary['samples']:,} samples in {summary['steps']:,} steps",
        f"features in {summary['feature_dtype']}",
        "with the body's gradients" if summary["body_gradients"] else "of the head only",
    ]
    if summary["requests"]:
        words.append(f"rewritten by {summary['requests']} requests")
    return ", ".join(words)


def _start(digest: str | None) -> str:
    """The beginning of a digest; a result made from a trace alone has seen no images."""
    return "unknown (made without the images)" if digest is None else f"{digest[:16]}…"


def _result_facts(extra: ResultExtra) -> dict[str, object]:
    request, details = extra["request"], extra["details"]
    return {
        "forgotten": f"{request['forget']:,} samples (keyed digests of their ids only)",
        "method": f"{extra['method']}, {duration(extra['seconds'])}",
        "made from": f"data {_start(extra['origin']['data'])}, tuned weights {extra['origin']['tuned'][:16]}…",
        "validity": details["validity"]["verdict"] if "validity" in details else "not applicable",
        "other weights": details.get("outside_subset", {}).get("message", "unknown"),
    }
