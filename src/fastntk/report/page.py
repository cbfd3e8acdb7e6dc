"""One self-contained HTML page from one audit record: no network, no script, the same bytes for the same record.

Not for records of several results: one page is about one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fastntk.auditing.record import AuditRecord
from fastntk.base.atomic import write_file
from fastntk.base.marks import check_report
from fastntk.report import sections, summary
from fastntk.report.flow import flow
from fastntk.report.record import check_record, record_digest
from fastntk.report.words import date, model_name, samples


def render(record: AuditRecord | Mapping[str, Any], *, thumbnails: Mapping[str, bytes] | None = None) -> str:
    """Return the page of a record.

    ``thumbnails``: PNG bytes by sample digest. Only for a page that will be erased together with the data: it then
    holds the pictures that were to be forgotten, and says so on top.
    """
    checked = check_record(record)
    if thumbnails is not None:
        summary.check_pictures(checked, thumbnails)
    return _environment().get_template("page.html").render(_context(checked, record_digest(record), thumbnails))


def write_report(
    record: AuditRecord | Mapping[str, Any],
    path: str | Path,
    *,
    thumbnails: Mapping[str, bytes] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the page of a record to a file, atomically; return the file. ``overwrite`` replaces such a page and nothing else."""
    page = render(record, thumbnails=thumbnails).encode("utf-8")
    return write_file(Path(path), page, overwrite=overwrite, replaceable=check_report)


def _context(record: AuditRecord, digest: str, thumbnails: Mapping[str, bytes] | None) -> dict[str, Any]:
    from fastntk.base.version import __version__

    verdict = record.verdict
    tone, sign, headline = summary.HEADLINES[verdict.level]
    models, forgotten = summary.forgotten(record, thumbnails)
    definitions = summary.definitions(record)
    return {
        "style": Markup(_read("style.css")),
        "title": f"Unlearning report: request to forget {samples(record.request.forget)}",
        "verdict": {
            "tone": tone,
            "sign": sign,
            "headline": headline,
            "level": verdict.level,
            "text": verdict.text,
            "reasons": verdict.reasons,
        },
        "tiles": summary.tiles(record),
        "facts": summary.request_facts(record),
        "checkpoints": summary.checkpoints(record),
        "accuracy": sections.accuracy(record),
        "flow": flow(record),
        "losses": sections.losses(record),
        "relearn": sections.relearn(record),
        "membership": sections.membership(record),
        "distances": sections.distances(record),
        "probes": sections.probes(record),
        "cost": sections.cost(record),
        "requirements": sections.requirements(record),
        "samples": forgotten,
        "sample_models": [model_name(model) for model in models],
        "pictures": thumbnails is not None,
        "definitions": definitions,
        "anchors": {group.key: group.anchor for group in definitions},
        "limits": record.limits,
        "record": {"digest": digest, "schema": record.schema, "created": date(record.created)},
        "version": __version__,
    }


def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _read(name: str) -> str:
    return resources.files("fastntk.report").joinpath(name).read_text("utf-8")
