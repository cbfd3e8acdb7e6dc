"""Quantities as people write them: seconds, bytes, fractions. One spelling for plans, commands and messages."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """Seconds as people say them: ``40 ms``, ``3.2 s``, ``35 s``, ``4.5 min``, ``2.1 h``."""
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
