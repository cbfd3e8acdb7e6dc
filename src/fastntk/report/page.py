"""One self-contained HTML page from one audit record: no network, no script, the same bytes for the same record.

Not for records of several results: one page is about one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fastntk.auditing.evidence import blind
from fastntk.auditing.record import AuditRecord, record_digest
from fastntk.auditing.record_figures import known
from fastntk.auditing.verdict import disagreements, older_rules
from fastntk.base.atomic import write_file
from fastntk.base.marks import check_report
from fastntk.report import sections, summary
from fastntk.report.flow import flow
from fastntk.report.record import check_record
from fastntk.report.words import date, samples


def render(record: AuditRecord | Mapping[str, Any], *, thumbnails: Sequence[bytes] | None = None) -> str:
    """Return the page of a record.

    ``thumbnails``: PNG files of the forgotten samples. Only for a page that will be erased together with the data: it then
    holds the pictures that were to be forgotten, and says so on top. A verdict that does not follow from the figures is shown as
    such, in red.
    """
    audit_record = check_record(record)
    return _environment().get_template("page.html").render(_context(audit_record, record_digest(record), thumbnails))


def write_report(
    record: AuditRecord | Mapping[str, Any],
    path: str | Path,
    *,
    thumbnails: Sequence[bytes] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the page of a record to a file, atomically; return the file. ``overwrite`` replaces such a page and nothing else."""
    page = render(record, thumbnails=thumbnails).encode("utf-8")
    return write_file(Path(path), page, overwrite=overwrite, replaceable=check_report)


def _context(record: AuditRecord, digest: str, thumbnails: Sequence[bytes] | None) -> dict[str, Any]:
    from fastntk.base.version import __version__

    verdict = record.verdict
    tone, sign, headline = summary.HEADLINES[verdict.level]
    if verdict.level == "like retrain" and blind(record):
        tone, sign, headline = "warn", "!", "Nothing was found, but the model before unlearning passes the same tests."
    odd = disagreements(record)
    if odd:
        tone, sign, headline = "bad", "✗", "The judgement in this record does not follow from its figures: do not rely on it."
    older = older_rules(record)
    if older and not odd:
        tone, sign, headline = "warn", "!", "This record was judged by other rules than the present ones, which say otherwise."
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
        "odd": odd,
        "older": older,
        "forgotten": samples(record.request.forget),
        "pictures": summary.data_uris(thumbnails or ()),
        "definitions": definitions,
        "anchors": {group.key: group.anchor for group in definitions},
        "limits": record.limits,
        "record": {
            "digest": digest,
            "schema": record.schema,
            "created": date(record.created),
            "sealed": known(record.record_sha256) is not None,
        },
        "version": __version__,
    }


def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _read(name: str) -> str:
    return resources.files("fastntk.report").joinpath(name).read_text("utf-8")
