"""From which commits, and which states of the code, the figures of a page come: one line that every generated page has.

Whatever a record measured at one time has an ``environment``, with the commit, and since version 0.2 a ``code``, the digests of
the source that decides figures (:mod:`fastntk.reproduce.code`). The line depends on the records alone, not on the code that
writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fastntk.base.schema import read_json
from fastntk.reproduce.environment import short_commit


def provenance(measured: Sequence[Any]) -> str:
    """The line for these records (or parts of some): how many measurements are of which commit, and whether of one code."""
    entries = [entry for value in measured for entry in _entries(value)]
    if not entries:
        return "Provenance: nothing was run.\n"
    commits = Counter(short_commit(entry["environment"].get("commit")) for entry in entries)
    dated = [entry["code"] for entry in entries if isinstance(entry.get("code"), dict)]
    differing = _differing(dated)
    if len(commits) == 1 and None not in commits and len(dated) == len(entries) and not differing:
        if len(entries) == 1:
            return f"Provenance: one run, at commit `{next(iter(commits))}`.\n"
        return f"Provenance: all {len(entries)} measurements are of commit `{next(iter(commits))}` and one state of the code.\n"
    parts = [f"{count} at {'an unknown commit' if commit is None else f'`{commit}`'}" for commit, count in commits.most_common()]
    text = f"**Provenance: not all of one commit.** Of {len(entries)} measurements, {', '.join(parts)}."
    if len(commits) == 1 and None not in commits:
        text = f"Provenance: {len(entries)} measurements, {parts[0]}."
    if differing:
        text += f" They were made by different code in {', '.join(differing)}."
    elif dated and len(dated) == len(entries):
        text += " The code that decides figures was the same in all of them."
    if len(dated) < len(entries):
        older = len(entries) - len(dated)
        text += f" Of {older} the code is not known: they are older than its digests."
    return text + "\n"


def stored(paths: Iterable[Path]) -> list[Any]:
    """The JSON files, as they are."""
    return [read_json(path) for path in paths]


def _entries(value: Any) -> Iterator[dict[str, Any]]:
    """Every part that was measured at one time: the outermost ones that have an environment."""
    if not isinstance(value, dict):
        return
    if isinstance(value.get("environment"), dict):
        yield value
        return
    for part in value.values():
        yield from _entries(part)


def _differing(codes: Sequence[dict[str, str]]) -> list[str]:
    """Rooms that have several digests; a record names only those it depends on."""
    rooms = dict.fromkeys(room for code in codes for room in code)
    return [room for room in rooms if len({code[room] for code in codes if room in code}) > 1]
