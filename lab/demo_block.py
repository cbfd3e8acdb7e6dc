"""The demo's tables in the README, from the record that ``make demo`` wrote: ``results/demo/demo.json``."""

from __future__ import annotations

from pathlib import Path

from fastntk.base.schema import read_json
from fastntk.cli.demo_tables import table_of

MARKS = "demo"
RECORD = Path("demo") / "demo.json"

NOTE = (
    "× Retrain: time of the request over a Retrain's. Loss, margin: means over the forgotten images. Rank: the mean share of new "
    "images with a lower loss. Distance: to Retrains of other seeds, on forgotten / new images, in units of the distance "
    "between two Retrains. Like Retrain: for path-replay the verdict of a whole audit, for the others a shorter comparison of "
    "predictions and losses. The 20 images are those whose own loss changes most when they are left out. *memory*: the model "
    "still knows the images better than a Retrain does; *differs*: it behaves otherwise. A deeper replay is not always nearer. "
    "The whole demo took {seconds:.0f} s."
)


def demo_block(out: Path) -> str:
    """Both requests' tables, as the demo prints them; of what it says below them the short of it."""
    if not (out / RECORD).exists():
        return "Not run yet.\n"
    record = read_json(out / RECORD)
    parts = []
    for request in record["requests"]:
        columns, rows = table_of(request)
        parts += [f"**{request['title']}**", "", f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
        parts += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    return "\n".join([*parts, NOTE.format(seconds=record["seconds"])]) + "\n"
