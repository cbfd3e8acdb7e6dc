"""The document of the comparison of methods, from its records alone: the same records give the same bytes.

What was not run says so. The words are in :mod:`lab.comparison_words`, the figure in :mod:`lab.comparison_figure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fastntk.auditing.record_figures import Attack
from fastntk.auditing.ulira import LEAST, median_shift, median_shift_null, u_lira, u_lira_null
from fastntk.reproduce.records import setting_folder
from fastntk.reproduce.setting import MethodRow, Request, Setting
from fastntk.reproduce.summary import Figure, Record, attack
from lab.comparison import tuned_methods, tuning_file
from lab.comparison_nearest import PLACES, nearest_text
from lab.comparison_tuning import tuning_text
from lab.comparison_words import DEVELOPED, header
from lab.packed_table import packed_section
from lab.provenance import provenance, stored
from lab.rows import Row, record_paths, records_of, row_of
from lab.unlearning_page import figure_text, relearn_text, setting_text

COLUMNS = (
    "method", "seeds", "TV others × spread, D_f / hold-out", "TV same × spread, D_f / hold-out", "recovered",
    "accuracy: retain / forget / hold-out", "relearn", "U-LiRA", "shift", "cost × Retrain",
)  # fmt: skip
ATTACK = "attack AUC"
"""For requests of single samples only: on a whole class the attack has no power, for Retrain never saw the class either."""


def comparison_page(settings: Sequence[Setting], *, out: Path) -> str:
    """The whole document."""
    paths = [path for setting in settings for path in record_paths(setting, setting.methods, out=out)]
    tunings = [tuning_file(setting.requests[0], each.label, out) for setting in settings for each in tuned_methods()]
    made = stored([*paths, *(path for path in tunings if path.exists())])
    first = settings[0]
    parts = [header(first), provenance(made)]
    parts.append(setting_text(first, setting_folder(out, first.name)).replace(first.name, "Setting", 1))
    parts += [_table(setting, out=out) for setting in settings]
    parts += [packed_section(out=out), tuning_text(settings, out=out), DEVELOPED]
    return "\n".join(parts)


def _table(setting: Setting, *, out: Path) -> str:
    request, folder = setting.requests[0], setting_folder(out, setting.name)
    reference = records_of(setting, request, setting.methods[-1], folder=folder)
    columns = (*COLUMNS[:-1], *(() if request.kind == "class" else (ATTACK,)), COLUMNS[-1])
    lines = [f"## Forget {request.title}", "", _spread_text(setting, request, folder=folder), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for method in setting.methods:
        row = row_of(setting, request, method, folder=folder)
        records = records_of(setting, request, method, folder=folder)
        cells = ["not run"] * (len(columns) - 1) if row is None else _cells(row, records, reference, request)
        lines.append("| " + " | ".join([label_text(method), *cells]) + " |")
    lines += ["", nearest_text(setting, folder=folder)]
    missing = [each.label for each in tuned_methods() if not tuning_file(request, each.label, out).exists()]
    left_out = f"Not tuned yet: {', '.join(missing)}. A baseline is left out until it is; our methods have their defaults."
    return "\n".join([*lines, "", *([left_out, ""] if missing else [])])


def label_text(method: MethodRow) -> str:
    """The row's name; the two forms of the paper's method say whose they are."""
    return {
        "fast-ntk-ridge": "fast-ntk-ridge (the paper's equation)",
        "fast-ntk": "fast-ntk (softmax form, ours)",
    }.get(method.label, method.label)


def _spread_text(setting: Setting, request: Request, *, folder: Path) -> str:
    row = row_of(setting, request, setting.methods[-1], folder=folder)
    if row is None or row.spread["forget"].mean is None:
        return "Retrain's spread: not run."
    forget, holdout = (figure_text(row.spread[place], 4) for place in PLACES)
    return f"Retrain's spread over {row.spread['forget'].count} pairs of seeds: {forget} on D_f, {holdout} on hold-out."


def _cells(row: Row, records: list[Record], reference: list[Record], request: Request) -> list[str]:
    known = [record for record in records if record["confidences"]]
    count = str(len(row.seeds)) if len(row.seeds) == row.wanted else f"{len(row.seeds)} of {row.wanted}"
    diverged = len(records) - len(known)
    retrain = row.method.method == "retrain"
    area = Figure.of(attack(record, "auc") for record in known)
    return [
        count + (f", {diverged} diverged" if diverged else ""),
        multiple_text(row, "others"),
        multiple_text(row, "same"),
        figure_text(row.recovered, 2),
        " / ".join(figure_text(row.accuracy[name], 1, scale=100) for name in ("retain", *PLACES)),
        relearn_text(row),
        _told_apart(null(reference) if retrain else separation(records, reference), len(known) // 2 if retrain else len(known)),
        _shift_text(reference if retrain else records, reference, retrain=retrain),
        *(() if request.kind == "class" else (figure_text(area, 3),)),
        "1" if retrain else figure_text(row.ratio_with_rows, 3 if (row.ratio_with_rows.mean or 1) < 0.1 else 2),
    ]


def multiple_text(row: Row, kind: Literal["same", "others"]) -> str:
    """A distance on D_f / hold-out in units of the spread, ± over seeds."""
    return " / ".join(figure_text(row.multiple(kind, place), 2) for place in PLACES)


def _told_apart(test: Attack | None, models: int) -> str:
    if test is None:
        return "too few models"
    return f"{test.auc:.3f} ± {test.auc_standard_error:.3f} ({models} a side)"


def _shift_text(records: list[Record], reference: list[Record], *, retrain: bool) -> str:
    """The median shift with its standard error; for Retrain that of Retrains against Retrains."""
    if retrain:
        confidences = [record["confidences"] for record in reference if record["confidences"]]
        shift = median_shift_null(confidences) if len(confidences) >= 2 * LEAST else None
    else:
        sides = _sides(records, reference)
        shift = None if sides is None else median_shift(*sides)
    return "–" if shift is None else f"{shift.median:+.2f} ± {shift.standard_error:.2f}"


def separation(records: list[Record], reference: list[Record]) -> Attack | None:
    """U-LiRA of a row's models against the Retrains of these seeds; None where there are too few."""
    sides = _sides(records, reference)
    return None if sides is None else u_lira(*sides)


def _sides(records: list[Record], reference: list[Record]) -> tuple[list[Any], list[Any]] | None:
    """Confidences of a row's models and of the Retrains of the same seeds; None where there are too few."""
    ours = {record["seed"]: record["confidences"] for record in records if record["confidences"]}
    theirs = {record["seed"]: record["confidences"] for record in reference if record["confidences"]}
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < LEAST:
        return None
    return [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]


def null(reference: list[Record]) -> Attack | None:
    """The same test of Retrains against Retrains: what a perfect method would show."""
    confidences = [record["confidences"] for record in reference if record["confidences"]]
    return u_lira_null(confidences) if len(confidences) >= 2 * LEAST else None
