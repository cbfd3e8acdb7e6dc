"""From JSON to an :class:`AuditRecord`, the only way in: what is not a record is refused by place, expectation and value.

Fields that are not known are let through, since a later release may add some. No defaults, no conversion, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastntk.auditing.record import SCHEMA, SEAL, AuditRecord, record_digest
from fastntk.base.errors import InputError
from fastntk.base.schema import check_bounds, parse


def parse_record(value: Any) -> AuditRecord:
    """The record that a JSON value is; otherwise say what is wrong with it."""
    if not isinstance(value, Mapping) or not isinstance(value.get("schema"), str):
        raise InputError(f"this is no audit record: it does not say schema {SCHEMA!r}. Make one with `fastntk audit`.")
    if value["schema"] != SCHEMA:
        raise InputError(
            f"this record has schema {value['schema']!r}, this fastntk reads {SCHEMA!r}: "
            "use the release that wrote it, or audit the result again."
        )
    try:
        check_bounds(value)
        record = parse(value, AuditRecord, what="the record")
    except InputError as error:
        raise InputError(f"malformed audit record: {error}. Audit the result again with `fastntk audit`.") from error
    if SEAL in value and value[SEAL] != record_digest(value):
        raise InputError(
            "this record was changed after it was written: its own digest does not match. Audit the result again with `fastntk "
            "audit`."
        )
    return record
