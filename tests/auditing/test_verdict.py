"""The verdict is a function of the record alone: one record a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastntk.auditing import AuditRecord
from fastntk.auditing.verdict import TEXT, verdict

Make = Callable[..., AuditRecord]


def attack(auc: float, error: float = 0.03) -> dict[str, Any]:
    return {"auc": auc, "auc_standard_error": error}


def lira(unlearned: float, *, error: float = 0.03) -> dict[str, Any]:
    """U-LiRA's part of a record; ``error``: of Retrain against itself."""
    figures = {"tpr_at_1pct_fpr": 0.02, "roc": {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0]}}
    about = {"kind": "real", "size": 8, "seeds": [1], "seconds": 1.0, "reused": 0, "estimated_seconds": 1.0}
    attacks = {"full": None, "unlearned": figures | attack(unlearned), "retrain": figures | attack(0.5, error)}
    return {"ensemble": about, **attacks}


def good() -> dict[str, Any]:
    """A record that has nothing to be said against it, laid over a published one."""
    return {
        "request": {"forget": 100, "retain": 900},
        "subject": {"holdout": 2000},
        "reference": {"made": True},
        "details": {"validity": {"verdict": "ok", "reasons": []}},
        "accuracy": {
            "retain": {"full": 0.95, "unlearned": 0.94, "retrain": 0.95},
            "forget": {"full": 0.95, "unlearned": 0.61, "retrain": 0.6},
            "holdout": {"full": 0.65, "unlearned": 0.64, "retrain": 0.645},
        },
        "loss": {
            "forget": {"full": 0.2, "unlearned": 1.0, "retrain": 1.0},
            "retain": {"unlearned": 0.2},
            "holdout": {"unlearned": 1.0},
        },
        "relearn": {
            "unlearned": {"epochs": 18, "censored": False, "cap": 100},
            "retrain": {"epochs": 20, "censored": False, "cap": 100},
        },
        "distances": {
            "same_seed": {"recovered": 1.0, "total_variation": {"forget": 0.02, "holdout": 0.02}},
            "retrain_spread": {"total_variation": {"forget": 0.018, "holdout": 0.018}},
        },
        "membership": {"population": {"unlearned": attack(0.52), "retrain": attack(0.5)}, "u_lira": ..., "klom": ...},
        "cost": {"ratio_to_retrain": 0.4, "rows_made_before": False},
    }


CHANGES = [
    ("details.validity", {"verdict": "retrain instead", "reasons": ["it went astray"]}, "not to be trusted", "it went astray"),
    ("reference.made", False, "no reference", "no Retrain"),
    ("distances.same_seed.recovered", 0.6, "memory left", "0.60 of the way"),
    ("distances.same_seed.recovered", 1.6, "differs from retrain", "pushed too far"),
    ("relearn.unlearned.epochs", 6, "memory left", "learnt again in 6 epochs, by Retrain in 20"),
    ("relearn.retrain", {"epochs": None, "censored": True, "cap": 100}, "memory left", "by Retrain in more than 100"),
    ("membership.population.unlearned", attack(0.7), "memory left", "population attack reaches AUC 0.70"),
    ("membership.u_lira", lira(0.8), "memory left", "U-LiRA reaches AUC 0.80"),
    # How much a comparison of two halves of the Retrains scatters does not excuse the unlearned model.
    ("membership.u_lira", lira(0.8, error=0.3), "memory left", "U-LiRA reaches AUC 0.80"),
    ("accuracy.holdout.unlearned", 0.5, "differs from retrain", "held-out samples is 50.0 %, Retrain's 64.5 %"),
    ("distances.same_seed.total_variation.forget", 0.03, "differs from retrain", "forgotten samples are 0.030"),
    ("loss.forget.unlearned", None, "differs from retrain", "not numbers"),
]


def at(path: str, value: Any) -> dict[str, Any]:
    """A value at a dotted path, as nested dictionaries."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


@pytest.mark.parametrize(("path", "value", "level", "reason"), CHANGES)
def test_each_rule_by_itself(record_with: Make, path: str, value: Any, level: str, reason: str) -> None:
    record = record_with(good(), at(path, value))
    outcome = verdict(record)
    assert outcome.level == level
    assert outcome.text[0] == TEXT[outcome.level]
    assert any(reason in text for text in outcome.reasons)


def test_like_retrain_has_no_reasons_and_says_what_was_seen(record_with: Make) -> None:
    outcome = verdict(record_with(good()))
    assert (outcome.level, outcome.reasons) == ("like retrain", ())
    assert "100 of 1000 training samples" in outcome.text[1]
    assert "classified 95.0 % of them correctly; now 61.0 %; a model retrained without them 60.0 %" in outcome.text[2]
    assert "classifies 64.0 % correctly (before: 65.0 %; retrained: 64.5 %)" in outcome.text[3]
    assert outcome.text[-1] == "It took 0.40 times as long as retraining."


def test_rows_that_were_made_before_are_said_to_be_left_out(record_with: Make) -> None:
    before = verdict(record_with(good(), at("cost.rows_made_before", True)))
    assert before.text[-1].endswith("not counting the Jacobian rows, which were made before.")
    for value in (False, ...):
        assert verdict(record_with(good(), at("cost.rows_made_before", value))).text[-1] == (
            "It took 0.40 times as long as retraining."
        )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("membership.population.unlearned", attack(0.57)),  # within the noise
        ("relearn.unlearned.epochs", None),  # censored: slower than Retrain
        ("accuracy.forget.unlearned", 0.615),
        ("membership.population", None),
        ("membership.population", ...),
        ("membership.u_lira", lira(0.55)),
        ("distances.retrain_spread", ...),
    ],
)
def test_noise_and_missing_figures_are_no_reason(record_with: Make, path: str, value: Any) -> None:
    assert verdict(record_with(good(), at(path, value))).level == "like retrain"


def test_two_of_twenty_samples_are_no_reason_and_a_ratio_of_noise_is_not_judged(record_with: Make) -> None:
    few = {
        "request": {"forget": 20},
        "accuracy": {"forget": {"full": 0.9, "unlearned": 0.6, "retrain": 0.7}},
    }
    assert verdict(record_with(good(), few)).level == "like retrain"
    noise = {
        "loss": {"forget": {"full": 0.99, "unlearned": 0.98, "retrain": 1.0}},
        "distances": {"same_seed": {"recovered": -1.0}},
    }
    assert verdict(record_with(good(), few, noise)).level == "like retrain"


def test_without_retrain_nothing_is_said_of_it(record_with: Make) -> None:
    alone = {"accuracy": {name: {"retrain": ...} for name in ("retain", "forget", "holdout")}, "cost": {"ratio_to_retrain": None}}
    outcome = verdict(record_with(good(), alone, {"reference": {"made": False}}))
    assert outcome.level == "no reference"
    assert outcome.text[2] == "Before, the model classified 95.0 % of them correctly; now 61.0 %."
    assert len(outcome.text) == 4


def test_the_noise_of_the_difference_decides_where_the_record_has_it(record_with: Make) -> None:
    """Two attacks on the same samples: their own errors, taken as independent, would say too much or too little."""

    def level(auc: float, noise: float) -> str:
        paired = attack(auc) | {"difference_standard_error": noise}
        return verdict(record_with(good(), at("membership.population.unlearned", paired))).level

    assert level(0.57, 0.03) == "memory left"
    assert level(0.57, 0.04) == "like retrain"
    assert level(0.7, 0.11) == "like retrain"
