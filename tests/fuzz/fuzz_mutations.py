"""Damage: of bytes as disks, networks and editors do it, and of fields in JSON as somebody might who knows what they mean."""

from __future__ import annotations

from random import Random
from typing import Any

from json_places import ABSENT, changed, places, value_at

DEEP: Any = 0
for _ in range(90):
    DEEP = [DEEP]
HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 1, 0.5, 1e308, -1e308, 2**31, 2**53 + 1, 2**63, 10**400, float("nan"), float("inf"), "", "x", "../../x",
    "\x00", "\ud800", "\x1b[2J", "9" * 5000, "/dev/zero", "2026-13-45", "0" * 64, [], {}, [[]], [0] * 1000, {"": 0}, DEEP,
)  # fmt: skip


def damaged(content: bytes, draw: Random) -> tuple[str, bytes]:
    """The bytes with one accident, and which."""
    size = len(content)
    at, length = draw.randrange(max(size, 1)), draw.choice((1, 7, 64, 4096))
    kinds = {
        "flip": lambda: content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :],
        "byte": lambda: content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :],
        "cut": lambda: content[:at],
        "extend": lambda: content + draw.randbytes(length),
        "zeros": lambda: content[:at] + bytes(min(length, size - at)) + content[at + length :],
        "noise": lambda: content[:at] + draw.randbytes(min(length, size - at)) + content[at + length :],
        "lost": lambda: content[:at] + content[at + length :],
        "twice": lambda: content[: at + length] + content[at:],
        "empty": lambda: b"",
        "end": lambda: content[:-1],
    }
    names = ["flip"] * 4 + ["byte"] * 2 + ["cut"] * 2 + list(kinds) if size else ["extend"]
    name = draw.choice(names)
    return f"{name} at {at}" + (f" of {length}" if name in ("extend", "zeros", "noise", "lost", "twice") else ""), kinds[name]()


def edited(value: Any, draw: Random, *, spare: tuple[str, ...] = ()) -> tuple[str, Any]:
    """A copy with one field changed to something hostile or plausible, and which; ``spare``: top fields that stay."""
    at = draw.choice([place for place in places(value, both_ends=True) if place[0] not in spare])
    old = value_at(value, at)
    new = draw.choice((ABSENT, draw.choice(HOSTILE), draw.choice(HOSTILE), _plausible(old, draw), _plausible(old, draw)))
    text = "absent" if new is ABSENT else ascii(new)
    return f"{'.'.join(map(str, at))} = {text if len(text) < 60 else text[:57] + '…'}", changed(value, at, new)


def _plausible(old: Any, draw: Random) -> Any:
    """A value of the same type."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return draw.choice((old + 1, old - 1, 2 * old, -old, 10**9 + old))
    if isinstance(old, float):
        return draw.choice((old * 2, -old, 1 - old, old + 1, old * 1e-300))
    if isinstance(old, str):
        return draw.choice((old + "x", old[1:], old.upper(), old[::-1], old * 2))
    if isinstance(old, list):
        return draw.choice((old[::-1], old[1:], old + old[:1], old * 2))
    if isinstance(old, dict) and len(old) > 1:
        names = list(old)
        return draw.choice((dict(zip(names, [*list(old.values())[1:], old[names[0]]])), {name: old[name] for name in names[1:]}))
    return "x"
