"""What is wanted of ``path-replay``, as data, and whether the rows meet it. Distances: the larger of D_f and hold-out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fastntk.reproduce.setting import Request
from lab.path_rows import PathRecords, PathRow

BEST = "all, 2 checkpoints, corrected"


@dataclass(frozen=True)
class Wanted:
    """Upper limits for a row of the settings whose names begin with ``settings``, for requests of a ``kind`` (None: all)."""

    settings: str
    row: str
    first: float | None = None
    next: float | None = None
    same: float | None = None
    others: float | None = None
    u_lira: float | None = None
    recovered: tuple[float, float] | None = None
    kind: Literal["class", "random"] | None = None


WANTED = (
    Wanted("vit-", "head", first=0.02, same=0.1, recovered=(0.95, 1.05)),
    Wanted("resnet20-", "head", first=0.03),
    Wanted("resnet20-", "auto", first=0.2, same=1.3, others=1.5),
    Wanted("mobilenetv2-", "auto", first=0.2),
    Wanted("augmented", "auto", first=0.2),
    Wanted("resnet20-", BEST, next=0.06, same=0.7, others=1.15),
    Wanted("resnet20-", BEST, u_lira=0.75, kind="class"),
    Wanted("augmented", "head", same=1.0, others=1.25),
    Wanted("mobilenetv2-", BEST, next=0.06, same=1.0, others=1.3, recovered=(0.95, 1.05)),
)


def target_lines(records: Sequence[PathRecords]) -> list[str]:
    """A Markdown table: one line a limit, setting and request."""
    lines = ["| setting | request | row | figure | wanted | measured | met |", "|" + " --- |" * 7]
    for each in records:
        for wanted in WANTED:
            if each.setting.name.startswith(wanted.settings):
                for request in each.setting.requests:
                    if wanted.kind in (None, request.kind):
                        lines += _lines(each, wanted, request)
    return lines


def _lines(records: PathRecords, wanted: Wanted, request: Request) -> list[str]:
    row = records.row(wanted.row, request)
    lines = []
    for name, figure in _FIGURES.items():
        limit = getattr(wanted, name)
        if limit is not None:
            low, high = limit if isinstance(limit, tuple) else (None, limit)
            value = None if row is None else figure(row)
            known = "not run" if row is None else "–" if value is None else f"{value:.3f}"
            met = "–" if value is None else "yes" if value <= high and (low is None or value >= low) else "**no**"
            text = f"≤ {high:g}" if low is None else f"{low:g} to {high:g}"
            head = [records.setting.name, request.title, wanted.row, _TITLES[name]]
            lines.append("| " + " | ".join([*head, text, known, met]) + " |")
    return lines


def _larger(row: PathRow, kind: str) -> float | None:
    values = [figure.mean for figure in getattr(row, kind).values() if figure.mean is not None]
    return max(values) if values else None


_FIGURES: dict[str, Callable[[PathRow], float | None]] = {
    "first": lambda row: row.first.mean,
    "next": lambda row: row.next.mean,
    "same": lambda row: _larger(row, "same"),
    "others": lambda row: _larger(row, "others"),
    "recovered": lambda row: row.recovered.mean,
    "u_lira": lambda row: None if row.u_lira is None else row.u_lira.auc,
}
_TITLES = {
    "first": "first × Retrain",
    "next": "next × Retrain",
    "same": "TV same, × spread",
    "others": "TV others, × spread",
    "recovered": "recovered",
    "u_lira": "U-LiRA",
}
