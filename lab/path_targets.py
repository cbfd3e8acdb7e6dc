"""What is wanted of ``path-replay``, as data, and whether the rows meet it. Distances: the larger of D_f and hold-out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    for each, wanted, request in _wanted(records):
        lines += _lines(each, wanted, request)
    return lines


def trade_lines(records: Sequence[PathRecords]) -> list[str]:
    """A Markdown table of the rows with wanted distances that miss a limit: what the other rows reach at the cost, or for it."""
    lines = ["| setting | request | wanted | nearest at that cost | cheapest at those distances |", "|" + " --- |" * 5]
    for each, wanted, request in _wanted(records):
        if wanted.others is not None and _misses(each.row(wanted.row, request), wanted):
            lines.append("| " + " | ".join([each.setting.name, request.title, *_trade(each, wanted, request)]) + " |")
    return lines


def _trade(records: PathRecords, wanted: Wanted, request: Request) -> list[str]:
    """The cells: the limits, the row with the smallest distance to others within the cost, the cheapest within the distances."""
    cost = "first" if wanted.next is None else "next"
    limits = {name: getattr(wanted, name) for name in (cost, "same", "others")}
    rows = [row for method in records.setting.methods if (row := records.row(method.label, request)) is not None]

    def within(row: PathRow, *names: str) -> bool:
        values = {name: _FIGURES[name](row) for name in limits}
        return None not in values.values() and all(limits[name] is None or values[name] <= limits[name] for name in names)

    def text(among: Iterable[PathRow], name: str) -> str:
        row = min(among, key=lambda each: _FIGURES[name](each) or 0.0, default=None)
        if row is None:
            return "none"
        paid, same, others = (_FIGURES[measure](row) for measure in limits)
        return f"`{row.label}`: {paid:.3f}; {same:.2f}, {others:.2f}"

    asked = ", ".join(f"{name} ≤ {limit:g}" for name, limit in limits.items() if limit is not None)
    near = text((row for row in rows if within(row, cost)), "others")
    cheap = text((row for row in rows if within(row, "same", "others")), cost)
    return [f"`{wanted.row}`: {asked}", "–" if limits[cost] is None else near, cheap]


def _misses(row: PathRow | None, wanted: Wanted) -> bool:
    """Whether a row is above a limit on cost or distance."""
    limits = {name: getattr(wanted, name) for name in ("first", "next", "same", "others")}
    values = {name: None if row is None else _FIGURES[name](row) for name in limits}
    return any(limit is not None and (values[name] or 0) > limit for name, limit in limits.items())


def _wanted(records: Sequence[PathRecords]) -> Iterator[tuple[PathRecords, Wanted, Request]]:
    """What is wanted of each setting and request."""
    for each in records:
        for wanted in WANTED:
            if each.setting.name.startswith(wanted.settings):
                for request in each.setting.requests:
                    if wanted.kind in (None, request.kind):
                        yield each, wanted, request


def _lines(records: PathRecords, wanted: Wanted, request: Request) -> list[str]:
    row = records.row(wanted.row, request)
    lines = []
    for name, figure in _FIGURES.items():
        limit = getattr(wanted, name)
        if limit is not None:
            low, high = limit if isinstance(limit, tuple) else (None, limit)
            value = None if row is None else figure(row)
            known = "not run" if row is None else "–" if value is None else _digits(value, high)
            met = "–" if value is None else "yes" if value <= high and (low is None or value >= low) else "**no**"
            text = f"≤ {high:g}" if low is None else f"{low:g} to {high:g}"
            head = [records.setting.name, request.title, wanted.row, _TITLES[name]]
            lines.append("| " + " | ".join([*head, text, known, met]) + " |")
    return lines


def _digits(value: float, limit: float) -> str:
    """Three decimals; more where they would hide a miss."""
    text = f"{value:.3f}"
    return f"{value:.5f}" if value > limit and float(text) == limit else text


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
