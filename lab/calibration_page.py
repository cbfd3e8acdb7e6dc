"""docs/calibration.md from the records of :mod:`lab.calibration`. Knows no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import beta

from fastntk.auditing.calibration import DISTANCE_SD, DISTANCE_SD_MANY, LEVEL, TESTS, distance_limit, pair_factor
from fastntk.reproduce.records import read_record
from lab.provenance import provenance

CALIBRATION = 1
"""The schema of a pool's file."""
FOLDER = "calibration"
PASSED = "like retrain"
CONFIDENCE = 0.95
WANTED = 0.95
"""The share of audits in which a genuine Retrain should pass: what the limits are set for."""
TITLES = {
    "development": "Development: where the limits were chosen",
    "report": "Report: other seeds, another class, other draws",
    "larger": "Larger: 100 images a class",
}
CHOSEN_ON = "development"
LEVELS = (PASSED, "differs from retrain", "cannot be told", "memory left")
NOT_RUN = "Not run with the present rules.\n"
Row = Mapping[str, Any]

HEAD = f"""# Calibration of the verdict

Made by `python -m lab run calibration` and `python -m lab pages calibration`; do not edit. The rules and their limits are in
[metrics.md](metrics.md#verdict), their figures in `fastntk.auditing.calibration`.

A draw is an audit as `fastntk audit --retrains R` would make it: a candidate, the Retrain of the run's own seed and R of other
seeds. The limits are set so that a genuine Retrain, of a seed that is none of the references', passes in {100 * WANTED:.0f} % of
the audits or more, by all {TESTS} tests together (each has a limit of {LEVEL} standard deviations of chance). That is the aim;
the pools of models below say how much of it was seen.

Draws share models, so many draws do not make a share more certain. What counts is the number of Retrains that were trained
independently: the *seeds*. A seed that does not pass in every draw, for every request, counts as failed. That is stricter than
a share of audits. The bound is exact (Clopper–Pearson, one-sided, {100 * CONFIDENCE:.0f} %) for models that are judged
independently. Candidates and references come from one pool here, which the bound does not account for. On the pool that the
limits were chosen on, no bound is given.

In the tables, *models* is how many candidates are behind the draws, *Retrains* how many the references were drawn from. A row
of one to three models tells what happened to these, not a rate.

ResNet-20 on CIFAR-10 (30 images a class unless it says otherwise, 1 000 held out), norm and head tuned. Not checked on other
networks, data or recipes: there the limits rest on the Retrains at hand and on the same formulas. Baselines have tuned options
where there are any (`results/tuned`), else their own defaults. Full and the methods start from the run of the first reference's
seed. A genuine Retrain has no run; where a test needs its Full, that of another seed is taken.
`deltagrad`'s options were tuned for longer trainings: here they compute all steps (class) or three quarters of them, and all is
Retrain, so it has to pass.
"""


def calibration_page(out: Path) -> str:
    """The page, from the pools that have a record."""
    paths = {name: out / FOLDER / f"{name}.json" for name in TITLES}
    records = {name: read_record(path, schema=CALIBRATION) for name, path in paths.items() if path.exists()}
    parts = [HEAD, provenance(list(records.values())), _limits()]
    parts += [f"## {title}\n\n{_pool(records[name]) if name in records else NOT_RUN}" for name, title in TITLES.items()]
    return "\n".join(parts)


def lower_bound(passed: int, count: int) -> float:
    """The least share of passes that ``passed`` of ``count`` independent ones agree with (Clopper–Pearson, one-sided)."""
    return float(beta.ppf(1 - CONFIDENCE, passed, count - passed + 1)) if passed else 0.0


def enough() -> int:
    """Independent models that it takes, without a failure, for a bound of :data:`WANTED`."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(WANTED))


def _limits() -> str:
    lines = [
        "## Limits of the distance, and how sure a spread is",
        "",
        "| forgotten samples | R | total variation to the Retrains over that between them, at most | the spread may be off by |",
        "| --- | --- | --- | --- |",
    ]
    first = 1
    for most in (*(most for most, _ in DISTANCE_SD), None):
        title = f"{first} and more" if most is None else f"{first} to {most}" if most > first else f"{first}"
        for others in DISTANCE_SD_MANY:
            lines.append(f"| {title} | {others} | {distance_limit(first, others):.2f} | {pair_factor(first, others):.2f} × |")
        first = (most or first) + 1
    return "\n".join(lines) + "\n"


def _pool(record: Row) -> str:
    """How many genuine Retrains pass, then what every candidate got."""
    rows: Sequence[Row] = record["rows"]
    genuine, chosen_on = [row for row in rows if row["candidate"] == "retrain"], record["pool"] == CHOSEN_ON
    lines = [*([] if chosen_on else _passed(genuine)), _headline(genuine, chosen_on=chosen_on), ""]
    if not record["complete"]:
        lines += ["Not complete: made from the models that were trained and measured by then.", ""]
    others = sorted({row["others"] for row in rows})
    for request, title in {row["request"]: row["title"] for row in rows}.items():
        own = [row for row in rows if row["request"] == request]
        lines += [
            f"### {_title(own[0], title)}",
            "",
            "Share of draws “like retrain” / “differs” / “memory left”, per cent; the rest to 100 is “cannot be told”.",
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


def _passed(genuine: Sequence[Row]) -> list[str]:
    """The share of audits that genuine Retrains pass, and what the others said."""
    draws = sum(row["draws"] for row in genuine)
    if not draws:
        return []
    levels = {level: sum(row["levels"].get(level, 0) for row in genuine) for level in LEVELS}
    shares = [100 * row["levels"].get(PASSED, 0) / row["draws"] for row in genuine]
    rest = ", ".join(f"“{level}” {100 * count / draws:.1f} %" for level, count in levels.items() if level != PASSED)
    return [
        f"**Genuine Retrains pass in {100 * levels[PASSED] / draws:.1f} % of {draws} audits** (by request and R in "
        f"{min(shares):.1f} to {max(shares):.1f} %; otherwise: {rest}). An estimate: the audits share the models below.",
        "",
    ]


def _headline(genuine: Sequence[Row], *, chosen_on: bool) -> str:
    """Independent Retrains, how many failed, and what share of passes that shows."""
    if not genuine:
        return "**No genuine Retrain was judged.**"
    requests = len({row["request"] for row in genuine})
    draws = sum(row["draws"] for row in genuine)
    behind = f"{requests} {'request' if requests == 1 else 'requests'}, {draws} draws"
    seeds = {seed for row in genuine for seed in row["candidates"]}
    failed = {seed for row in genuine for seed in row["failed"]}
    return _bound_text(len(seeds), len(failed), behind, chosen_on=chosen_on)


def _bound_text(count: int, failed: int, behind: str, *, chosen_on: bool) -> str:
    seen = f"**Genuine Retrains: {count} independent seeds ({behind}), {failed} failed"
    if chosen_on:
        return f"{seen}.** The limits were chosen on these models: that is no evidence of how often others pass."
    bound = 100 * lower_bound(count - failed, count)
    least = f"{math.floor(10 * bound) / 10:.1f} %"
    text = f"{seen} at least once: so at least {least} of seeds pass in every draw, and more is not shown.**"
    short = f" To show {100 * WANTED:.0f} % by this stricter count takes {enough()} without a failure."
    return text if bound >= 100 * WANTED else text + short


def _title(row: Row, title: str) -> str:
    count = "1 image" if row["forget"] == 1 else f"{row['forget']} images"
    return f"{title} ({count}, `{row['request']}`)"


def _shares(row: Row | None) -> str:
    if row is None:
        return "–"
    levels = (PASSED, "differs from retrain", "memory left")
    return " / ".join(f"{100 * row['levels'].get(level, 0) / row['draws']:.0f}" for level in levels)
