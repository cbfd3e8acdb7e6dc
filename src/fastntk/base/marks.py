"""How single files of ours are told from files of others, so that only ours are replaced: by marks in their head."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fastntk.base.errors import InputError

AUDIT, REPORT = "audit.json", "report.html"
"""What `fastntk audit` and `fastntk report` put into the folder of a result."""
_MARKS = {
    "an audit record": (b'"schema": "fastntk-audit/',),
    "a report": (b'<meta name="generator" content="fastntk', b"<title>Unlearning report"),
}
_HEAD = 4096


def check_audit(path: Path) -> tuple[str, ...]:
    """Refuse a file that is no audit record; to be given as ``replaceable``."""
    return _check(path, "an audit record")


def check_report(path: Path) -> tuple[str, ...]:
    """Refuse a file that is no report; to be given as ``replaceable``."""
    return _check(path, "a report")


def _check(path: Path, kind: str) -> tuple[str, ...]:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise InputError(f"{path.name} is no plain file")
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if not all(mark in head for mark in _MARKS[kind]):
        raise InputError(f"{path.name} does not start as {kind} of fastntk does")
    return (f"{kind} of {len(head) if len(head) < _HEAD else os.path.getsize(path):,} bytes",)
