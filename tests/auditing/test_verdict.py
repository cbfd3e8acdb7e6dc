"""The verdict is a function of the record alone: one record a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import UNSET

from fastntk.auditing import AuditRecord
from fastntk.auditing.calibration import RULES
from fastntk.auditing.evidence import findings
from fastntk.auditing.verdict import LITTLE, TEXT, UNSURE, disagreements, older_rules, verdict

Make = Callable[..., AuditRecord]


def attack(auc: float, error: float = 0.03, loss: float = 0.5) -> dict[str, Any]:
    """``loss``: the area of that feature alone."""
    return {"auc": auc, "auc_standard_error": error, "by_feature": {"loss": loss}}


def lira(unlearned: float, *, error: float = 0.03) -> dict[str, Any]:
    """U-LiRA's part of a record; ``error``: of Retrain against itself."""
    figures = {"tpr_at_1pct_fpr": 0.02, "roc": {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0]}}
    about = {"kind": "real", "size": 8, "seeds": [1], "seconds": 1.0, "reused": 0, "estimated_seconds": 1.0}
    sides = {"unlearned": attack(unlearned), "retrain": attack(0.5, error)}
    attacks: dict[str, Any] = {"full": None} | {name: figures | side | {"by_feature": ...} for name, side in sides.items()}
    for side in sides:
        del attacks[side]["by_feature"]
    return {"ensemble": about, **attacks}


def at(path: str, value: Any) -> dict[str, Any]:
    """A value at a dotted path, as nested dictionaries."""
    for part in reversed(path.split(".") if path else ()):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def good() -> dict[str, Any]:
    """A record that has nothing to be said against it, laid over a published one."""
    return {
        "request": {"forget": 100, "retain": 900, "whole_classes": []},
        "subject": {"holdout": 2000},
        "reference": {"made": True, "other_seeds": [1]},
        "details": {"validity": {"verdict": "ok", "reasons": []}},
        "accuracy": {
            "retain": {"full": 0.95, "unlearned": 0.94, "retrain": 0.95},
            "forget": {"full": 0.95, "unlearned": 0.61, "retrain": 0.6},
            "holdout": {"full": 0.65, "unlearned": 0.64, "retrain": 0.645},
            "holdout_kept_classes": ...,
            "holdout_forgotten_classes": ...,
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
            "other_seeds": {"total_variation": {"forget": 0.02, "holdout": 0.02}},
            "retrain_spread": {
                "total_variation": {"forget": 0.018, "holdout": 0.018},
                "jensen_shannon": {"forget": 0.002, "holdout": 0.002},
                "agreement": {"forget": 0.96, "holdout": 0.96},
                "log_probability": {"forget": 0.126, "holdout": 0.126},
            },
            "retrains": ...,
        },
        "membership": {"population": {"unlearned": attack(0.52), "retrain": attack(0.5)}, "u_lira": ..., "klom": ...},
        "cost": {"ratio_to_retrain": 0.4, "rows_made_before": False},
    }


FAR = {"same_seed": {"total_variation": {"forget": 0.03}}, "other_seeds": {"total_variation": {"forget": 0.04}}}
CHANGES = [
    ("reference.made", False, "no reference", "no Retrain"),
    (
        "loss.forget.unlearned",
        0.5,
        "memory left",
        "loss is 0.50 nats, Retrain's 1.00 (limit 0.09 either way, from one Retrain and",
    ),
    ("loss.forget.unlearned", 1.5, "differs from retrain", "pushed too far"),
    ("relearn.unlearned.epochs", 6, "memory left", "learnt again in 6 epochs, by Retrain in 20 (under 15 is memory)"),
    ("relearn.retrain", {"epochs": None, "censored": True, "cap": 100}, "memory left", "by Retrain in more than 100"),
    (
        "membership.population.unlearned",
        attack(0.7),
        "memory left",
        "population attack reaches AUC 0.70, on Retrain 0.50 (limit 0.12",
    ),
    ("membership.u_lira", lira(0.8), "memory left", "U-LiRA reaches AUC 0.80, by chance 0.50"),
    # How much a comparison of two halves of the Retrains scatters does not excuse the unlearned model.
    ("membership.u_lira", lira(0.8, error=0.3), "memory left", "U-LiRA reaches AUC 0.80"),
    ("accuracy.forget.unlearned", 0.9, "memory left", "accuracy on forgotten samples is 90.0 %, Retrain's 60.0 %"),
    ("accuracy.forget.unlearned", 0.3, "differs from retrain", "accuracy on forgotten samples is 30.0 %, Retrain's 60.0 %"),
    ("accuracy.holdout.unlearned", 0.5, "differs from retrain", "held-out samples is 50.0 %, Retrain's 64.5 % (limit 1.3 points"),
    ("distances", FAR, "differs from retrain", "0.035 from 2 Retrains, 1.94 times as far as these from each other (limit 1.44"),
    (
        "",
        {"distances": FAR, "loss": {"forget": {"unlearned": 0.8}}, "request": {"forget": 20}},
        "memory left",
        "their loss went 0.75 of the way to Retrain's",
    ),
    ("loss.forget.unlearned", None, "differs from retrain", "not numbers"),
    ("accuracy.retain.unlearned", 0.0, "differs from retrain", "classifies none of the retained samples correctly"),
]


@pytest.mark.parametrize(("path", "value", "level", "reason"), CHANGES)
def test_each_rule_by_itself(record_with: Make, path: str, value: Any, level: str, reason: str) -> None:
    record = record_with(good(), at(path, value))
    outcome = verdict(record)
    assert outcome.level == level
    assert outcome.text[0] == TEXT[outcome.level]
    assert any(reason in text for text in outcome.reasons)


def test_where_retrain_classifies_nothing_either_that_is_no_difference(record_with: Make) -> None:
    nothing = {"full": 0.0, "unlearned": 0.0, "retrain": 0.0}
    assert verdict(record_with(good(), {"accuracy": {"retain": nothing}})).level == "like retrain"


def test_like_retrain_has_no_reasons_and_says_what_was_seen(record_with: Make) -> None:
    outcome = verdict(record_with(good()))
    assert (outcome.level, outcome.reasons) == ("like retrain", ())
    assert "100 of 1000 training samples" in outcome.text[1]
    assert "classified 95.0 % of them correctly; now 61.0 %; a model retrained without them 60.0 %" in outcome.text[2]
    assert "classifies 64.0 % correctly (before: 65.0 %; retrained: 64.5 %)" in outcome.text[3]
    assert outcome.text[4] == "It took 0.40 times as long as retraining."


def test_rows_that_were_made_before_are_said_to_be_left_out(record_with: Make) -> None:
    before = verdict(record_with(good(), at("cost.rows_made_before", True)))
    assert before.text[4].endswith("not counting the Jacobian rows, which were made before.")
    for value in (False, ...):
        assert verdict(record_with(good(), at("cost.rows_made_before", value))).text[4] == (
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
        ("distances.same_seed.total_variation.forget", 0.03),  # far from one of two Retrains
    ],
)
def test_noise_and_missing_figures_are_no_reason(record_with: Make, path: str, value: Any) -> None:
    assert verdict(record_with(good(), at(path, value))).level == "like retrain"


def test_two_of_twenty_samples_are_no_reason(record_with: Make) -> None:
    few = {"request": {"forget": 20}, "accuracy": {"forget": {"full": 0.9, "unlearned": 0.6, "retrain": 0.7}}}
    assert verdict(record_with(good(), few)).level == "like retrain"


def test_of_one_sample_any_accuracy_will_do_but_not_any_loss(record_with: Make) -> None:
    one = {"request": {"forget": 1}, "accuracy": {"forget": {"full": 1.0, "unlearned": 1.0, "retrain": 0.0}}}
    near, far = ({"loss": {"forget": {"full": 0.2, "unlearned": loss, "retrain": 1.0}}} for loss in (0.8, 0.3))
    assert verdict(record_with(good(), one, near)).level == "like retrain"
    assert verdict(record_with(good(), one, far)).level == "memory left"


def test_losses_and_accuracies_are_compared_with_all_retrains(record_with: Make) -> None:
    """The Retrain of the run's seed happens to be like it, the three others are not."""
    own = {"accuracy": {"retain": 0.95, "forget": 0.6, "holdout": 0.645}, "loss": {"retain": 0.2, "forget": 1.0, "holdout": 1.0}}
    other = {"accuracy": {"retain": 0.95, "forget": 0.6, "holdout": 0.7}, "loss": {"retain": 0.2, "forget": 1.4, "holdout": 1.0}}
    seeds = {"reference": {"other_seeds": [1, 2, 3]}, "distances": {"retrains": {"0": own, "1": other, "2": other, "3": other}}}
    outcome = verdict(record_with(good(), seeds))
    assert outcome.level == "memory left"
    assert any("Retrain's 1.30 (limit" in reason and "from 4 Retrains" in reason for reason in outcome.reasons)
    assert any("Retrain's 68.6 %" in reason for reason in outcome.reasons)


FAR_APART = {"forget": 0.55, "holdout": 0.55}
WILD: dict[str, Any] = {
    "request": {"forget": 6, "retain": 30},
    "subject": {"holdout": 30},
    "accuracy": {
        "retain": {"full": 0.5, "unlearned": 0.4, "retrain": 0.4},
        "forget": {"full": 0.67, "unlearned": 0.67, "retrain": 0.33},
        "holdout": {"full": 0.33, "unlearned": 0.4, "retrain": 0.37},
    },
    "loss": {"forget": {"full": 0.9, "unlearned": 1.1, "retrain": 1.5}},
    "relearn": {"full": {"epochs": 18, "censored": False, "cap": 100}},
    "membership": {"population": None},
    "distances": {
        "full": {"total_variation": {"forget": 0.48, "holdout": 0.5}},
        "same_seed": {"total_variation": FAR_APART},
        "other_seeds": {"total_variation": FAR_APART},
        "retrain_spread": {
            "total_variation": FAR_APART,
            "jensen_shannon": {"forget": 0.2, "holdout": 0.2},
            "agreement": {"forget": 0.1, "holdout": 0.1},
            "log_probability": {"forget": 1.3, "holdout": 1.3},
        },
    },
}


def test_retrains_so_far_apart_that_full_would_pass_tell_nothing(record_with: Make) -> None:
    outcome = verdict(record_with(good(), WILD))
    assert outcome.level == "cannot be told"
    assert outcome.text[0] == UNSURE
    assert "two Retrains lie 0.55 apart" in outcome.reasons[0]
    assert "--retrains 3" in outcome.reasons[0]
    # Nothing to forget: Full was near Retrain to begin with.
    easy = verdict(record_with(good(), WILD, at("distances.full.total_variation", {"forget": 0.05, "holdout": 0.05})))
    assert easy.level == "like retrain"
    assert LITTLE in easy.text
    # And what is beyond the limits even so is told.
    assert verdict(record_with(good(), WILD, at("loss.forget.retrain", 6.0))).level == "memory left"


ALONE: dict[str, Any] = {
    "reference": {"other_seeds": []},
    "distances": {"other_seeds": ..., "retrain_spread": ..., "by_seed": ..., "retrain_pairs": ..., "retrains": ...},
}


@pytest.mark.parametrize(
    ("recovered", "level"), [(0.6, "memory left"), (0.9, "like retrain"), (1.2, "like retrain"), (1.6, "differs from retrain")]
)
def test_with_one_retrain_limits_are_conventions_and_it_says_so(record_with: Make, recovered: float, level: str) -> None:
    outcome = verdict(record_with(good(), ALONE, at("distances.same_seed.recovered", recovered)))
    assert outcome.level == level
    assert "Only one Retrain was made" in outcome.text[-1]
    assert all("by convention, with one Retrain" in reason for reason in outcome.reasons)
    noise = {"loss": {"forget": {"full": 0.99, "unlearned": 0.98, "retrain": 1.0}}}
    assert verdict(record_with(good(), ALONE, noise, at("distances.same_seed.recovered", -1.0))).level == "like retrain"


def test_one_pair_is_said_to_be_unsure_and_an_open_case_names_the_remedy(record_with: Make) -> None:
    pair = verdict(record_with(good())).text
    assert "rests on one pair of Retrains: on the 100 forgotten samples that may be off by a factor of 1.2 either way" in pair[-1]
    between = {"forget": 0.024, "holdout": 0.02}
    weak = {name: {"total_variation": between} for name in ("same_seed", "other_seeds")}
    open_case = verdict(record_with(good(), {"distances": weak}))
    assert open_case.level == "like retrain"
    assert any("1.33 times as far" in sentence and "--retrains 3 would tell" in sentence for sentence in open_case.text)
    more = verdict(record_with(good(), {"distances": weak}, {"reference": {"other_seeds": [1, 2, 3]}}))
    assert more.level == "differs from retrain"
    assert "rests on 4 Retrains" in more.text[-1]


WARNED = at("details.validity", {"verdict": "retrain instead", "reasons": ["accuracy on retained samples fell"]})


def test_a_measured_retrain_overrules_the_steps_own_check(record_with: Make) -> None:
    overruled = verdict(record_with(good(), WARNED))
    assert (overruled.level, overruled.reasons) == ("like retrain", ())
    said = "own check warned: accuracy on retained samples fell. The comparison with Retrain "
    assert any(f"{said}overrules it." in sentence for sentence in overruled.text)
    agreed = verdict(record_with(good(), WARNED, at("relearn.unlearned.epochs", 6)))
    assert agreed.level == "memory left"
    assert any(f"{said}agrees." in sentence for sentence in agreed.text)


def test_without_a_retrain_the_own_check_stands(record_with: Make) -> None:
    outcome = verdict(record_with(good(), WARNED, at("reference.made", False)))
    assert (outcome.level, outcome.reasons) == ("not to be trusted", ("own check: accuracy on retained samples fell",))


def test_kept_classes_come_first_where_a_class_was_forgotten(record_with: Make) -> None:
    kept = {"full": 0.83, "unlearned": 0.827, "retrain": 0.828}
    gone = {"full": 0.9, "unlearned": 0.0, "retrain": 0.0}
    outcome = verdict(record_with(good(), {"accuracy": {"holdout_kept_classes": kept, "holdout_forgotten_classes": gone}}))
    assert outcome.text[3:5] == (
        "Of images it never saw, of the classes that stay, it classifies 82.7 % correctly (before: 83.0 %; retrained: 82.8 %).",
        "Of images it never saw, of the forgotten classes, it classifies 0 % correctly (before: 90.0 %; retrained: 0 %).",
    )


def judged(record: AuditRecord, level: str, rules: Any) -> AuditRecord:
    return replace(record, verdict=replace(record.verdict, level=level, rules=rules), requirements=())


def test_a_record_of_older_rules_is_not_accused_and_a_changed_one_is(record_with: Make) -> None:
    record = record_with(good(), WARNED)
    older = judged(record, "not to be trusted", UNSET)
    assert disagreements(older) == []
    assert older_rules(older) == (
        f"judged by other rules (1, now {RULES}) as “not to be trusted”; by the present ones it is “like retrain”"
    )
    assert (disagreements(judged(record, "like retrain", UNSET)), older_rules(judged(record, "like retrain", UNSET))) == (
        [],
        None,
    )
    changed = judged(record, "memory left", RULES)
    assert disagreements(changed) == ["it says “memory left”, its figures say “like retrain”"]
    assert older_rules(changed) is None
    unmeasured = judged(record_with(good(), at("reference.made", False)), "like retrain", UNSET)
    assert disagreements(unmeasured) == ["it says “like retrain”, its figures say “no reference”"]


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

    assert level(0.57, 0.02) == "memory left"
    assert level(0.57, 0.03) == "like retrain"
    assert level(0.7, 0.11) == "like retrain"


def test_being_pushed_too_far_is_told_apart_but_is_no_memory(record_with: Make) -> None:
    """An attack finds a difference of either sign."""
    pushed = attack(0.9, loss=0.1)
    outcome = verdict(record_with(good(), at("membership.population.unlearned", pushed)))
    assert outcome.level == "differs from retrain"
    assert any("AUC 0.90" in reason and reason.endswith("told apart by being pushed too far") for reason in outcome.reasons)
    for median, level in ((-2.0, "differs from retrain"), (2.0, "memory left")):
        shift = {"median": median, "standard_error": 0.1}
        told = lira(0.9) | {"shift": {"full": shift, "unlearned": shift, "retrain": shift}}
        assert verdict(record_with(good(), at("membership.u_lira", told))).level == level


def test_a_trifle_is_no_reason_though_its_noise_is_smaller_still(record_with: Make) -> None:
    near = attack(0.51) | {"difference_standard_error": 0.0004}
    assert verdict(record_with(good(), at("membership.population.unlearned", near))).level == "like retrain"
    half = lira(0.54)  # against one half, not against what halves of the Retrains happened to give
    half["retrain"]["auc"] = 0.3
    assert verdict(record_with(good(), at("membership.u_lira", half))).level == "like retrain"


def test_on_which_side_full_lies_counts_only_where_it_lies_apart(record_with: Make) -> None:
    for full, level in ((1.2, "differs from retrain"), (1.01, "memory left")):
        loss = {"full": full, "unlearned": 0.85, "retrain": 1.0}
        assert verdict(record_with(good(), at("loss.forget", loss))).level == level


def test_a_class_among_other_samples_widens_the_limit_by_its_share_only(record_with: Make) -> None:
    def limit(rows: list[list[int]], whole: list[str]) -> float:
        flow = {"classes": ["ape", "bee"], **dict.fromkeys(("full", "unlearned", "retrain"), rows)}
        record = record_with(good(), at("loss.forget.unlearned", 0.1), {"flow": flow, "request": {"whole_classes": whole}})
        (reason,) = (item.text for item in findings(record) if item.test == "loss")
        return float(reason.split("limit ")[1].split()[0])

    samples, some, most = limit([[100, 0], [0, 0]], []), limit([[70, 0], [0, 30]], ["bee"]), limit([[0, 0], [0, 100]], ["bee"])
    assert samples < some < 2 * samples < most


def test_outputs_that_are_no_numbers_are_not_to_be_trusted_without_a_retrain(record_with: Make) -> None:
    outcome = verdict(record_with(good(), at("reference.made", False), at("loss.forget.unlearned", None)))
    assert outcome.level == "not to be trusted"
    assert outcome.reasons == ("the model's outputs are not numbers on some samples",)


def test_a_number_of_rules_that_was_taken_out_is_noticed(record_with: Make) -> None:
    by_seed = {
        "accuracy": {"retain": 0.95, "forget": 0.6, "holdout": 0.645},
        "loss": {"retain": 0.2, "forget": 1.0, "holdout": 1.0},
    }
    record = record_with(good(), at("distances.retrains", {"0": by_seed, "1": by_seed}), at("loss.forget.unlearned", 0.3))
    changed = judged(record, "like retrain", UNSET)
    assert older_rules(changed) is None
    assert disagreements(changed) == ["it says “like retrain”, its figures say “memory left”"]


@pytest.mark.parametrize(("changed", "level"), [(0, "cannot be told"), (1, "cannot be told"), (5, "like retrain")])
def test_weights_outside_are_settled_by_a_retrain_that_has_none_of_them(record_with: Make, changed: int, level: str) -> None:
    outside = at("outside", {"status": "differ", "count": 5, "message": "5 tensors differ"})
    outcome = verdict(record_with(good(), outside, at("reference.changed_outside", changed)))
    assert outcome.level == level
    assert ("Retrain has 4 of them too" in " ".join(outcome.reasons)) == (changed == 1)
