"""Audit records as files: finding one in a result's folder. What a record is, auditing says.

The record is what ``fastntk.audit`` returns and ``fastntk audit`` writes to ``RESULT/audit.json``. A page is never written from
half-understood figures: what :func:`fastntk.auditing.reading.parse_record` refuses is refused here with the file's name, and so
is a verdict that the figures do not give.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastntk.auditing.reading import parse_record
from fastntk.auditing.record import AuditRecord
from fastntk.auditing.verdict import disagreements
from fastntk.base.errors import InputError
from fastntk.base.marks import AUDIT
from fastntk.base.schema import read_json


def read_record(path: str | Path) -> AuditRecord:
    """Read and check the record of a result folder, or a record file by its own name."""
    return check_record(read_content(path))


def read_content(path: str | Path) -> dict[str, Any]:
    """The checked content of a record's file, with the fields that this release does not know."""
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
        content = read_json(file, what="an audit record")
    except InputError as error:
        raise InputError(f"{error}. Make it anew with `fastntk audit`.") from error
    try:
        odd = disagreements(check_record(content))
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    if odd:
        raise InputError(
            f"{file}: the judgement in it does not follow from its figures: {'; '.join(odd)}. It was changed, or judged by other "
            "rules: audit the result again with `fastntk audit`."
        )
    return dict(content)


def check_record(record: AuditRecord | Mapping[str, Any]) -> AuditRecord:
    """The record as such; what is none is refused with what is wrong with it."""
    return record if isinstance(record, AuditRecord) else parse_record(record)
