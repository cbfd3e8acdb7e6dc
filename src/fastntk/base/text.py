"""Quantities as people write them: seconds, bytes, fractions. One spelling for plans, commands and messages."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds as people say them: ``40 ms``, ``3.2 s``, ``35 s``, ``4.5 min``, ``2.1 h``."""
    for limit, unit, size in ((0.1, "ms", 1e-3), (120.0, "s", 1.0), (7200.0, "min", 60.0)):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}" if seconds / size < 10 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.3g} h"


def byte_size(size: float) -> str:
    """A number of bytes: ``612 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def percent(fraction: float) -> str:
    """A fraction as a percentage with two decimals."""
    return f"{100 * fraction:.2f} %"
