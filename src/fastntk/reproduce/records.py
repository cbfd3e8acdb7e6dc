"""Records on disk: JSON written whole or not at all, and folders that belong to one configuration.

    <out>/records/<setting>/setting.json                       the configuration and its digest
    <out>/records/<setting>/<request>/<method>-seed<k>.json    one record, schema ``fastntk-record/2``

    setting, configuration, request, label, method, options, seed    what was asked
    digest, code                                                     what was asked; which code answered (:func:`.code.vouched`)
    fastntk, environment                                             where it was made
    record_sha256                                                    of all the rest; older records have none
    timings                                                          seconds of the method, its rows, fine-tuning and Retrain
    audit                                                            what ``fastntk.audit`` returned, less ``DROPPED``
    confidences, margins                                             of the forgotten samples, where the setting has evidence
    converted_from                                                   only where an older runner measured: what it did not
                                                                     measure is absent from ``audit``

Records belong to settings: tables are selections from this one pool, and share what they have in common. Nothing here knows
torch or what a figure means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from fastntk.base.atomic import write_file
from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError
from fastntk.base.schema import Count, JsonObject, parse, read_json
from fastntk.reproduce.code import changed_rooms

SCHEMA = "fastntk-record/2"
DROPPED = ("loss_histogram", "flow", "definitions", "record_sha256")
"""Parts of an audit that a record leaves out: bulky, the same in all, or the digest of the whole."""
SEAL = "record_sha256"
SETTING_FILE = "setting.json"
POOL = "records"
MISSING = "missing"


class Record(TypedDict, total=False):
    """The fields of a record; a setting's own file has some of them."""

    digest: str
    code: JsonObject
    fastntk: str
    setting: str
    configuration: str | JsonObject
    request: str | JsonObject
    label: str
    method: str
    options: JsonObject
    seed: Count
    environment: JsonObject
    timings: JsonObject | None
    audit: JsonObject


def setting_folder(out: Path, name: str) -> Path:
    """The folder of a setting's records."""
    return out / POOL / name


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write one record atomically, with a digest of itself; numbers JSON lacks become null."""
    content = jsonable(record)
    text = json.dumps(content | {SEAL: json_digest(content)}, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_file(path, (text + "\n").encode(), overwrite=True)


def read_record(path: Path, *, schema: str | int = SCHEMA) -> dict[str, Any]:
    """Read one record, or say which file is broken or was changed; older releases wrote no digest into it."""
    try:
        record = read_json(path)
    except InputError as error:
        raise InputError(f"{error}, so it is not a readable record: delete it and run the experiment again.") from error
    if not isinstance(record, dict) or record.get("schema") != schema:
        schema_found = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise InputError(f"{path}: expected schema {schema}, found {schema_found}. Delete it and run again.")
    seal = record.pop(SEAL, None)
    if seal is not None and seal != json_digest(record):
        raise InputError(f"{path} was changed after it was written: its own digest does not match. Delete it and run again.")
    try:
        if schema == SCHEMA:
            parse(record, Record, what="the record")
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}. Delete it and run again.") from error
    return record


def check_folder(folder: Path, digest: str) -> None:
    """Refuse a folder that another configuration made."""
    path = folder / SETTING_FILE
    if path.exists():
        earlier = read_record(path)["digest"]
        if earlier != digest:
            raise InputError(
                f"{folder} was made by another configuration ({earlier[:12]}…, now {digest[:12]}…; see {path.name} there). "
                "Choose another --out, or move that folder away."
            )
    elif folder.is_dir() and any(folder.rglob("*.json")):
        raise InputError(f"{folder} holds records but no {SETTING_FILE}: move it away, or choose another --out.")


def reason_to_run(
    path: Path,
    digest: Callable[[str], str],
    code: Mapping[str, str],
    *,
    schema: str | int = SCHEMA,
    keep_stale: bool = False,
) -> str | None:
    """Why a record has to be made, :data:`MISSING` or what is stale about the one that is there; None where it is fresh.

    ``digest``: of what is asked, by the version that a record names. ``keep_stale`` takes records of other code for fresh; never
    those of another question: another method, options or request under the same name.
    """
    if not path.exists():
        return MISSING
    record = read_record(path, schema=schema)
    if record.get("digest") != digest(str(record.get("fastntk"))):
        return "made with another method, options or request"
    rooms = changed_rooms(record.get("code"), code)
    if not rooms or keep_stale:
        return None
    older = "made by an older state of the code, or with --keep-stale"
    return f"made by other code ({', '.join(rooms)})" if "code" in record else older


def jsonable(value: Any) -> Any:
    """The value with tuples as lists, names as str, and NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(name): jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def without(value: Any, *names: str) -> Any:
    """The value with these keys left out at every depth: what differs from run to run."""
    if isinstance(value, dict):
        return {name: without(item, *names) for name, item in value.items() if name not in names}
    if isinstance(value, (list, tuple)):
        return [without(item, *names) for item in value]
    return value
