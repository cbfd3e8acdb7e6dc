"""Requirements: what is read, what is refused, and what holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fastntk.auditing import AuditRecord, to_dict
from fastntk.auditing.figures import BY_NAME, FIGURES, definitions
from fastntk.auditing.requirements import check_possible, evaluate, parse
from fastntk.base.errors import InputError

# Laid over a published record; ... takes a figure away.
RECORD: dict[str, Any] = {
    "accuracy": {
        "forget": {"full": 0.9, "unlearned": 0.61, "retrain": 0.6},
        "retain": {"full": 1.0, "unlearned": 0.601, "retrain": ...},
    },
    "relearn": {
        "unlearned": {"epochs": None, "censored": True, "cap": 100},
        "retrain": {"epochs": 40, "censored": False, "cap": 100},
        "full": {"epochs": 5, "censored": False, "cap": 100},
    },
    "distances": {
        "same_seed": {"total_variation": {"forget": 0.02}, "recovered": 0.95, "agreement": {"forget": 0.9}},
        "retrain_spread": {"total_variation": {"forget": 0.018}},
        "full": {"total_variation": {"forget": 0.5}},
    },
    "membership": {"population": {"unlearned": {"auc": 0.52}, "retrain": {"auc": 0.5}}, "u_lira": ...},
    "cost": {"ratio_to_retrain": 0.4},
}


@pytest.mark.parametrize(
    ("text", "left", "right", "passed"),
    [
        ("forget_accuracy<=retrain+1", 61, 61, True),
        ("forget_accuracy <= retrain + 0.5", 61, 60.5, False),
        (" forget_accuracy<full-20 ", 61, 70, True),
        ("forget_accuracy<=full*.5", 61, 45, False),
        ("forget_accuracy == 61", 61, 61, True),
        ("retain_accuracy>=60.1", 60.1, 60.1, True),
        ("retain_accuracy>60.1", 60.1, 60.1, False),
        ("retain_accuracy>=-3", 60.1, -3, True),
        ("relearn_epochs>=retrain*0.8", None, 32, True),
        ("relearn_epochs>=100", None, 100, True),
        ("relearn_epochs>=100.5", None, 100.5, False),
        ("relearn_epochs<=100", None, 100, False),
        ("relearn_epochs<=1e6", None, 1e6, False),
        ("relearn_epochs==100", None, 100, False),
        ("total_variation_forget<=spread*1.25", 0.02, 0.0225, True),
        ("total_variation_forget<=spread", 0.02, 0.018, False),
        ("total_variation_forget<full*0.1", 0.02, 0.05, True),
        ("recovered>=8e-1", 0.95, 0.8, True),
        ("agreement_forget>=0.95", 0.9, 0.95, False),
        ("attack_auc<=retrain+0.05", 0.52, 0.55, True),
        ("cost_ratio<0.5", 0.4, 0.5, True),
        ("u_lira_auc<0.9", None, 0.9, False),
        ("retain_accuracy>=retrain-1", 60.1, None, False),
    ],
)
def test_what_holds(
    record_with: Callable[..., AuditRecord], text: str, left: float | None, right: float | None, passed: bool
) -> None:
    outcome = evaluate(parse(text), record_with(RECORD))
    assert outcome.text == text
    assert outcome.passed is passed
    for side, value in ((outcome.left, left), (outcome.right, right)):
        assert side == (None if value is None else pytest.approx(value))
    assert (outcome.note is None) == (left is not None and right is not None)
    json.dumps(to_dict(outcome), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "epochs", "passed"),
    [
        ("relearn_epochs<=retrain", 30, True),  # Retrain takes more than 40.
        ("relearn_epochs<retrain-20", 20, False),
        ("relearn_epochs<retrain-20", 19, True),
        ("relearn_epochs<=retrain", 41, False),
        ("relearn_epochs>=retrain", 50, False),
        ("relearn_epochs==retrain", 40, False),
        ("relearn_epochs>=retrain", None, False),
        ("relearn_epochs<=retrain", None, False),
        ("relearn_epochs==retrain", None, False),
        ("relearn_epochs>=retrain*0.5", None, False),
    ],
)
def test_a_censored_retrain_shows_that_less_is_less_and_nothing_else(
    record_with: Callable[..., AuditRecord], text: str, epochs: int | None, passed: bool
) -> None:
    unlearned = {"epochs": epochs, "censored": epochs is None, "cap": 40}
    relearn = {"unlearned": unlearned, "retrain": {"epochs": None, "censored": True, "cap": 40}}
    outcome = evaluate(parse(text), record_with(RECORD | {"relearn": RECORD["relearn"] | relearn}))
    assert (outcome.passed, outcome.left, outcome.right) == (passed, epochs, None)
    assert outcome.note is not None
    assert ("does not show" in outcome.note) is not passed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("forget_accuracy<=1e999", "number is too large"),
        ("forget_accuracy<=retrain*1e999", "number is too large"),
        ("forget_accuracy", "cannot be read"),
        ("forget_accuracy=3", "cannot be read"),
        ("forget_accuracy=<3", "cannot be read"),
        ("forget_accuracy<=", "cannot be read"),
        ("<=3", "cannot be read"),
        ("forget_accuracy<=retrain+", "cannot be read"),
        ("forget_accuracy<=retrain/2", "cannot be read"),
        ("forget_accuracy<=retrain+1+1", "cannot be read"),
        ("forget_accuracy<=1+retrain", "cannot be read"),
        ("forget_accuracy<=retrain + full", "cannot be read"),
        ("forget_accuracy<=__import__('os')", "cannot be read"),
        ("forget_accuracy<=3; 1", "cannot be read"),
        ("forget_accuracy<=nan", "compared with a number or with retrain, full; got 'nan'"),
        ("forget_accuracy<=spread", "got 'spread'"),
        ("total_variation_forget<=retrain", "or with full, spread; got 'retrain'"),
        ("cost_ratio<retrain", "compared with a number; got 'retrain'"),
        ("forget<=3", "unknown figure 'forget'. Known: retain_accuracy, forget_accuracy"),
        ("Forget_accuracy<=3", "unknown figure"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "available", "message"),
    [
        ("forget_accuracy<=retrain", (), "needs a Retrain"),
        ("recovered>=1", (), "needs a Retrain"),
        ("weights<=spread", ("reference",), "Retrains of several seeds"),
        ("klom<=retrain", ("reference",), "needs an ensemble"),
        ("attack_auc<0.6", (), "needs the attack"),
        ("probe_forget_accuracy<0.6", (), "needs the probes"),
    ],
)
def test_what_the_audit_will_not_compute_is_refused_before(text: str, available: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_possible([parse(text)], available=available)
    check_possible([parse(text)], available=("reference", "other_seeds", "ensemble", "membership", "probes"))


def test_every_figure_is_defined_once_and_all_names_can_be_required() -> None:
    assert len(definitions()) == len(FIGURES)
    assert len(BY_NAME) == sum(figure.name is not None for figure in FIGURES)
    for name in BY_NAME:
        assert parse(f"{name}<=1").figure.name == name
    for text in definitions().values():
        assert text.definition.endswith(".")
