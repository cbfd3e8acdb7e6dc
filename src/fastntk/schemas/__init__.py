"""JSON Schemas (draft 2020-12) of what the commands print with ``--json`` and of the files this package writes.

One schema a command, by the command's name. Files with a format of their own carry a version, like ``audit-1``, which is
generated from the record's types (:mod:`fastntk.auditing.record`); the others are files here. docs/json.md lists them. Validating
needs a validator, for example the ``jsonschema`` package; this module only reads.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from fastntk.base.errors import InputError, listing

AUDIT = "audit-1"


def names() -> list[str]:
    """The names of all schemas, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted([AUDIT, *(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))])


def load(name: str) -> dict[str, Any]:
    """The schema of that name as a dict; an unknown name is refused with those there are."""
    choices = names()
    if name not in choices:
        raise InputError(f"There is no schema {name!r}: choose one of {listing(choices, most=len(choices))}.")
    if name == AUDIT:
        from fastntk.auditing.record import schema

        return schema()
    text = (resources.files(__name__) / f"{name}.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
