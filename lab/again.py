"""Cells of the paper's tables made again by a later state of the code, beside the records that the pages show.

    fastntk reproduce table1 --models resnet20 --images-per-class 100 --out elsewhere
    python -m lab again elsewhere

Tables take days on two cores, so their records are older than the code. ``results/again.json`` says what became of some of them:
the largest change of each kind of figure. Times are not compared. Knows no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastntk.base.atomic import write_file
from fastntk.base.errors import InputError
from fastntk.base.schema import read_json
from fastntk.reproduce.environment import short_commit

RECORD = "again.json"
PLACES = ("forget", "holdout")


def compare_records(folder: Path, *, out: Path) -> dict[str, Any]:
    """The record: for each file that both folders have, how far its figures moved."""
    pairs = {
        path.relative_to(out).as_posix(): (read_json(path), read_json(folder / path.relative_to(out)))
        for path in sorted((out / "records").glob("*/*/*-seed*.json"))
        if (folder / path.relative_to(out)).exists()
    }
    pairs = {name: pair for name, pair in pairs.items() if _commit(pair[0]) != _commit(pair[1])}
    if not pairs:
        raise InputError(f"{folder} has no record of another commit than {out}: expected what 'fastntk reproduce --out' writes.")
    return {"records": {name: _changes(old, new) for name, (old, new) in pairs.items()}}


def write_again(folder: Path, *, out: Path) -> Path:
    """Write the record."""
    write_file(out / RECORD, (json.dumps(compare_records(folder, out=out), indent=1) + "\n").encode(), overwrite=True)
    return out / RECORD


def again_sentence(out: Path) -> str:
    """What came of it, for the page; empty where nothing was made again."""
    if not (out / RECORD).exists():
        return ""
    records = read_json(out / RECORD)["records"]
    changes = list(records.values())
    cells = dict.fromkeys(name.split("/")[1] for name in records)
    commits = dict.fromkeys(short_commit(change["commit"]) for change in changes)
    same = sum(change["same_bytes"] for change in changes)
    epochs = sum(change["same_relearning"] for change in changes)
    largest = {kind: max(change[kind] for change in changes) for kind in ("accuracy", "distance", "recovered")}
    return (
        f"\n**Made again by later code** ({', '.join(f'`{commit}`' for commit in commits)}): {len(changes)} of these records, of "
        f"{', '.join(cells)}. {same} are the same model to the byte. The largest change of an accuracy is "
        f"{100 * largest['accuracy']:.2f} points, of a distance {largest['distance']:.2g} × the spread, of *recovered* "
        f"{largest['recovered']:.2g}; relearning takes as many epochs in {epochs}.\n"
    )


def _changes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Largest absolute differences, by kind of figure."""
    audits = old["audit"], new["audit"]
    units = audits[0]["distances"]["retrain_spread"]["total_variation"]
    distances = [_distances(audit, units) for audit in audits]
    epochs = [audit["relearn"]["unlearned"]["epochs"] for audit in audits]  # None where it is censored
    return {
        "commit": _commit(new),
        "same_bytes": audits[0]["subject"]["result"]["tuned"] == audits[1]["subject"]["result"]["tuned"],
        "accuracy": _largest(*(list(_leaves(audit["accuracy"])) for audit in audits)),
        "distance": _largest(*distances),
        "recovered": _largest(*([audit["distances"]["same_seed"]["recovered"]] for audit in audits)),
        "same_relearning": epochs[0] == epochs[1],
    }


def _commit(record: dict[str, Any]) -> str:
    return str(record["environment"]["commit"])


def _distances(audit: dict[str, Any], units: dict[str, float]) -> list[float]:
    """To the Retrain of the same seed and to others, in units of the shown record's spread."""
    kinds = ("same_seed", "other_seeds")
    return [audit["distances"][kind]["total_variation"][place] / units[place] for kind in kinds for place in PLACES]


def _leaves(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    else:
        yield float(value)


def _largest(old: list[float], new: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(old, new, strict=True))
