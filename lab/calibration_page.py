"""docs/calibration.md from the records of :mod:`lab.calibration`. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastntk.auditing.calibration import LEVEL, TESTS, distance_limit, pair_factor
from fastntk.reproduce.records import read_record

CALIBRATION = 1
"""The schema of a pool's file."""
FOLDER = "calibration"
TITLES = {
    "development": "Development: where the limits were chosen",
    "report": "Report: other seeds, another class, other draws",
    "larger": "Larger: 100 images a class",
}
NOT_RUN = "Not run.\n"
Row = Mapping[str, Any]

HEAD = f"""# Calibration of the verdict

Made by `python -m lab run calibration` and `python -m lab pages calibration`; do not edit. The rules and their limits are in
[metrics.md](metrics.md#verdict), their figures in `fastntk.auditing.calibration`.

A draw is an audit as `fastntk audit --retrains R` would make it: a candidate, the Retrain of the run's own seed and R of other
seeds. A genuine Retrain, of a seed that is none of the references', has to pass in 95 % of the draws or more, by all {TESTS}
tests together (each has a limit of {LEVEL} standard deviations of chance). Draws share models, so their number promises more
than there is: *models* is how many candidates are behind them, *Retrains* how many the references were drawn from. A row of one
to three models tells what happened to these, not a rate.

ResNet-20 on CIFAR-10 (30 images a class unless it says otherwise, 1 000 held out), norm and head tuned. Not checked on other
networks, data or recipes: there the limits rest on the Retrains at hand and on the same formulas. Baselines have tuned options
where there are any (`results/tuned`), else their own defaults. Full and the methods start from the run of the first reference's
seed; a genuine Retrain needs no run, and Full, from which shares of the way are counted, is that of another seed for it.
"""


def calibration_page(out: Path) -> str:
    """The page, from the pools that have a record."""
    parts = [HEAD, _limits()]
    for name, title in TITLES.items():
        path = out / FOLDER / f"{name}.json"
        parts.append(f"## {title}\n\n{_pool(read_record(path, schema=CALIBRATION)) if path.exists() else NOT_RUN}")
    return "\n".join(parts)


def _limits() -> str:
    lines = [
        "## Limits of the distance, and how sure a spread is",
        "",
        "| forgotten samples | R | total variation to the Retrains over that between them, at most | the spread may be off by |",
        "| --- | --- | --- | --- |",
    ]
    for count, title in ((1, "1"), (5, "2 to 9"), (30, "10 to 99"), (100, "100 and more")):
        for others in (1, 3, 7):
            lines.append(f"| {title} | {others} | {distance_limit(count, others):.2f} | {pair_factor(count, others):.2f} × |")
    return "\n".join(lines) + "\n"


def _pool(record: Row) -> str:
    """How many genuine Retrains pass, then what every candidate got."""
    rows: Sequence[Row] = record["rows"]
    genuine = [row for row in rows if row["candidate"] == "retrain"]
    draws = sum(row["draws"] for row in genuine)
    passed = sum(row["levels"].get("like retrain", 0) for row in genuine)
    share = f"{100 * passed / draws:.1f} %" if draws else "none"
    lines = [f"Genuine Retrains passed: {share} of {draws} draws.", ""]
    if not record["complete"]:
        lines += ["Not complete: made from the models that were trained and measured by then.", ""]
    others = sorted({row["others"] for row in rows})
    for request, title in {row["request"]: row["title"] for row in rows}.items():
        own = [row for row in rows if row["request"] == request]
        lines += [
            f"### {_title(own[0], title)}",
            "",
            "Share of draws “like retrain” / “differs” / “memory left”, per cent.",
            "",
            "| candidate | " + " | ".join(f"R = {count}" for count in others) + " | draws | models | Retrains |",
            "|" + " --- |" * (4 + len(others)),
        ]
        for candidate in dict.fromkeys(row["candidate"] for row in own):
            cells = {row["others"]: row for row in own if row["candidate"] == candidate}
            some = next(iter(cells.values()))
            shares = " | ".join(_shares(cells.get(count)) for count in others)
            lines.append(f"| {candidate} | {shares} | {some['draws']} | {some['models']} | {some['retrains']} |")
        lines.append("")
    return "\n".join(lines)


def _title(row: Row, title: str) -> str:
    count = "1 image" if row["forget"] == 1 else f"{row['forget']} images"
    return f"{title} ({count}, `{row['request']}`)"


def _shares(row: Row | None) -> str:
    if row is None:
        return "–"
    levels = ("like retrain", "differs from retrain", "memory left")
    return " / ".join(f"{100 * row['levels'].get(level, 0) / row['draws']:.0f}" for level in levels)
