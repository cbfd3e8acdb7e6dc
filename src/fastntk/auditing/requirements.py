"""Conditions that a pipeline can put on an audit: ``forget_accuracy<=retrain+1``.

    condition = NAME OP EXPRESSION        OP: <=  >=  <  >  ==
    EXPRESSION = NUMBER | REFERENCE | REFERENCE (+ | - | *) NUMBER        REFERENCE: retrain, full, spread

NAME is a figure of the unlearned model; the reference is the same figure of Retrain, of Full, or its spread between two
Retrains of different seeds (distances have that one and no ``retrain``). Accuracies are in points: ``retrain+1`` is one point
more. Of a relearning that was censored it is known that it takes more epochs than the cap, and no more: it passes what follows
from that. A figure that could not be computed passes nothing.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fastntk.auditing.figures import BY_NAME, Figure, censored_at, value_of
from fastntk.auditing.record import Measurements, Requirement
from fastntk.base.errors import InputError, listing
from fastntk.base.schema import finite

REFERENCES = ("retrain", "full", "spread")
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}
_CHANGES: dict[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
_CONDITION = re.compile(
    rf"\s*(?P<name>\w+)\s*(?P<op><=|>=|==|<|>)\s*"
    rf"(?:(?P<number>-?(?:{_NUMBER}))|(?P<reference>[A-Za-z_]\w*)(?:\s*(?P<change>[+*-])\s*(?P<by>{_NUMBER}))?)\s*"
)
_FORM = "NAME OP EXPRESSION, like forget_accuracy<=retrain+1, total_variation_forget<=spread*1.25 or retain_accuracy>=70"


@dataclass(frozen=True)
class Condition:
    """One condition, taken apart; ``number`` alone, or ``reference`` with a change."""

    text: str
    figure: Figure
    op: str
    number: float
    reference: str | None = None
    change: str = "+"

    @property
    def needs(self) -> tuple[str, ...]:
        """What the audit has to do for this to have a value: reference, other_seeds, ensemble, membership, probes."""
        needs = dict.fromkeys(self.figure.needs)
        if self.reference in ("retrain", "spread"):
            needs["reference"] = None
        if self.reference == "spread":
            needs["other_seeds"] = None
        return tuple(needs)


def parse(text: str) -> Condition:
    """Take a condition apart, or say what was expected."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InputError(f"Requirement {text!r} cannot be read: expected {_FORM}; OP is one of {' '.join(OPERATORS)}.")
    figure = BY_NAME.get(match["name"])
    if figure is None:
        raise InputError(f"Requirement {text!r}: unknown figure {match['name']!r}. Known: {listing(BY_NAME, most=99)}.")
    if not all(math.isfinite(float(match[part] or 0)) for part in ("number", "by")):
        raise InputError(f"Requirement {text!r}: its number is too large.")
    if match["number"] is not None:
        return Condition(text, figure, match["op"], float(match["number"]))
    reference = match["reference"]
    references = [name for name in REFERENCES if name in figure.paths]
    if reference not in references:
        raise InputError(f"Requirement {text!r}: {figure.name} is compared with a number{_or(references)}; got {reference!r}.")
    change = match["change"] or "+"
    return Condition(text, figure, match["op"], float(match["by"] or 0), reference, change)


def check_possible(conditions: Sequence[Condition], *, available: Collection[str]) -> None:
    """Refuse, before any work, what this audit will not compute; ``available`` are the needs it meets."""
    advice = {
        "reference": "needs a Retrain: give reference='retrain' (--reference retrain), or your own retrain= (--retrain-with)",
        "other_seeds": "needs Retrains of several seeds: give reference='retrain' with retrains ≥ 1 (--retrains 1)",
        "ensemble": "needs an ensemble: give ensemble=K (--ensemble K)",
        "membership": "needs the attack: leave membership on; requests of whole classes have none",
        "probes": "needs the probes: leave them on",
    }
    for condition in conditions:
        for need in condition.needs:
            if need not in available:
                raise InputError(f"Requirement {condition.text!r} {advice[need]}.")


def evaluate(condition: Condition, record: Measurements) -> Requirement:
    """Both sides and whether it holds; a side that is censored or was not computed is null."""
    figure = condition.figure
    unit = 100.0 if figure.points else 1.0

    def side(model: str) -> tuple[float | None, bool]:
        cap = censored_at(record, figure, model)
        value = value_of(record, figure, model) if cap is None else cap
        return (None if value is None or math.isnan(value) else unit * value), cap is not None

    left, left_open = side("unlearned")
    right: float | None = condition.number
    right_open = False
    if condition.reference is not None:
        base, right_open = side(condition.reference)
        right = None if base is None else _CHANGES[condition.change](base, condition.number)
    holds = left is not None and right is not None and OPERATORS[condition.op](_rounded(left), _rounded(right))
    if left_open:  # More than ``left``: that can show that it is more, and nothing else.
        holds = holds and condition.op in (">", ">=")
    if right_open:
        holds = holds and condition.op in ("<", "<=")
    return Requirement(
        text=condition.text,
        left=None if left_open else finite(left),
        right=None if right_open else finite(right),
        passed=holds,
        note=_note((left, left_open), (right, right_open), passed=holds),
    )


def _rounded(value: float) -> float:
    """To twelve digits, so that 60.1 points are not 60.099999999999994."""
    return float(f"{value:.12g}")


def _note(left: tuple[float | None, bool], right: tuple[float | None, bool], *, passed: bool) -> str | None:
    for name, (value, _) in (("left", left), ("right", right)):
        if value is None:
            return f"the {name} side could not be computed, so the requirement is not met"
    censored = [
        f"the {name} side is censored: more than {value:g}"
        for name, (value, is_open) in (("left", left), ("right", right))
        if is_open
    ]
    if censored and not passed:
        censored.append("that does not show that the requirement is met")
    return "; ".join(censored) or None


def _or(known: Sequence[str]) -> str:
    return " or with " + ", ".join(known) if known else ""
