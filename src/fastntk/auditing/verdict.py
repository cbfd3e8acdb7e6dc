"""From a record to a word and plain sentences: a pure function, no torch, no model.

The first that applies, in this order:

    not to be trusted      the step's own check said "retrain instead"
    no reference           there is no Retrain to compare with
    memory left            the forgotten samples are clearly better known than to Retrain
    differs from retrain   it behaves otherwise than Retrain does
    like retrain           none of these

Thresholds are the constants below. They are conventions, chosen to be readable, not derived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastntk.auditing.figures import lookup

RECOVERED_LEAST = 0.8
"""Recovered below this is memory left."""
RECOVERED_MOST = 1.25
"""Recovered above this differs: pushed further than never having seen the samples."""
LOSS_GAP = 0.05
"""Nats between Full's and Retrain's forget loss below which "recovered" is a ratio of noise and is not judged."""
RELEARN_SHARE = 0.5
"""Relearning in under this share of Retrain's epochs is memory left …"""
RELEARN_EPOCHS = 3
"""… if it is also this many epochs quicker."""
ERRORS = 2.0
"""An attack's AUC counts as above Retrain's if it is by this many standard errors of the difference."""
LIRA_GAP = 0.05
"""U-LiRA's AUC counts as above Retrain's own if it is by more than this and by ``ERRORS`` of its own standard errors."""
SPREAD = 1.25
"""A total variation above this many times the spread between two Retrains differs."""
POINTS = 0.02
"""An accuracy further than this from Retrain's differs …"""
FEW = 2
"""… if it is also more than this many samples."""

TEXT = {
    "not to be trusted": "The unlearning step failed its own check. Do not use this model: retrain instead.",
    "no reference": "There is no retrained model to compare with, so whether the data was forgotten cannot be judged here.",
    "memory left": "The model still knows more about the removed data than a model that never saw it.",
    "differs from retrain": "No memory of the removed data was found, but the model behaves otherwise than a retrained one.",
    "like retrain": "In everything that was measured, the model behaves like one that never saw the removed data.",
}


def verdict(record: Mapping[str, Any]) -> dict[str, Any]:
    """Level, sentences and reasons."""
    step = lookup(record, "details.validity")
    if isinstance(step, Mapping) and step.get("verdict") == "retrain instead":
        return _made("not to be trusted", [f"own check: {reason}" for reason in step.get("reasons", [])], record)
    if not lookup(record, "reference.made"):
        return _made("no reference", ["no Retrain was made"], record)
    memory = [reason for reason in (_recovered_low(record), _relearn(record), *_attacks(record)) if reason]
    if memory:
        return _made("memory left", memory + _differences(record), record)
    differences = _differences(record)
    return _made("differs from retrain" if differences else "like retrain", differences, record)


def _made(level: str, reasons: list[str], record: Mapping[str, Any]) -> dict[str, Any]:
    return {"level": level, "text": [TEXT[level], *_facts(record)], "reasons": reasons}


def _recovered_low(record: Mapping[str, Any]) -> str | None:
    value = _recovered(record)
    if value is not None and value < RECOVERED_LEAST:
        return f"the forgotten samples' loss went {value:.2f} of the way to Retrain's (at least {RECOVERED_LEAST} expected)"
    return None


def _recovered(record: Mapping[str, Any]) -> float | None:
    full, retrain = (lookup(record, f"loss.forget.{model}") for model in ("full", "retrain"))
    value = lookup(record, "distances.same_seed.recovered")
    if None in (full, retrain, value) or abs(retrain - full) < LOSS_GAP:
        return None
    return float(value)


def _relearn(record: Mapping[str, Any]) -> str | None:
    now, wanted = (lookup(record, f"relearn.{model}") for model in ("unlearned", "retrain"))
    if not now or not wanted or now["epochs"] is None:
        return None
    # A censored Retrain needs more than the cap: the cap is the least it can be.
    epochs = wanted["cap"] if wanted["epochs"] is None else wanted["epochs"]
    if now["epochs"] < RELEARN_SHARE * epochs and epochs - now["epochs"] >= RELEARN_EPOCHS:
        more = f"more than {epochs}" if wanted["epochs"] is None else str(epochs)
        return f"the forgotten samples are learnt again in {now['epochs']} epochs, by Retrain in {more}"
    return None


def _attacks(record: Mapping[str, Any]) -> list[str]:
    reasons = []
    for key, title, least in (("population", "the population attack", 0.0), ("u_lira", "U-LiRA", LIRA_GAP)):
        now, wanted = (lookup(record, f"membership.{key}.{model}") for model in ("unlearned", "retrain"))
        if not now or not wanted or now.get("auc") is None or wanted.get("auc") is None:
            continue
        # U-LiRA of Retrain against itself is one half by construction; its scatter, at half the models, is no part of the gap's.
        other = wanted["auc_standard_error"] if key == "population" else 0.0
        noise = math.hypot(now["auc_standard_error"], other)
        gap = now["auc"] - wanted["auc"]
        if gap > max(ERRORS * noise, least):
            reasons.append(f"{title} reaches AUC {now['auc']:.2f}, on Retrain {wanted['auc']:.2f} (noise ± {noise:.2f})")
    return reasons


def _differences(record: Mapping[str, Any]) -> list[str]:
    reasons = []
    value = _recovered(record)
    if value is not None and value > RECOVERED_MOST:
        reasons.append(f"the forgotten samples' loss went {value:.2f} times the way to Retrain's: pushed too far")
    for where, count in (("retain", "request.retain"), ("forget", "request.forget"), ("holdout", "subject.holdout")):
        now, wanted = (lookup(record, f"accuracy.{where}.{model}") for model in ("unlearned", "retrain"))
        if now is None or wanted is None:
            continue
        if abs(now - wanted) > POINTS and abs(now - wanted) * lookup(record, count) > FEW:
            reasons.append(f"accuracy on {_SETS[where]} samples is {100 * now:.1f} %, Retrain's {100 * wanted:.1f} %")
    for where in ("forget", "holdout"):
        now = lookup(record, f"distances.same_seed.total_variation.{where}")
        spread = lookup(record, f"distances.retrain_spread.total_variation.{where}")
        if now is not None and spread is not None and now > SPREAD * spread:
            reasons.append(
                f"class probabilities of {_SETS[where]} samples are {now:.3f} from Retrain's, two Retrains {spread:.3f} apart"
            )
    if not lookup(record, "accuracy.retain.unlearned") or _not_numbers(record):
        reasons.append("the model's outputs are not numbers on some samples, or it gets nothing right")
    return reasons


_SETS = {"retain": "retained", "forget": "forgotten", "holdout": "held-out"}


def _not_numbers(record: Mapping[str, Any]) -> bool:
    return any(lookup(record, f"loss.{where}.unlearned") is None for where in _SETS)


def _facts(record: Mapping[str, Any]) -> list[str]:
    """What was done and seen, in sentences without symbols."""
    forget, retain = lookup(record, "request.forget"), lookup(record, "request.retain")
    sentences = [f"{forget} of {forget + retain} training samples were to be forgotten."]
    accuracy = lookup(record, "accuracy.forget") or {}
    if "full" in accuracy and "unlearned" in accuracy:
        text = f"Before, the model named {_percent(accuracy['full'])} of them rightly; now {_percent(accuracy['unlearned'])}"
        if "retrain" in accuracy:
            text += f"; a model retrained without them {_percent(accuracy['retrain'])}"
        sentences.append(text + ".")
    holdout = lookup(record, "accuracy.holdout") or {}
    if "full" in holdout and "unlearned" in holdout:
        before = f"before: {_percent(holdout['full'])}"
        if "retrain" in holdout:
            before += f"; retrained: {_percent(holdout['retrain'])}"
        sentences.append(f"On images it never saw it is right in {_percent(holdout['unlearned'])} of cases ({before}).")
    ratio = lookup(record, "cost.ratio_to_retrain")
    if ratio is not None:
        before = ", not counting the Jacobian rows, which were made before" if lookup(record, "cost.rows_made_before") else ""
        sentences.append(f"It took {ratio:.2f} times as long as retraining{before}.")
    return sentences


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction in (0, 1) else f"{100 * fraction:.1f} %"
