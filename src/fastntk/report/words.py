"""Figures as people read them; a figure that is not there is a dash, never a nought."""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

MODEL_NAMES = {
    "full": "Before",
    "unlearned": "After",
    "retrain": "Retrain",
    "pretrained": "Pre-trained",
    "random": "Random weights",
}
GROUP_NAMES = {
    "forget": "forgotten samples",
    "retain": "retained samples",
    "holdout_kept_classes": "never-seen, kept classes",
    "holdout_forgotten_classes": "never-seen, forgotten classes",
    "holdout": "never-seen samples",
}
SHORT_NAMES = {"forget": "Forgotten", "retain": "Retained", "holdout": "Never seen"}
NONE = "–"
THIN = "\u202f"
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def model_name(key: str) -> str:
    """The name of a model in tables and plots."""
    return MODEL_NAMES.get(key, plain(key))


def group_name(key: str) -> str:
    """The name of a set of samples."""
    return GROUP_NAMES.get(key, plain(key))


def plain(key: str) -> str:
    """A field's name as words."""
    return key.replace("_", " ")


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction per cent: 0.987 → 98.7 %."""
    return NONE if value is None else f"{100 * value:.{digits}f}\u00a0%"


def figure(value: float | None, digits: int = 3) -> str:
    """A number to so many significant digits; very small and very large ones with a power of ten: 7.95 × 10⁻⁵."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa}\u00a0×\u00a010{str(int(power)).translate(_RAISED)}"
    return f"{value:,.0f}".replace(",", THIN) if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")


def whole(value: int | None) -> str:
    """A whole number with thin spaces: 12 345."""
    return NONE if value is None else f"{value:,}".replace(",", THIN)


def duration(seconds: float | None) -> str:
    """Seconds as people say them: 0.41 s, 35 s, 4.2 min, 2.5 h."""
    if seconds is None:
        return NONE
    if seconds < 120:
        return f"{figure(seconds, 2) if seconds < 10 else format(seconds, '.0f')}\u00a0s"
    return f"{seconds / 60:.1f}\u00a0min" if seconds < 7200 else f"{seconds / 3600:.1f}\u00a0h"


def size(amount: float | None) -> str:
    """Bytes as people say them: 512 MB."""
    if amount is None:
        return NONE
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= factor:
            return f"{figure(amount / factor)}\u00a0{unit}"
    return f"{amount:.0f}\u00a0bytes"


def date(iso: str | None) -> str:
    """An ISO date-time as 16 November 2026, 09:30 UTC; anything else as it stands."""
    if not iso:
        return NONE
    try:
        moment = datetime.datetime.fromisoformat(iso)
    except ValueError:
        return iso
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC)
    month = _MONTHS[moment.month - 1]  # not strftime: the locale must not change the bytes
    return f"{moment.day} {month} {moment.year}, {moment:%H:%M}{' UTC' if moment.tzinfo is not None else ''}"


def samples(number: int) -> str:
    """1 sample, 2 samples."""
    return f"{whole(number)} sample{'' if number == 1 else 's'}"


def join(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def clean(name: str, *, most: int | None = None) -> str:
    """A name fit to print: control characters replaced, cut with an ellipsis where it is longer than ``most``."""
    text = "".join("\ufffd" if unicodedata.category(char) in ("Cc", "Cs") else char for char in name)
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def value(item: Any) -> str:
    """Any value of a recipe or an option in one line."""
    if item is None:
        return "none"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, float):
        return f"{item:g}"
    if isinstance(item, Mapping):
        return ", ".join(f"{plain(str(key))} {value(part)}" for key, part in item.items())
    if isinstance(item, (list, tuple)):
        return ", ".join(value(part) for part in item)
    return clean(str(item))
