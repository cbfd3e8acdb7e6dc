"""The few rows of results that the README shows, generated like every other table: between two marks, from the records."""

from __future__ import annotations

from pathlib import Path

from fastntk.base.errors import InputError
from fastntk.reproduce.setting import Request, Setting
from lab.rows import Row, row_of

MARKS = "results"
COLUMNS = (
    "forget",
    "method",
    "seeds",
    "retain %",
    "forget %",
    "hold-out %",
    "relearn epochs",
    "distance to other Retrains",
    "cost",
    "again",
)


def filled(page: str, block: str, *, marks: str = MARKS) -> str:
    """The page with everything between the marks of this name replaced."""
    start, end = f"<!-- {marks}:start -->", f"<!-- {marks}:end -->"
    if page.count(start) != 1 or page.count(end) != 1:
        raise InputError(f"The page needs one {start} and one {end}, between which the results go.")
    return page[: page.index(start) + len(start)] + "\n" + block + page[page.index(end) :]


def headline(setting: Setting, *, folder: Path) -> str:
    """One compact table of a setting: methods against Retrain, means over the seeds that were run."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    seeds: set[int] = set()
    for request in (setting.requests[0], setting.requests[-1]):
        for method in setting.methods:
            row = row_of(setting, request, method, folder=folder)
            if row is not None:
                seeds |= set(row.seeds)
                lines.append("| " + " | ".join(_cells(request, row)) + " |")
    if not seeds:
        return "Not run yet.\n"
    note = (
        f"`{setting.model}`, {setting.images_per_class} images per class, means over the seeds run so far. *Distance*: "
        "total variation of the class probabilities on forgotten / hold-out images to Retrains of other seeds, in units of the "
        "distance between two such Retrains. *Cost*: CPU time over Retrain's, for a first request and "
        "*again*, for a further one. `fast-ntk-ridge` is the paper's equation (1), corrected; `fast-ntk` the same with the loss "
        "that was trained by."
    )
    return "\n".join([*lines, "", note]) + "\n"


def _cells(request: Request, row: Row) -> list[str]:
    percent = [f"{100 * (row.accuracy[name].mean or 0.0):.1f}" for name in ("retain", "forget", "holdout")]
    relearn = f">{row.cap}" if row.relearn_censored else f"{row.relearn.mean:.1f}"
    distance = " / ".join(_times(row.multiple("others", where)) for where in ("forget", "holdout"))
    costs = [row.ratio_with_rows.mean, row.ratio_without_rows.mean if row.uses_rows else None]
    return [
        request.title,
        row.method.label,
        str(len(row.seeds)),
        *percent,
        relearn,
        distance,
        *("–" if c is None else f"{c:.2f}" for c in costs),
    ]


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}×"
