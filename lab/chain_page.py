"""Requests in a row, as a section of the path experiment's page: means over the seeds that were run, from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastntk.reproduce.records import read_record
from fastntk.reproduce.setting import Setting
from fastntk.reproduce.summary import Figure
from lab.chain import DEPTHS, REQUESTS, SCHEMA, random_request, record_file
from lab.path_models import SETS
from lab.path_rows import PathRecords
from lab.unlearning_page import figure_text

Record = dict[str, Any]
STEPS = (
    "requests", "images gone", "seeds", "apart: D_f / hold-out", "moved: D_f / hold-out", "own estimate of the drift",
    "own estimate of the noise", "\"retrain instead\"", "seconds: in a row / at once",
)  # fmt: skip
ENDS = ("depth", "model", "seeds", "TV to Retrain: D_f / hold-out", "recovered", "accuracy: retain / forget / hold-out")
MODELS = {"full": "Full", "one_shot": "one request for all", "chained": "requests in a row"}


def chain_text(setting: Setting, *, out: Path) -> str:
    """The section."""
    request = random_request(setting)
    paths = {seed: record_file(out, seed) for seed in setting.seeds}
    seeds = {seed: read_record(path, schema=SCHEMA)["depths"] for seed, path in paths.items() if path.exists()}
    spread = PathRecords.read(setting, out=out).spread(request)
    units = {name: spread[name].mean for name in SETS}
    size = "multiples of Retrain's spread" if all(units.values()) else "total variation (Retrain's spread: not run)"
    lines = [
        "## Ten requests in a row",
        "",
        f"`{setting.name}`, `path-replay` from rows alone (`checkpoints=1, exact=0`). The samples of {request.title} go in "
        f"{REQUESTS} requests of equal size, dealt out at random. *In a row*: each request is asked of the last result, with its "
        "rewritten trace, and makes rows of its own. *At once*: all requests so far are asked of the run in the beginning, whose "
        f"rows are made once. *Apart*: distance of the two on the samples gone so far and on hold-out, {size}; *moved*: the same "
        "between the result at once and Full. *Own estimate*: what the last result in a row says of the errors that added up, "
        "and of what two seeds differ by (total variation, without retraining; – where it had nothing to estimate). Where the "
        'errors pass that, its verdict is "retrain instead"; the column says in how many seeds.',
        "",
    ]
    for label in DEPTHS:
        entries = {seed: depths[label] for seed, depths in seeds.items() if label in depths}
        lines += [
            f"### Depth `{label}`",
            "",
            *(_depth(entries, units) if entries else ["Not run (`python -m lab run chain`)."]),
            "",
        ]
    return "\n".join([*lines, *_ends(seeds, units, request.title), ""])


def _depth(entries: dict[int, Record], units: dict[str, float | None]) -> list[str]:
    lines = ["| " + " | ".join(STEPS) + " |", "|" + " --- |" * len(STEPS)]
    for place in range(max(len(entry["steps"]) for entry in entries.values())):
        steps = [entry["steps"][place] for entry in entries.values() if place < len(entry["steps"])]
        lines.append("| " + " | ".join(_step(steps, units)) + " |")
    failures = [
        f"- Seed {seed} ended after {len(e['steps'])} requests: {e['failed']}" for seed, e in entries.items() if "failed" in e
    ]
    return [*lines, "", *failures, *([""] if failures else []), _verdicts(entries, units)]


def _step(steps: Sequence[Record], units: dict[str, float | None]) -> list[str]:
    said = sum(step["validity"]["chained"]["verdict"] != "ok" for step in steps)
    return [
        str(steps[0]["requests"]),
        str(steps[0]["gone"]),
        str(len(steps)),
        _distances([step["apart"] for step in steps], units),
        _distances([step["moved"] for step in steps], units),
        figure_text(Figure.of(step["chain"]["drift"] for step in steps), 4),
        figure_text(Figure.of(step["chain"]["noise"] for step in steps), 4),
        f"{said} of {len(steps)}",
        " / ".join(figure_text(Figure.of(step["seconds"][way] for step in steps), 1) for way in ("chained", "one_shot")),
    ]


def _verdicts(entries: dict[int, Record], units: dict[str, float | None]) -> str:
    """In words: where the two ways are further apart than two Retrains, and where the result says that errors add up."""
    said = {seed: _first(entry, lambda step: step["validity"]["chained"]["verdict"] != "ok") for seed, entry in entries.items()}
    text = f'The result says "retrain instead": {_places(said)}.'
    if not all(units.values()):
        return text
    passed = {
        seed: _first(entry, lambda step: any(step["apart"][name] > (units[name] or 0.0) for name in SETS))
        for seed, entry in entries.items()
    }
    return f"The two ways are further apart than two Retrains: {_places(passed)}. {text}"


def _first(entry: Record, holds: Any) -> int | None:
    return next((step["requests"] for step in entry["steps"] if holds(step)), None)


def _places(found: dict[int, int | None]) -> str:
    known = [f"from request {number} on seed {seed}" for seed, number in found.items() if number is not None]
    return ", ".join(known) if known else "nowhere"


def _ends(seeds: dict[int, Record], units: dict[str, float | None], title: str) -> list[str]:
    lines = [f"### In the end: {title} gone, against the Retrain of the same seed", ""]
    lines += ["| " + " | ".join(ENDS) + " |", "|" + " --- |" * len(ENDS)]
    for label in DEPTHS:
        ends = [depths[label]["end"] for depths in seeds.values() if label in depths and depths[label]["end"] is not None]
        for model, name in MODELS.items():
            cells = _end([end[model] for end in ends], units) if ends else ["not run"] * (len(ENDS) - 2)
            lines.append("| " + " | ".join([label, name, *cells]) + " |")
    return lines


def _end(figures: Sequence[Record], units: dict[str, float | None]) -> list[str]:
    accuracy = (Figure.of(each["accuracy"][name] for each in figures) for name in ("retain", *SETS))
    return [
        str(len(figures)),
        _distances([each["same"] for each in figures], units),
        figure_text(Figure.of(each["recovered"] for each in figures), 2),
        " / ".join(figure_text(figure, 1, scale=100) for figure in accuracy),
    ]


def _distances(values: Sequence[Record | None], units: dict[str, float | None]) -> str:
    """As multiples of the spread where that is known, else as they are."""
    known = [value for value in values if value is not None]
    measured = all(units.values())
    scale = {name: 1 / (units[name] or 1.0) if measured else 1.0 for name in SETS}
    figures = [Figure.of(value[name] * scale[name] for value in known) for name in SETS]
    return " / ".join(figure_text(figure, 2 if measured else 4) + (" ×" if measured else "") for figure in figures)
