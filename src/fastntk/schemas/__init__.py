"""JSON Schemas (2020-12) of what the commands print with ``--json``, and of the records they write.

One file a record, as package data, so that whoever reads our output can check it without us: ``<name>.json`` beside
this file. The name of a command's schema is the command's; records that are files of their own carry a version,
like ``audit-1``. docs/json.md lists them. Validating needs a validator, for example the ``jsonschema`` package;
this module only reads.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from fastntk.base.errors import InputError, listing


def names() -> list[str]:
    """The names of all schemas in this package, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load(name: str) -> dict[str, Any]:
    """The schema of that name as a dict; an unknown name is refused with those there are."""
    known = names()
    if name not in known:
        raise InputError(f"There is no schema {name!r}: choose one of {listing(known, most=len(known))}.")
    text = (resources.files(__name__) / f"{name}.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
