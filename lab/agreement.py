"""What agrees with the paper and what does not: its pattern as checks, evaluated on our records and on its own figures.

No figure is typed here: each statement counts the cells that keep it and names those that do not, with their values. A check
whose figures are missing or censored is not judged. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastntk.reproduce.compare import Comparison
from fastntk.reproduce.setting import PATH_AUTO, PATH_BEST, PATH_HEAD

ZERO, CLOSE, SHORT = 0.5, 2.5, 0.9
"""Forget accuracy counts as 0 below this; accuracies are close within so many points; relearning as long from this share on."""

Value = Callable[[str, str], "float | None"]


@dataclass(frozen=True)
class Verdict:
    """Whether a check holds in one cell, and the figures behind it."""

    holds: bool
    figures: str


@dataclass(frozen=True)
class Check:
    """A statement on one method, and why it may fail."""

    method: str
    statement: str
    judge: Callable[[str, Value], Verdict | None]
    why: str = ""


def _zero(method: str, value: Value) -> Verdict | None:
    accuracy = value(method, "forget")
    return None if accuracy is None else Verdict(accuracy < ZERO, f"{accuracy:.2f} %")


def _close(metric: str) -> Callable[[str, Value], Verdict | None]:
    def judge(method: str, value: Value) -> Verdict | None:
        ours, reference = value(method, metric), value("retrain", metric)
        if ours is None or reference is None:
            return None
        return Verdict(abs(ours - reference) <= CLOSE, f"{ours - reference:+.2f} points")

    return judge


def _above(metric: str) -> Callable[[str, Value], Verdict | None]:
    def judge(method: str, value: Value) -> Verdict | None:
        ours, rivals = value(method, metric), [value(rival, metric) for rival in ("max-loss", "random-label")]
        known = [rival for rival in rivals if rival is not None]
        if ours is None or len(known) < len(rivals):
            return None
        return Verdict(ours > max(known), f"{ours - max(known):+.2f} points above the better of the two")

    return judge


def _as_long(method: str, value: Value) -> Verdict | None:
    ours, reference = value(method, "relearn"), value("retrain", "relearn")
    if ours is None or not reference:
        return None
    return Verdict(ours >= SHORT * reference, f"{ours / reference:.2f} × Retrain's")


RIDGE = (
    "equation (1) puts one ridge regression with one fitted scale in the place of training; *recovered*, the share of "
    "Retrain's change of the forget loss that its step makes, says how far that gets (1 is Retrain)"
)
REGRESSION = (
    "a regression with a ridge stands in for a training that stops early, and moves the forgotten samples' loss less far than "
    "that; *recovered* says how far (1 is Retrain)"
)
RIVALS = "what Max Loss and Random Label leave depends on their step and epochs, which the paper does not give"


def checks() -> tuple[Check, ...]:
    """The paper's pattern, for its equation (1), for our default form of it, for tangent replay and for path replay."""
    pattern: list[Check] = []
    paths = [row.label for row in (PATH_HEAD, PATH_AUTO, PATH_BEST)]
    for method in ("fast-ntk-ridge", "fast-ntk", "tangent-replay", *paths):
        why = {"fast-ntk-ridge": RIDGE, "fast-ntk": REGRESSION}.get(method, "")
        pattern += [
            Check(method, f"accuracy on D_f is 0 (below {ZERO} %)", _zero, why),
            Check(method, f"accuracy on D_r is within {CLOSE} points of Retrain's", _close("retain"), ""),
            Check(method, f"accuracy on hold-out is within {CLOSE} points of Retrain's", _close("holdout"), ""),
            Check(method, "accuracy on D_r is above that of Max Loss and Random Label", _above("retain"), RIVALS),
            Check(method, "accuracy on hold-out is above that of Max Loss and Random Label", _above("holdout"), RIVALS),
            Check(method, f"relearning takes at least {SHORT:g} × Retrain's epochs", _as_long, why),
        ]
    return tuple(pattern)


def agreement(comparisons: Sequence[Comparison]) -> str:
    """A table of the checks over the cells that were run, then what misses, cell by cell."""
    run = [comparison for comparison in comparisons if comparison.run and not comparison.cell.probed]
    published = list({(c.table, c.column): c for c in comparisons if not c.cell.probed}.values())
    lines = ["| method | statement | holds here | holds in the paper |", "|" + " --- |" * 4]
    misses = []
    for check in checks():
        ours = [(c, check.judge(check.method, c.mean)) for c in run]
        theirs = [check.judge(check.method, _published(c)) for c in published]
        lines.append(f"| {check.method} | {check.statement} | {_count([v for _, v in ours])} | {_count(theirs)} |")
        failed = [
            f"{place(c)}: {verdict.figures}{_recovered(c, check) if check.why in (RIDGE, REGRESSION) else ''}"
            for c, verdict in ours
            if verdict is not None and not verdict.holds
        ]
        if failed:
            why = f" Why: {check.why}." if check.why else ""
            misses.append(f"- `{check.method}`, {check.statement}: not in {'; '.join(failed)}.{why}")
    return "\n".join([*lines, "", *(misses or ["Every statement that can be judged holds in every cell that was run."]), ""])


def probe_agreement(comparisons: Sequence[Comparison]) -> str:
    """Which reading of the probing table fits: the model's own head, or a probe trained on D_r ∪ D_f."""
    lines = []
    for comparison in comparisons:
        entry = comparison.entry("fast-ntk")
        if not comparison.cell.probed or entry is None or not entry.seeds:
            continue
        own, probe = (comparison.mean("fast-ntk", f"{kind}.forget") for kind in ("own_head", "linear_probe"))
        retrain = comparison.mean("retrain", "linear_probe.forget")
        theirs = entry.published["own_head.forget"]
        if own is None or probe is None or theirs is None or theirs.mean is None:
            continue
        nearer = "own head" if abs(own - theirs.mean) < abs(probe - theirs.mean) else "linear probe"
        reference = "" if retrain is None else f" (Retrain's probe: {retrain:.2f} %)"
        lines.append(
            f"- {place(comparison)}: on D_f the own head of `fast-ntk` gets {own:.2f} %, a linear probe {probe:.2f} %"
            f"{reference}; the paper's {theirs.mean:.2f} % is nearer to the {nearer}."
        )
    return "\n".join([*(lines or ["Not run yet."]), ""])


def place(comparison: Comparison) -> str:
    """A cell in few words."""
    cell = comparison.cell
    mark = " (stand-in)" if cell.stand_in else ""
    return f"{comparison.table.replace('table', 'Table ')} {cell.title}{mark} {cell.classes} × {cell.images_per_class}"


def _recovered(comparison: Comparison, check: Check) -> str:
    entry = comparison.entry(check.method)
    return "" if entry is None or entry.recovered is None else f" (recovered {entry.recovered:.2f})"


def _published(comparison: Comparison) -> Value:
    def value(label: str, metric: str) -> float | None:
        entry = comparison.entry(label)
        figure = None if entry is None else entry.published[metric]
        return None if figure is None else figure.mean

    return value


def _count(verdicts: Sequence[Verdict | None]) -> str:
    judged = [verdict for verdict in verdicts if verdict is not None]
    return f"{sum(verdict.holds for verdict in judged)} of {len(judged)} cells" if judged else "–"
