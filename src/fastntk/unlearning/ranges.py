"""Ranges that hyper-parameters must lie in, and one error that names all of a method's, not only the one that was missed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastntk.base.errors import InputError


@dataclass(frozen=True)
class Range:
    """A set of allowed values: in words, and as a test."""

    text: str
    holds: Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


COUNT = Range("a whole number ≥ 1", lambda value: _whole(value) and value >= 1)
COUNT_FROM_ZERO = Range("a whole number ≥ 0", lambda value: _whole(value) and value >= 0)
POSITIVE = Range("a number > 0", lambda value: _number(value) and value > 0)
NOT_NEGATIVE = Range("a number ≥ 0", lambda value: _number(value) and value >= 0)
UNIT = Range("a number in [0, 1]", lambda value: _number(value) and 0 <= value <= 1)
SHARE = Range("a number in (0, 1]", lambda value: _number(value) and 0 < value <= 1)


def or_none(allowed: Range) -> Range:
    """The range, or None."""
    return Range(f"{allowed.text} or None", lambda value: value is None or allowed.holds(value))


def one_of(choices: Sequence[str]) -> Range:
    """The range of these words."""
    return Range("one of " + ", ".join(choices), lambda value: isinstance(value, str) and value in choices)


def checked(method: str, ranges: dict[str, Range], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values, in the order of their ranges; refuse them all at once where some are outside."""
    wrong = [f"{name}={values[name]!r}" for name, limit in ranges.items() if not limit.holds(values[name])]
    if wrong:
        limits = "; ".join(f"{name}: {limit.text}" for name, limit in ranges.items())
        raise InputError(f"Method {method!r} cannot take {', '.join(wrong)}. Allowed are {limits}.")
    return {name: values[name] for name in ranges}
