"""The targets of each method, beside what was measured: those of the unlearning experiment as data.

Knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fastntk.reproduce.setting import Request, Setting
from lab.rows import Row


@dataclass(frozen=True)
class Target:
    """Limits on means over seeds; None where there is no limit. Accuracies in points, distances in spreads.

    ``forget_random`` replaces ``forget`` for random subsets.
    """

    retain: float
    forget: float
    forget_random: float | None
    same: float | None
    others: float
    holdout: float | None = None
    recovered: tuple[float, float] | None = None
    relearn: float | None = None


TARGETS = {
    "tangent-replay": Target(1, 1, 2, 1.0, 1.25, holdout=1, recovered=(0.9, 1.1), relearn=0.1),
    "fast-ntk": Target(2.5, 1, None, None, 5.0),
}


@dataclass(frozen=True)
class Check:
    """One figure, as text, and whether it meets its limit (None: there is none)."""

    text: str
    within: bool | None

    def __str__(self) -> str:
        return self.text if self.within is not False else f"**{self.text}**"


def target_table(settings: Sequence[Setting], rows: Mapping[tuple[str, str], Sequence[Row | None]]) -> str:
    """Gaps to Retrain of every method that has targets; in bold what misses its limit."""
    lines = [
        "## Against the targets",
        "",
        "Means over seeds; accuracy as points above Retrain's, distances as multiples of Retrain's seed-to-seed spread (the "
        "larger of forget and hold-out set), relearn epochs over Retrain's. Bold misses its limit:",
        _limits_text(),
        "",
        "| setting | forget | method | retain | forget | hold-out | same seed | other seeds | recovered | relearn | limits met |",
        "|" + " --- |" * 11,
    ]
    for setting in settings:
        for request in setting.requests:
            for method, row in zip(setting.methods, rows[setting.name, request.name]):
                if method.method not in TARGETS:
                    continue
                cells = ["not run"] * 8 if row is None else check_cells(row, request, TARGETS[method.method])
                lines.append("| " + " | ".join([setting.name, request.title, method.label, *cells]) + " |")
    return "\n".join(lines) + "\n"


def _limits_text() -> str:
    """:data:`TARGETS` in words."""
    replay, plain = TARGETS["tangent-replay"], TARGETS["fast-ntk"]
    (points,) = {replay.retain, replay.forget, replay.holdout}  # the sentence has one number for the three
    assert replay.recovered is not None
    assert replay.relearn is not None
    return (
        f"`tangent-replay` retain, forget and hold-out within {points:g} point (forget of random subsets: "
        f"{replay.forget_random:g}), distance at most {replay.same}× with the same seed and {replay.others}× with others, "
        f"recovered {replay.recovered[0]} to {replay.recovered[1]}, relearn within {100 * replay.relearn:g} %; "
        f"`fast-ntk` forget within {plain.forget:g} point for classes, retain within {plain.retain:g}, distance at most "
        f"{plain.others:g}×."
    )


def check_cells(row: Row, request: Request, target: Target) -> list[str]:
    """The cells of one row, the last one whether all limits are met."""
    forget = target.forget if request.kind == "class" else target.forget_random
    checks = [
        *(
            _points(row.gap[name], limit)
            for name, limit in (("retain", target.retain), ("forget", forget), ("holdout", target.holdout))
        ),
        _multiple(row, "same", target.same),
        _multiple(row, "others", target.others),
        _between(row.recovered.mean, target.recovered),
        _relearn(row, None if target.relearn is None else (1 - target.relearn, 1 + target.relearn)),
    ]
    judged = [check.within for check in checks if check.within is not None]
    return [str(check) for check in checks] + ["yes" if all(judged) else f"{sum(judged)} of {len(judged)}"]


def _points(gap: float, limit: float | None) -> Check:
    # Rounded first: a gap that prints as the limit meets it.
    points = round(100 * gap, 2) + 0.0
    return Check(f"{points:+.2f}", None if limit is None else abs(points) <= limit)


def _multiple(row: Row, kind: Literal["same", "others"], limit: float | None) -> Check:
    values = [row.multiple(kind, where).mean for where in ("forget", "holdout")]
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Check("–", None if limit is None else False)
    worst = round(max(known), 2)
    return Check(f"{worst:.2f}×", None if limit is None else worst <= limit)


def _relearn(row: Row, limits: tuple[float, float] | None) -> Check:
    """A ratio of censored counts is unknown, and neither met nor missed."""
    return Check("unknown", None) if row.relearn_ratio is None else _between(row.relearn_ratio, limits)


def _between(value: float | None, limits: tuple[float, float] | None) -> Check:
    if value is None:
        return Check("–", None if limits is None else False)
    rounded = round(value, 2)
    return Check(f"{rounded:.2f}", None if limits is None else limits[0] <= rounded <= limits[1])
