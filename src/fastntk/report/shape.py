"""What a JSON value has to look like, said in small functions that can be put together.

A check is called with a value and the place where it stands, and raises :class:`InputError` naming that place. Fields
that are not mentioned are let through: a later release may add some. No defaults, no conversion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fastntk.base.errors import InputError

Check = Callable[[Any, str], None]


def text(value: Any, where: str) -> None:
    """Accept a string."""
    _expect(isinstance(value, str), "a string", value, where)


def flag(value: Any, where: str) -> None:
    """Accept true or false."""
    _expect(isinstance(value, bool), "true or false", value, where)


def number(value: Any, where: str) -> None:
    """Accept a finite number."""
    _expect(_is_number(value), "a finite number", value, where)


def count(value: Any, where: str) -> None:
    """Accept a whole number ≥ 0."""
    _expect(_is_number(value) and isinstance(value, int) and value >= 0, "a whole number ≥ 0", value, where)


def fraction(value: Any, where: str) -> None:
    """Accept a number from 0 to 1."""
    _expect(_is_number(value) and -1e-9 <= value <= 1 + 1e-9, "a fraction from 0 to 1", value, where)


def anything(value: Any, where: str) -> None:
    """Accept every value."""


def maybe(check: Check) -> Check:
    """Accept null besides what ``check`` accepts."""

    def checked(value: Any, where: str) -> None:
        if value is not None:
            check(value, where)

    return checked


def one_of(*allowed: str) -> Check:
    """Accept one of some words."""

    def checked(value: Any, where: str) -> None:
        _expect(value in allowed, f"one of {', '.join(map(repr, allowed))}", value, where)

    return checked


def each(check: Check) -> Check:
    """Accept a list whose every item passes."""

    def checked(value: Any, where: str) -> None:
        _expect(isinstance(value, list), "a list", value, where)
        for position, item in enumerate(value):
            check(item, f"{where}[{position}]")

    return checked


def values(check: Check) -> Check:
    """Accept an object whose every value passes, under whatever names."""

    def checked(value: Any, where: str) -> None:
        _expect(isinstance(value, dict), "an object", value, where)
        for name, item in value.items():
            check(item, f"{where}.{name}")

    return checked


def fields(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Accept an object with these fields; an optional one may be absent or null."""

    def checked(value: Any, where: str) -> None:
        _expect(isinstance(value, dict), "an object", value, where)
        for name, check in required.items():
            if name not in value:
                raise InputError(f"{where or 'the record'} has no field {name!r}")
            check(value[name], f"{where}.{name}" if where else name)
        for name, check in (optional or {}).items():
            if value.get(name) is not None:
                check(value[name], f"{where}.{name}" if where else name)

    return checked


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _expect(passed: bool, expected: str, value: Any, where: str) -> None:
    if not passed:
        came = repr(value)
        raise InputError(f"{where or 'the record'}: expected {expected}, found {came if len(came) < 60 else came[:57] + '…'}")
