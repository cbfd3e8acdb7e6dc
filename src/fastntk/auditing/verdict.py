"""From a record to a word and plain sentences: a pure function, no torch, no model.

The first that applies, in this order:

    not to be trusted      the step's own check said "retrain instead"
    memory left            the forgotten samples are clearly better known than to Retrain
    cannot be told         weights outside the tuned ones were trained on the data, or are unknown, and Retrain has the same
    no reference           there is no Retrain to compare with
    differs from retrain   it behaves otherwise than Retrain does
    like retrain           none of these

Thresholds are the constants below. They are conventions, chosen to be readable, not derived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from fastntk.auditing.figures import lookup
from fastntk.auditing.record import AuditRecord, Level, Measurements, Verdict
from fastntk.auditing.record_figures import Attack, known
from fastntk.auditing.requirements import evaluate, parse
from fastntk.base.errors import InputError

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

TEXT: dict[Level, str] = {
    "not to be trusted": "The unlearning step failed its own check. Do not use this model: retrain instead.",
    "cannot be told": "Whether the data was forgotten cannot be told: weights that unlearning does not reach may remember it.",
    "no reference": "There is no retrained model to compare with, so whether the data was forgotten cannot be judged here.",
    "memory left": "The model still knows more about the removed data than a model that never saw it.",
    "differs from retrain": "No memory of the removed data was found, but the model behaves otherwise than a retrained one.",
    "like retrain": "In everything that was measured, the model behaves like one that never saw the removed data.",
}


def verdict(record: Measurements) -> Verdict:
    """Level, sentences and reasons."""
    check = record.details.get("validity")
    if isinstance(check, Mapping) and check.get("verdict") == "retrain instead":
        return _judged("not to be trusted", [f"own check: {reason}" for reason in check.get("reasons", [])], record)
    memory = []
    if record.reference.made:
        memory = [reason for reason in (_recovered_low(record), _relearn(record), *_attacks(record)) if reason]
    if memory:
        return _judged("memory left", memory + _differences(record), record)
    outside = _outside(record)
    if outside:
        return _judged("cannot be told", [outside], record)
    if not record.reference.made:
        why = "no Retrain was made"
        if record.subject.recipe is None:
            why += ": the run has no recipe to repeat, and no training function (retrain=, --retrain-with) was given"
        return _judged("no reference", [why], record)
    differences = _differences(record)
    return _judged("differs from retrain" if differences else "like retrain", differences, record)


def _outside(record: Measurements) -> str | None:
    """Why weights outside the tuned ones leave the question open.

    They do not where the user's own training made the Retrain with other such weights: then the comparison shows what is left.
    """
    outside, lifted = known(record.outside), known(record.reference.changed_outside)
    if outside is None or outside.status not in ("differ", "unknown") or lifted:
        return None
    kind = "were trained on the same data" if outside.status == "differ" else "may have been trained on the same data"
    how = (
        "Retrain has them too, so no comparison with it shows what they remember"
        if record.reference.made
        else "no Retrain was made"
    )
    return (
        f"{outside.count} tensors outside the tuned ones {kind}; {how}. A Retrain from the pre-trained weights, by a training "
        "function of your own (retrain=, --retrain-with), would tell"
    )


def disagreements(record: AuditRecord) -> list[str]:
    """Where the judgement in a record is not what its figures give, in words; an honest record has none."""
    level = verdict(record).level
    found = [] if level == record.verdict.level else [f"it says “{record.verdict.level}”, its figures say “{level}”"]
    for item in record.requirements:
        try:
            passed = evaluate(parse(item.text), record).passed
        except InputError:
            found.append(f"its requirement {item.text!r} is no condition that fastntk reads")
            continue
        if passed != item.passed:
            words = {True: "met", False: "not met"}
            found.append(f"it says that {item.text} is {words[item.passed]}, by its figures it is {words[passed]}")
    return found


def _judged(level: Level, reasons: list[str], record: Measurements) -> Verdict:
    outside = known(record.outside)
    accepted = None if outside is None else known(outside.accepted)
    said = [f"Weights outside the tuned ones were accepted as they are, for this reason: {accepted}"] if accepted else []
    return Verdict(level=level, text=(TEXT[level], *said, *_facts(record)), reasons=tuple(reasons))


def _recovered_low(record: Measurements) -> str | None:
    value = _recovered(record)
    if value is not None and value < RECOVERED_LEAST:
        return f"the forgotten samples' loss went {value:.2f} of the way to Retrain's (at least {RECOVERED_LEAST} expected)"
    return None


def _recovered(record: Measurements) -> float | None:
    distances = known(record.distances)
    full, retrain = record.loss.forget.full, known(record.loss.forget.retrain)
    if distances is None or full is None or retrain is None or abs(retrain - full) < LOSS_GAP:
        return None
    return distances.same_seed.recovered


def _relearn(record: Measurements) -> str | None:
    now, wanted = record.relearn.unlearned, known(record.relearn.retrain)
    if wanted is None or now.epochs is None:
        return None
    # A censored Retrain needs more than the cap: the cap is the least it can be.
    epochs = wanted.cap if wanted.epochs is None else wanted.epochs
    if now.epochs < RELEARN_SHARE * epochs and epochs - now.epochs >= RELEARN_EPOCHS:
        more = f"more than {epochs}" if wanted.epochs is None else str(epochs)
        return f"the forgotten samples are learnt again in {now.epochs} epochs, by Retrain in {more}"
    return None


def _attacks(record: Measurements) -> list[str]:
    reasons = []
    population, lira = known(record.membership.population), known(record.membership.u_lira)
    if population is not None:
        reasons.append(_attack("the population attack", population.unlearned, known(population.retrain)))
    if lira is not None:
        # U-LiRA of Retrain against itself is one half by construction; its scatter, at half the models, is no part of the gap's.
        exact = None if lira.retrain is None else replace(lira.retrain, auc_standard_error=0.0)
        reasons.append(_attack("U-LiRA", lira.unlearned, exact, least=LIRA_GAP))
    return [reason for reason in reasons if reason]


def _attack(title: str, now: Attack | None, wanted: Attack | None, *, least: float = 0.0) -> str | None:
    if now is None or wanted is None:
        return None
    paired = known(getattr(now, "difference_standard_error", None))
    noise = math.hypot(now.auc_standard_error, wanted.auc_standard_error) if paired is None else paired
    if now.auc - wanted.auc > max(ERRORS * noise, least):
        return f"{title} reaches AUC {now.auc:.2f}, on Retrain {wanted.auc:.2f} (noise ± {noise:.2f})"
    return None


def _differences(record: Measurements) -> list[str]:
    reasons = []
    value = _recovered(record)
    if value is not None and value > RECOVERED_MOST:
        reasons.append(f"the forgotten samples' loss went {value:.2f} times the way to Retrain's: pushed too far")
    counts = {"retain": record.request.retain, "forget": record.request.forget, "holdout": record.subject.holdout}
    for where, word in _SETS.items():
        now, wanted = (lookup(record, f"accuracy.{where}.{model}") for model in ("unlearned", "retrain"))
        if wanted is not None and abs(now - wanted) > POINTS and abs(now - wanted) * counts[where] > FEW:
            reasons.append(f"accuracy on {word} samples is {100 * now:.1f} %, Retrain's {100 * wanted:.1f} %")
    for where in ("forget", "holdout"):
        now, spread = (lookup(record, f"distances.{pair}.total_variation.{where}") for pair in ("same_seed", "retrain_spread"))
        if now is not None and spread is not None and now > SPREAD * spread:
            reasons.append(
                f"class probabilities of {_SETS[where]} samples are {now:.3f} from Retrain's, two Retrains {spread:.3f} apart"
            )
    if not record.accuracy.retain.unlearned or _not_numbers(record):
        reasons.append("the model's outputs are not numbers on some samples, or it classifies none correctly")
    return reasons


_SETS = {"retain": "retained", "forget": "forgotten", "holdout": "held-out"}


def _not_numbers(record: Measurements) -> bool:
    return any(losses.unlearned is None for losses in (record.loss.retain, record.loss.forget, record.loss.holdout))


def _facts(record: Measurements) -> list[str]:
    """What was done and seen, in sentences without symbols."""
    forget, retain = record.request.forget, record.request.retain
    sentences = [f"{forget} of {forget + retain} training samples were to be forgotten."]
    shares = {model: _percent(share) for model, share in record.accuracy.forget.items()}
    text = f"Before, the model classified {shares['full']} of them correctly; now {shares['unlearned']}"
    if "retrain" in shares:
        text += f"; a model retrained without them {shares['retrain']}"
    sentences.append(text + ".")
    unseen = {model: _percent(share) for model, share in record.accuracy.holdout.items()}
    beside = f"before: {unseen['full']}" + (f"; retrained: {unseen['retrain']}" if "retrain" in unseen else "")
    sentences.append(f"Of images it never saw it classifies {unseen['unlearned']} correctly ({beside}).")
    ratio = record.cost.ratio_to_retrain
    if ratio is not None:
        rows = ", not counting the Jacobian rows, which were made before" if known(record.cost.rows_made_before) else ""
        sentences.append(f"It took {ratio:.2f} times as long as retraining{rows}.")
    return sentences


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction in (0, 1) else f"{100 * fraction:.1f} %"
