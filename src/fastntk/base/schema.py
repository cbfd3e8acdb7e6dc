"""From bytes to typed values, the one way in for our JSON files: manifests, traces, audit records, records of experiments.

:func:`read_json` bounds what a file may be: size, depth, size of numbers, no NaN, no key twice, text that is text. :func:`parse`
compares a value with a type (dataclass or ``TypedDict`` whose fields may carry limits, like :data:`Count`) and says place,
expectation and value where they differ. Both raise :class:`InputError` and nothing else. Fields that are not known are let
through, since a later release may add some. Nothing is converted, except lists to tuples. No torch.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from fastntk.base.errors import InputError
from fastntk.base.files import read_bytes

MAX_BYTES = 2**28
MAX_DEPTH = 64
MAX_INTEGER = 2**63 - 1
MAX_GIVEN = 2**62
"""Of a seed or a count that somebody gives: what is reckoned from it, as the seeds that follow, has to be written too."""

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
AtLeastZero = Annotated[float, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Word = Annotated[str, Meta(min_length=1)]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time as ISO 8601; its reader checks it by :func:`check_moment`."""
JsonObject: TypeAlias = dict[str, Any]
"""Names and values that depend on the method, the recipe or the machine."""

T = TypeVar("T")

_AT = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<place>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
_INNER = re.compile(r"[\w.]+: ")
_WORDS = {
    "`int` >= 0": "a whole number ≥ 0",
    "`int` >= 1": "a whole number ≥ 1",
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
    "`array | null`": "a list or null",
    "`object | null`": "an object or null",
    "`null`": "null",
}


def read_json(path: Path, *, what: str = "JSON", most: int = MAX_BYTES) -> Any:
    """The value in a JSON file that may be hostile; refused with the file's name, as ``what`` it cannot be read."""
    try:
        content = read_bytes(path, expected=what, most=most)
    except InputError as error:
        raise InputError(str(error).rstrip(".")) from error  # a part of its caller's sentence
    try:
        return parse_json(content)
    except InputError as error:
        raise InputError(f"{path} cannot be read as {what}: {str(error).rstrip('.')}") from error


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text, within bounds."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_key_twice)
    except RecursionError as error:
        raise InputError(f"it is nested more than {MAX_DEPTH} levels deep") from error
    except InputError:
        raise
    except ValueError as error:  # also bytes that are no UTF-8, and whole numbers of thousands of digits
        raise InputError(str(error)) from error
    check_bounds(value)
    return value


def check_bounds(value: Any, *, place: str = "", depth: int = 0) -> None:
    """Refuse depth, numbers beyond 64 bits, NaN, infinities, and text that cannot be written out, wherever they are."""
    if depth > MAX_DEPTH:
        raise InputError(f"{_short(place)}: it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        if not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise InputError(f"{place}: expected text, found half of a character (a lone surrogate)")
    elif isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise InputError(f"{place}: expected a number of at most 64 bits, found one of {value.bit_length()}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{place}: expected a finite number, found {value}")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            check_bounds(name, place=f"a name in {place or 'it'}", depth=depth)
            check_bounds(item, place=f"{place}.{name}" if place else str(name), depth=depth + 1)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_bounds(item, place=f"{place}[{number}]", depth=depth + 1)


def parse(value: Any, kind: type[T], *, what: str = "it", complete: bool = False) -> T:
    """The value as the type says; refused with place, expectation and value where it is something else.

    ``what``: the whole in such a sentence. ``complete``: fields of a dataclass that have defaults have to be there too.
    """
    if complete and isinstance(value, Mapping):
        absent = [item.name for item in dataclasses.fields(kind) if item.name not in value]  # type: ignore[arg-type]
        if absent:
            raise InputError(f"{what} has no field {absent[0]!r}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(_explained(str(error), value, kind, what)) from error


def finite(value: float | None) -> float | None:
    """A number as JSON can hold it: None where it is infinite, or none at all."""
    return value if value is not None and math.isfinite(value) else None


def check_moment(text: str) -> None:
    """Refuse what is no time; for ``__post_init__`` and readers."""
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"created: expected a time like 2026-01-31T12:00:00+00:00, found {_short(repr(text))}") from error


def _no_constant(name: str) -> Any:
    raise InputError(f"expected a finite number, found {name}")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise InputError("a name occurs twice in one object")
    return value


def _explained(message: str, value: Any, kind: Any, whole: str) -> str:
    """Place, what was expected, and what came."""
    match = _AT.fullmatch(message)
    assert match is not None  # every text matches
    what, place = match["what"], match["place"] or ""
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        return f"{place or whole} has no field {missing['name']!r}"
    if what.startswith("Invalid enum value"):
        part = _part(kind, place)
        choices = [word for option in (part, *part.get("anyOf", ())) for word in option.get("enum", ())]
        what = f"Expected one of {', '.join(repr(word) for word in choices)}"
    if not what.startswith("Expected"):
        # Said by a dataclass about parts of its own: full: expected …
        return what if not place else f"{place}.{what}" if _INNER.match(what) else f"{place}: {what}"
    expected = re.sub(r", got `.*`$", "", what.removeprefix("Expected "))
    if expected in ("`float` >= 0.0", "`float` <= 1.0"):
        expected = "a fraction from 0 to 1" if "maximum" in _part(kind, place) else "a number ≥ 0"
    for code, words in _WORDS.items():
        expected = expected.replace(code, words)
    return f"{place or whole}: expected {expected}, found {_text_at(value, place)}"


def _text_at(value: Any, place: str) -> str:
    """The value at a place, cut short; a mapping's ``[...]`` stands for a key that the parser does not tell."""
    for step in _STEP.finditer(place):
        if step["index"] == "...":
            return "something else"
        value = value[step["name"]] if step["name"] else value[int(step["index"])]
    return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) < 60 else text[:57] + "…"


def _part(kind: Any, place: str) -> Any:
    """What the JSON Schema of a type says of a place."""
    whole = msgspec.json.schema(kind)

    def resolved(part: Any) -> Any:
        options = [option for option in part.get("anyOf", ()) if "$ref" in option]  # null or an object
        part = options[0] if options else part
        return whole["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part

    part: Any = resolved(whole)
    for step in _STEP.finditer(place):
        inner = "properties" if step["name"] else "items" if step["index"] != "..." else "additionalProperties"
        part = resolved(part[inner][step["name"]] if step["name"] else part[inner])
    return part
