"""Quantities as people write them: seconds, bytes, fractions. One spelling for plans, commands and messages.

And names that others chose, made fit for a terminal.
"""

from __future__ import annotations

import math
import re

# Control characters other than tab and line end, marks that change the direction of writing, bytes that were no UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text as a terminal may get it: what would move its cursor, colour it or hide some of it becomes ``\\x1b`` or such."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def printable_json(text: str) -> str:
    """The same for JSON, which stays valid and means the same: ``\\u001b``."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_utf8(text: str) -> bool:
    """Whether a file in UTF-8 can hold the text: a file name of other bytes cannot be written down."""
    return not re.search("[\ud800-\udfff]", text)


def duration(seconds: float) -> str:
    """Seconds as people say them: ``40 ms``, ``3.2 s``, ``35 s``, ``4.5 min``, ``2.1 h``; ``?`` where they are not known."""
    if not math.isfinite(seconds):
        return "?"
    for limit, unit, size in ((0.1, "ms", 1e-3), (120.0, "s", 1.0), (7200.0, "min", 60.0)):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}" if seconds / size < 10 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.3g} h"


def byte_size(size: float, *, up: bool = False) -> str:
    """A number of bytes: ``612 MB``; ``up`` rounds so that it is enough."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    if up and size > 0:
        step = 10.0 ** (math.floor(math.log10(size)) - 2)
        size = math.ceil(size / step) * step
    return f"{size:.{4 if size >= 999.5 else 3}g} {units[0]}"


def percent(fraction: float) -> str:
    """A fraction as a percentage with two decimals."""
    return f"{100 * fraction:.2f} %"
