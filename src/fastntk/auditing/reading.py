"""From JSON to an :class:`AuditRecord`, the only way in: what is not a record is refused by place, expectation and value.

Fields that are not known are let through, since a later release may add some. No defaults, no conversion, no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fastntk.auditing.record import SCHEMA, SEAL, AuditRecord, record_digest, schema
from fastntk.base.errors import InputError

_AT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<place>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
_INNER = re.compile(r"[\w.]+: ")
_WORDS = {
    "`float` >= 0.0": "a fraction from 0 to 1",
    "`float` <= 1.0": "a fraction from 0 to 1",
    "`int` >= 0": "a whole number ≥ 0",
    "`int | null` >= 0": "a whole number ≥ 0 or null",
    "`int`": "a whole number",
    "`float`": "a finite number",
    "`str`": "a string",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "an object",
    "`int | null`": "a whole number or null",
    "`float | null`": "a finite number or null",
    "`str | null`": "a string or null",
    "`object | null`": "an object or null",
}


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
        _refuse_endless(value, "")
        record = msgspec.convert(value, AuditRecord)
    except (msgspec.ValidationError, InputError) as error:
        problem = str(error) if isinstance(error, InputError) else _explained(str(error), value)
        raise InputError(f"malformed audit record: {problem}. Audit the result again with `fastntk audit`.") from error
    if SEAL in value and value[SEAL] != record_digest(value):
        raise InputError(
            "this record was changed after it was written: its own digest does not match. Audit the result again with `fastntk "
            "audit`."
        )
    return record


def _refuse_endless(value: Any, place: str) -> None:
    """NaN and infinity, which JSON does not know but some readers let pass."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_endless(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _refuse_endless(item, f"{place}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{place}: expected a finite number, found {value}")


def _explained(message: str, value: Any) -> str:
    """Place, what was expected, and what came."""
    match = _AT.fullmatch(message)
    assert match is not None  # every text matches
    what, place = match["what"], match["place"] or ""
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        return f"{place or 'the record'} has no field {missing['name']!r}"
    if what.startswith("Invalid enum value"):
        what = f"Expected one of {_allowed(place)}"
    if not what.startswith("Expected"):
        # Said by a dataclass about parts of its own: full: expected …
        return what if not place else f"{place}.{what}" if _INNER.match(what) else f"{place}: {what}"
    expected = re.sub(r", got `.*`$", "", what.removeprefix("Expected "))
    for code, words in _WORDS.items():
        expected = expected.replace(code, words)
    return f"{place}: expected {expected}, found {_text_at(value, place)}"


def _text_at(value: Any, place: str) -> str:
    """The value at a place, cut short; a mapping's ``[...]`` stands for a key that the parser does not tell."""
    for step in _STEP.finditer(place):
        if step["index"] == "...":
            return "something else"
        value = value[step["name"]] if step["name"] else value[int(step["index"])]
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "…"


def _allowed(place: str) -> str:
    """The words that the schema allows at a place."""
    whole = schema()
    part: Any = whole
    for step in _STEP.finditer(place):
        inner = "properties" if step["name"] else "items" if step["index"] != "..." else "additionalProperties"
        part = part[inner][step["name"]] if step["name"] else part[inner]
        if "$ref" in part:
            part = whole["$defs"][part["$ref"].rpartition("/")[2]]
        for option in part.get("anyOf", ()):  # null or an object
            if "$ref" in option:
                part = whole["$defs"][option["$ref"].rpartition("/")[2]]
    return ", ".join(repr(word) for word in part["enum"])
