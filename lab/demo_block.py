"""The demo's tables on the start page, from the record that ``make demo`` wrote: ``results/demo/demo.json``."""

from __future__ import annotations

from pathlib import Path

from fastntk.base.schema import read_json
from fastntk.cli.demo_tables import table_of, words_of

MARKS = "demo"
RECORD = Path("demo") / "demo.json"


def demo_block(out: Path) -> str:
    """Both requests' tables, as the demo prints them."""
    if not (out / RECORD).exists():
        return "Not run yet.\n"
    record = read_json(out / RECORD)
    parts = []
    for request in record["requests"]:
        columns, rows = table_of(request)
        lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns), *(f"| {' | '.join(row)} |" for row in rows)]
        parts += [
            f"**{request['title']}**",
            "",
            *lines,
            "",
            words_of(request),
            f"Verdict of the audit on `path-replay`: {request['verdict']}.",
            "",
        ]
    return "\n".join(parts[:-1]) + f" The whole demo: {record['seconds']:.0f} s.\n"
