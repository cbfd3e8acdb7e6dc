"""The architecture in numbers, before and after the rooms were built: a block of docs/architecture.md, from two records.

The records are made by ``tools/architecture.py``, which says how modules and edges are counted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COMMANDS = ("unlearn", "audit")
COUNTS = {
    "modules": "modules whose functions are called",
    "edges": "pairs of rooms, one calling the other",
    "resolutions": "requests resolved",
    "guards": "engines guarded",
    "digests": "data digests computed",
}
WANTED = {"modules": "35", "edges": "30", "resolutions": "1", "guards": "1", "digests": "1 for each data set"}


def architecture_table(out: Path) -> str:
    """Markdown from the records in ``out``/house."""
    before, after = (json.loads((out / "house" / f"architecture-{when}.json").read_text("utf-8")) for when in ("before", "after"))
    head = ["", *(f"`{command}`, {when}" for command in COMMANDS for when in ("before", "now")), "wanted, at most"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for key, title in COUNTS.items():
        cells = [str(record["commands"][command][key]) for command in COMMANDS for record in (before, after)]
        lines.append("| " + " | ".join([title, *cells, WANTED[key]]) + " |")
    seconds = [f"{name}: {_time(before, name)} before, {_time(after, name)} now" for name in ("import fastntk", "fastntk --help")]
    sizes = f"{_lines(before)} lines in the package before, {_lines(after)} now; {before['lines']['top_level_modules']} modules "
    sizes += f"outside any room before, {after['lines']['top_level_modules']} now. Seconds of {'; '.join(seconds)}."
    return "\n".join([*lines, "", sizes]) + "\n"


def _time(record: dict[str, Any], name: str) -> str:
    return f"{record['seconds'][name]:.2f}"


def _lines(record: dict[str, Any]) -> str:
    return f"{record['lines']['total']:,}".replace(",", " ")
