"""Fields of JSON values: where they are, and copies with another value there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

ABSENT = object()
"""In place of a value: the field is left out."""
Place = tuple[str | int, ...]


def places(value: Any, at: Place = (), *, both_ends: bool = False) -> Iterator[Place]:
    """Every field below a value; of a list the first entry stands for all, or the first and the last."""
    if at:
        yield at
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*at, name), both_ends=both_ends)
    elif isinstance(value, list) and value:
        for number in sorted({0, len(value) - 1 if both_ends else 0}):
            yield from places(value[number], (*at, number), both_ends=both_ends)


def changed(value: Any, at: Place, to: Any) -> Any:
    """A copy with another value at a place."""
    whole = copy.deepcopy(value)
    part = whole
    for step in at[:-1]:
        part = part[step]
    if to is ABSENT:
        del part[at[-1]]
    else:
        part[at[-1]] = to
    return whole


def value_at(value: Any, at: Place) -> Any:
    """The value at a place."""
    for step in at:
        value = value[step]
    return value
