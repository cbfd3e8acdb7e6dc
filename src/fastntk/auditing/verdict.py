"""From a record to a word and plain sentences: a pure function, no torch, no model.

The first that applies, in this order:

    memory left            the forgotten samples are better known than to Retrain, by more than chance
    cannot be told         weights outside the tuned ones were trained on the data, or are unknown, and Retrain has the same;
                           or the Retrains lie so far apart that the model before unlearning would pass, too
    not to be trusted      there is no Retrain to compare with, and the step's own check said "retrain instead"
    no reference           there is no Retrain to compare with
    differs from retrain   it behaves otherwise than Retrain does, by more than chance
    like retrain           none of these

A measured Retrain overrules the step's own check, which is a rule of thumb: what that said stays as a remark. What chance is and
where the limits come from: :mod:`fastntk.auditing.calibration`; the tests: :mod:`fastntk.auditing.evidence`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastntk.auditing.calibration import MUCH, RULES
from fastntk.auditing.evidence import blind, findings, not_numbers, open_remark, spread_remark
from fastntk.auditing.figures import lookup
from fastntk.auditing.record import AuditRecord, Level, Measurements, Verdict
from fastntk.auditing.record_figures import Fractions, known
from fastntk.auditing.requirements import evaluate, parse
from fastntk.base.errors import InputError

TEXT: dict[Level, str] = {
    "not to be trusted": "The unlearning step failed its own check. Do not use this model: retrain instead.",
    "cannot be told": "Whether the data was forgotten cannot be told: weights that unlearning does not reach may remember it.",
    "no reference": "There is no retrained model to compare with, so whether the data was forgotten cannot be judged here.",
    "memory left": "The model still knows more about the removed data than a model that never saw it.",
    "differs from retrain": "No memory of the removed data was found, but the model behaves otherwise than a retrained one.",
    "like retrain": "In everything that was measured, the model behaves like one that never saw the removed data.",
}

UNSURE = "Whether the data was forgotten cannot be told: the retrained models differ too much from one another."
LITTLE = (
    "By these figures the model before unlearning cannot be told from a retrained one either: there was little to forget that "
    "they could show."
)


def verdict(record: Measurements) -> Verdict:
    """Level, sentences and reasons."""
    evidence = findings(record) if record.reference.made else []
    reasons = [item.text for item in evidence]
    if any(item.kind == "memory" for item in evidence):
        return _judged("memory left", reasons, record)
    warnings = _own_check(record)
    outside = _outside(record)
    if not record.reference.made and (warnings or not_numbers(record)):
        number_faults = ["the model's outputs are not numbers on some samples"] if not_numbers(record) else []
        return _judged("not to be trusted", [*number_faults, *(f"own check: {reason}" for reason in warnings)], record)
    if outside:
        return _judged("cannot be told", [outside, *reasons], record)
    if not record.reference.made:
        why = "no Retrain was made"
        if record.subject.recipe is None:
            why += ": the run has no recipe to repeat, and no training function (retrain=, --retrain-with) was given"
        return _judged("no reference", [why], record)
    if not evidence and blind(record):
        doubt = _drowned(record)
        if doubt:
            return _judged("cannot be told", [doubt], record)
    return _judged("differs from retrain" if evidence else "like retrain", reasons, record)


def _drowned(record: Measurements) -> str | None:
    """Why Retrains that lie far apart leave the question open; None where there was little to forget."""
    before, spread = (lookup(record, f"distances.{pair}.total_variation.forget") for pair in ("full", "retrain_spread"))
    if before is None or spread is None or before <= MUCH:
        return None
    return (
        f"two Retrains lie {spread:.2f} apart on the forgotten samples (total variation), so chance hides what could be left: "
        f"the model before unlearning, {before:.2f} from Retrain, would pass as well. More Retrains (--retrains 3 and more) may "
        "tell"
    )


def _own_check(record: Measurements) -> list[str]:
    """What the step's own check said against it; empty where it said nothing."""
    check = record.details.get("validity")
    if not isinstance(check, Mapping) or check.get("verdict") != "retrain instead":
        return []
    return [str(reason) for reason in check.get("reasons") or ["it gives no reason"]]


def _own_remark(level: Level, record: Measurements) -> str | None:
    """The own check's warning, beside what the comparison says of it."""
    warnings = _own_check(record)
    if not warnings or not record.reference.made:
        return None
    sentence = f"The step's own check warned: {'; '.join(warnings)}."
    if level == "like retrain":
        return f"{sentence} The comparison with Retrain overrules it."
    if level == "cannot be told":
        return f"{sentence} The comparison with Retrain does not settle it here."
    return f"{sentence} The comparison with Retrain agrees."


def _outside(record: Measurements) -> str | None:
    """Why weights outside the tuned ones leave the question open.

    They do not where the user's own training made the Retrain with other such weights, all of them: then the comparison shows
    what is left.
    """
    outside, changes = known(record.outside), known(record.reference.changed_outside) or 0
    if outside is None or outside.status not in ("differ", "unknown") or changes >= outside.count:
        return None
    kind = "were trained on the same data" if outside.status == "differ" else "may have been trained on the same data"
    how = (
        f"Retrain has {'them' if not changes else f'{outside.count - changes} of them'} too, so no comparison with it shows what "
        "they remember"
        if record.reference.made
        else "no Retrain was made"
    )
    return (
        f"{outside.count} tensors outside the tuned ones {kind}; {how}. A Retrain from the pre-trained weights, by a training "
        "function of your own (retrain=, --retrain-with), would tell"
    )


def disagreements(record: AuditRecord) -> list[str]:
    """Where the judgement in a record is not what its figures give, in words; an honest record has none.

    A verdict by older rules need not follow from the present ones: :func:`older_rules`.
    """
    conflicts = []
    if older_rules(record) is None:
        level = verdict(record).level
        conflicts = [] if level == record.verdict.level else [f"it says “{record.verdict.level}”, its figures say “{level}”"]
    for item in record.requirements:
        try:
            holds = evaluate(parse(item.text), record).passed
        except InputError:
            conflicts.append(f"its requirement {item.text!r} is no condition that fastntk reads")
            continue
        if holds != item.passed:
            words = {True: "met", False: "not met"}
            conflicts.append(f"it says that {item.text} is {words[item.passed]}, by its figures it is {words[holds]}")
    return conflicts


def older_rules(record: AuditRecord) -> str | None:
    """What to say of a record that other rules judged otherwise than the present ones do; None where these agree.

    "No reference" needs no rule, and older ones could not give another level without a Retrain but "not to be trusted" and
    "cannot be told": a record that claims one is no older record, but a changed one.
    """
    rules = known(record.verdict.rules) or (RULES if _has_figures_of_now(record) else 1)
    level = verdict(record).level
    if rules == RULES or level == record.verdict.level:
        return None
    if not record.reference.made and record.verdict.level not in ("not to be trusted", "cannot be told", "no reference"):
        return None
    return f"judged by other rules ({rules}, now {RULES}) as “{record.verdict.level}”; by the present ones it is “{level}”"


def _has_figures_of_now(record: AuditRecord) -> bool:
    """Whether a record holds figures that came with the present rules, so that a missing number of rules was taken out."""
    distances = known(record.distances)
    return distances is not None and known(distances.retrains) is not None


def _judged(level: Level, reasons: list[str], record: Measurements) -> Verdict:
    outside = known(record.outside)
    reason = None if outside is None else known(outside.accepted)
    acceptance = [f"Weights outside the tuned ones were accepted as they are, for this reason: {reason}"] if reason else []
    weak = [open_remark(record), LITTLE if blind(record) else None] if level == "like retrain" else []
    remarks = [_own_remark(level, record), *weak, spread_remark(record)]
    first = UNSURE if level == "cannot be told" and _outside(record) is None else TEXT[level]
    sentences = (first, *acceptance, *_facts(record), *(remark for remark in remarks if remark))
    return Verdict(level=level, text=sentences, reasons=tuple(reasons), rules=RULES)


def _facts(record: Measurements) -> list[str]:
    """What was done and seen, in sentences without symbols."""
    forget, retain = record.request.forget, record.request.retain
    sentences = [f"{forget} of {forget + retain} training samples were to be forgotten."]
    shares = {model: _percent(share) for model, share in record.accuracy.forget.items()}
    text = f"Before, the model classified {shares['full']} of them correctly; now {shares['unlearned']}"
    if "retrain" in shares:
        text += f"; a model retrained without them {shares['retrain']}"
    sentences.append(text + ".")
    of_kept, of_forgotten = known(record.accuracy.holdout_kept_classes), known(record.accuracy.holdout_forgotten_classes)
    if of_kept is None:
        sentences.append(_unseen("images it never saw", record.accuracy.holdout))
    else:
        # Over all classes the figure falls with the forgotten ones, which is no damage.
        sentences.append(_unseen("images it never saw, of the classes that stay,", of_kept))
        if of_forgotten is not None:
            sentences.append(_unseen("images it never saw, of the forgotten classes,", of_forgotten))
    ratio = record.cost.ratio_to_retrain
    if ratio is not None:
        rows = ", not counting the Jacobian rows, which were made before" if known(record.cost.rows_made_before) else ""
        sentences.append(f"It took {ratio:.2f} times as long as retraining{rows}.")
    return sentences


def _unseen(what: str, accuracy: Fractions) -> str:
    shares = {model: _percent(share) for model, share in accuracy.items()}
    beside = f"before: {shares['full']}" + (f"; retrained: {shares['retrain']}" if "retrain" in shares else "")
    return f"Of {what} it classifies {shares['unlearned']} correctly ({beside})."


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction in (0, 1) else f"{100 * fraction:.1f} %"
