"""Each test of the unlearned model against the Retrains: what was found beyond its limit, and what the limit rests on.

The limits are :mod:`fastntk.auditing.calibration`'s. All Retrains count, that of the run's own seed and those of others alike: a
model that never saw the data may differ from any of them by as much as they differ from one another. Pure functions of a record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from msgspec import UNSET

from fastntk.auditing import calibration
from fastntk.auditing.figures import lookup
from fastntk.auditing.record import Measurements
from fastntk.auditing.record_figures import Attack, Distances, Places, known

SETS = {"retain": "retained", "forget": "forgotten", "holdout": "held-out"}
MOST_RETRAINS = 3
"""From so many further Retrains on, limits hardly narrow with more."""


Kind = Literal["memory", "difference"]


@dataclass(frozen=True)
class Finding:
    """What lies beyond its limit: ``memory`` of the forgotten samples, or another ``difference`` from Retrain; by which test."""

    kind: Kind
    test: str
    text: str


def findings(record: Measurements) -> list[Finding]:
    """Everything beyond its limit, memory first."""
    evidence = [_relearning(record), *_attacks(record), *_losses(record), *_accuracies(record), *_distances(record)]
    if not_numbers(record):
        evidence.append(Finding("difference", "numbers", "the model's outputs are not numbers on some samples"))
    elif not record.accuracy.retain.unlearned and known(record.accuracy.retain.retrain) != 0:
        evidence.append(Finding("difference", "numbers", "the model classifies none of the retained samples correctly"))
    return sorted((item for item in evidence if item), key=lambda item: item.kind != "memory")


def others(record: Measurements) -> int:
    """R: how many Retrains there are beside that of the run's own seed."""
    return len(record.reference.other_seeds)


def spread_remark(record: Measurements) -> str | None:
    """How sure the limits are: they rest on how far a few Retrains lie apart."""
    if not record.reference.made:
        return None
    further = others(record)
    if further and _spread(record, "total_variation", "forget") is None:
        return (
            "Some Retrain gives outputs that are not numbers, so how far Retrains lie apart is not known: distances were not "
            "judged, and losses and accuracies by fixed limits. Look at the recipe."
        )
    if further == 0:
        return (
            "Only one Retrain was made, so distances to it were not judged, and losses and accuracies by fixed limits: further "
            "ones (--reference retrain --retrains 3) show how far chance goes."
        )
    count = record.request.forget
    factor = calibration.pair_factor(count, further)
    what = "one pair of Retrains" if further == 1 else f"{further + 1} Retrains"
    return (
        f"How far Retrains lie apart rests on {what}: on the {count} forgotten samples that may be off by a factor of "
        f"{factor:.1f} either way, and the limits are wide enough for it."
    )


def open_remark(record: Measurements) -> str | None:
    """Where a distance is within the wide limit of few Retrains, but would not be within that of more."""
    further = others(record)
    if not record.reference.made or not 0 < further < MOST_RETRAINS:
        return None
    for where in ("forget", "holdout"):
        ratio, distance, count = _ratio(record, where), _distance(record, where), _count(record, where)
        wide, narrow = (calibration.distance_limit(count, number) for number in (further, MOST_RETRAINS))
        if ratio is not None and ratio > narrow and (distance or 0.0) > calibration.LEAST_DISTANCE:
            return (
                f"The evidence is weak here: on {SETS[where]} samples it lies {ratio:.2f} times as far from Retrains as they "
                f"from each other, within the limit for {further + 1} Retrains ({wide:.2f}), beyond that for {MOST_RETRAINS + 1} "
                f"({narrow:.2f}). --retrains {MOST_RETRAINS} would tell."
            )
    return None


def blind(record: Measurements) -> bool:
    """Whether the model before unlearning, judged in the unlearned one's place, would pass as well: then a pass tells nothing."""
    return record.reference.made and not findings(_nothing_done(record))


def _nothing_done(record: Measurements) -> Measurements:
    """The record as it would be, had nothing been done."""

    def as_before(figures: Any) -> Any:
        return figures if known(figures) is None else replace(figures, unlearned=figures.full)

    distances, lira = known(record.distances), known(record.membership.u_lira)
    if distances is not None:
        further = UNSET if known(distances.other_seeds) is None else distances.full
        distances = replace(distances, same_seed=distances.full, other_seeds=further)
    if lira is not None:
        lira = replace(lira, unlearned=lira.full, shift=as_before(lira.shift))
    parts = ("retain", "forget", "holdout")
    return replace(
        record,
        accuracy=replace(record.accuracy, **{part: as_before(getattr(record.accuracy, part)) for part in parts}),
        loss=replace(record.loss, **{part: as_before(getattr(record.loss, part)) for part in parts}),
        relearn=as_before(record.relearn),
        distances=UNSET if distances is None else distances,
        membership=replace(
            record.membership,
            population=as_before(record.membership.population),
            u_lira=record.membership.u_lira if lira is None else lira,
        ),
    )


def _relearning(record: Measurements) -> Finding | None:
    now, retrain = record.relearn.unlearned, known(record.relearn.retrain)
    if retrain is None or now.epochs is None:
        return None
    # A censored Retrain needs more than the cap: the cap is the least it can be.
    epochs = retrain.cap if retrain.epochs is None else retrain.epochs
    limit = min(calibration.RELEARN_SHARE * epochs, epochs - calibration.RELEARN_EPOCHS + 1)
    if now.epochs >= limit:
        return None
    more = f"more than {epochs}" if retrain.epochs is None else str(epochs)
    text = f"the forgotten samples are learnt again in {now.epochs} epochs, by Retrain in {more} (under {limit:g} is memory)"
    return Finding("memory", "relearning", text)


def _attacks(record: Measurements) -> list[Finding]:
    evidence = []
    population, lira = known(record.membership.population), known(record.membership.u_lira)
    if population is not None:
        now, retrain = population.unlearned, known(population.retrain)
        # An attack sees a difference in either direction. Losses that tell members less well than Retrain's are no memory.
        memory = now is None or retrain is None or now.by_feature.loss >= retrain.by_feature.loss
        evidence.append(_attack("the population attack", now, retrain, least=calibration.POPULATION_GAP, memory=memory))
    if lira is not None:
        shifts = known(lira.shift)
        memory = shifts is None or shifts.unlearned is None or shifts.unlearned.median > 0
        # Of Retrain against itself it is one half by construction; what half the models gave is chance, and no part of the gap.
        half = None if lira.retrain is None else replace(lira.retrain, auc=0.5, auc_standard_error=0.0)
        evidence.append(_attack("U-LiRA", lira.unlearned, half, least=calibration.LIRA_GAP, memory=memory, beside="by chance"))
    return [item for item in evidence if item]


def _attack(
    title: str, now: Attack | None, wanted: Attack | None, *, least: float, memory: bool, beside: str = "on Retrain"
) -> Finding | None:
    if now is None or wanted is None:
        return None
    paired_error = known(getattr(now, "difference_standard_error", None))
    noise = math.hypot(now.auc_standard_error, wanted.auc_standard_error) if paired_error is None else paired_error
    limit = max(calibration.LEVEL * noise, least)
    if now.auc - wanted.auc <= limit:
        return None
    text = f"{title} reaches AUC {now.auc:.2f}, {beside} {wanted.auc:.2f} (limit {limit:.2f} more: {calibration.LEVEL} standard "
    text += f"errors, at least {least})"
    kind: Kind = "memory" if memory else "difference"
    return Finding(kind, title.removeprefix("the "), text if memory else f"{text}: told apart by being pushed too far")


def _losses(record: Measurements) -> list[Finding]:
    """The mean loss of D_f: lower than the Retrains' is memory, higher is pushed too far."""
    now, full, own = record.loss.forget.unlearned, record.loss.forget.full, known(record.loss.forget.retrain)
    if now is None or own is None:
        return []
    scatter = _spread(record, "log_probability", "forget")
    if scatter is None:
        return _recovered(record)
    retrain_loss, retrain_count = _mean_of_retrains(record, "loss", "forget", own)
    limit = _loss_limit(record, retrain_count - 1, scatter)
    if abs(now - retrain_loss) <= limit:
        return []
    way = "" if full is None or full == retrain_loss else f"; {(now - full) / (retrain_loss - full):.2f} of the way from before"
    rests = f"limit {limit:.2f} either way, from {_retrains(retrain_count)} and {_samples(record.request.forget)}"
    text = f"the forgotten samples' mean loss is {now:.2f} nats, Retrain's {retrain_loss:.2f} ({rests}{way})"
    # Beyond Retrain's loss, seen from Full's, is not memory, though it may be lower: forgetting can help a sample, too. But on
    # which side Full lies means something only where it lies apart.
    apart = full is not None and abs(full - retrain_loss) > limit
    memory = (now - retrain_loss) * (full - retrain_loss) > 0 if apart and full is not None else now < retrain_loss
    return [Finding("memory", "loss", text) if memory else Finding("difference", "loss", f"{text}: pushed too far")]


def _loss_limit(record: Measurements, further: int, scatter: float) -> float:
    """Of samples of classes that went as a whole and of other samples, each with its own limit, by their shares."""
    share = _whole_share(record)
    parts = []
    for part, whole in ((share, True), (1 - share, False)):
        count = round(part * record.request.forget)
        if count:
            parts.append(part * calibration.loss_limit(count, further, scatter=scatter, whole_class=whole))
    return max(math.hypot(*parts), calibration.LEAST_LOSS)


def _whole_share(record: Measurements) -> float:
    """The share of the forgotten samples whose class went as a whole."""
    whole = set(record.request.whole_classes)
    if not whole:
        return 0.0
    class_sizes = {name: sum(row) for name, row in zip(record.flow.classes, record.flow.full)}
    total = sum(class_sizes.values())
    inside = sum(count for name, count in class_sizes.items() if name in whole)
    return inside / total if inside else 1.0


def _recovered(record: Measurements) -> list[Finding]:
    """With one Retrain alone: the share of the way from Full's loss to Retrain's, by convention."""
    distances, full, retrain = known(record.distances), record.loss.forget.full, known(record.loss.forget.retrain)
    value = None if distances is None else distances.same_seed.recovered
    if value is None or full is None or retrain is None or abs(retrain - full) < calibration.LOSS_GAP:
        return []
    text = f"the forgotten samples' loss went {value:.2f} of the way to Retrain's"
    if value < calibration.RECOVERED_LEAST:
        return [Finding("memory", "loss", f"{text} (at least {calibration.RECOVERED_LEAST} by convention, with one Retrain)")]
    if value > calibration.RECOVERED_MOST:
        limit = f"at most {calibration.RECOVERED_MOST} by convention, with one Retrain"
        return [Finding("difference", "loss", f"{text}: pushed too far ({limit})")]
    return []


def _accuracies(record: Measurements) -> list[Finding]:
    evidence = []
    for where, word in SETS.items():
        now, own = (lookup(record, f"accuracy.{where}.{model}") for model in ("unlearned", "retrain"))
        if now is None or own is None:
            continue
        retrain_accuracy, retrain_count = _mean_of_retrains(record, "accuracy", where, own)
        # Of retained samples it is not recorded how many two Retrains classify differently: it is about as many as held-out ones.
        same = _spread(record, "agreement", "holdout" if where == "retain" else where)
        count = _count(record, where)
        if same is None:
            limit, rests = max(calibration.POINTS, calibration.FEW / count), "by convention, with one Retrain"
        else:
            limit = calibration.accuracy_limit(count, retrain_count - 1, disagreement=1 - same)
            rests = f"from {_retrains(retrain_count)} and {_samples(count)}"
        if abs(now - retrain_accuracy) > limit + 1e-9:
            text = f"accuracy on {word} samples is {100 * now:.1f} %, Retrain's {100 * retrain_accuracy:.1f} %"
            # Forgotten samples that are classified correctly more often than by Retrain, as before unlearning, are remembered.
            before = lookup(record, f"accuracy.{where}.full")
            memory = where == "forget" and now > retrain_accuracy and before is not None and before > retrain_accuracy
            kind: Kind = "memory" if memory else "difference"
            evidence.append(Finding(kind, f"accuracy, {where}", f"{text} (limit {100 * limit:.1f} points either way, {rests})"))
    return evidence


def _distances(record: Measurements) -> list[Finding]:
    """How far from the Retrains, all of them, beside how far they are from each other."""
    evidence, further = [], others(record)
    for where in ("forget", "holdout"):
        ratio, distance, count = _ratio(record, where), _distance(record, where), _count(record, where)
        if ratio is None or distance is None or distance <= calibration.LEAST_DISTANCE:
            continue
        limit = calibration.distance_limit(count, further)
        if ratio > limit:
            text = f"class probabilities of {SETS[where]} samples are {distance:.3f} from {_retrains(further + 1)}, "
            text += f"{ratio:.2f} times as far as these from each other (limit {limit:.2f} with {_pairs(further)})"
            short = _short_of_retrain(record) if where == "forget" else None
            kind: Kind = "difference" if short is None else "memory"
            text += "" if short is None else f"; their loss went {short:.2f} of the way to Retrain's"
            evidence.append(Finding(kind, f"distance, {where}", text))
    return evidence


def _short_of_retrain(record: Measurements) -> float | None:
    """The share of the way from Full's loss on D_f to the Retrains', where it is so small that what is left is memory."""
    now, full, own = record.loss.forget.unlearned, record.loss.forget.full, known(record.loss.forget.retrain)
    if now is None or full is None or own is None:
        return None
    retrain_loss, _ = _mean_of_retrains(record, "loss", "forget", own)
    if abs(retrain_loss - full) < calibration.LOSS_GAP:
        return None
    share = (now - full) / (retrain_loss - full)
    return share if share < calibration.RECOVERED_LEAST else None


def _ratio(record: Measurements, where: str) -> float | None:
    """T: the mean distance to the Retrains over the spread between them; None where either is not known.

    Retrains that do not differ at all, for the seed decides nothing, are left by any distance: infinity.
    """
    distance, spread = _distance(record, where), _spread(record, "total_variation", where)
    if distance is None or spread is None:
        return None
    return distance / spread if spread else (math.inf if distance else 0.0)


def _distance(record: Measurements, where: str) -> float | None:
    """The mean total variation to all Retrains, the same seed's and the others'."""
    same, other = (lookup(record, f"distances.{pair}.total_variation.{where}") for pair in ("same_seed", "other_seeds"))
    further = others(record)
    return None if same is None or other is None else float((same + further * other) / (further + 1))


def _spread(record: Measurements, measure: str, where: str) -> float | None:
    """Mean over pairs of Retrains; on forgotten samples no nearer than on held-out ones, for few samples agree by luck."""
    distances: Distances | None = known(record.distances)
    spread = None if distances is None else known(distances.retrain_spread)
    if spread is None:
        return None
    places: Places | None = known(getattr(spread, measure))
    if places is None:
        return None
    value, floor = places.forget if where == "forget" else places.holdout, places.holdout
    if value is None or floor is None:
        return None
    return min(value, floor) if measure == "agreement" else max(value, floor)


def _mean_of_retrains(record: Measurements, figure: Literal["loss", "accuracy"], where: str, own: float) -> tuple[float, int]:
    """The mean over all Retrains and how many they are; in older records the run's own seed alone has it."""
    distances = known(record.distances)
    by_seed = None if distances is None else known(distances.retrains)
    values = [getattr(getattr(each, figure), where) for each in (by_seed or {}).values()]
    if not values or any(value is None for value in values):
        return own, 1
    return sum(values) / len(values), len(values)


def _count(record: Measurements, where: str) -> int:
    return {"retain": record.request.retain, "forget": record.request.forget, "holdout": record.subject.holdout}[where]


def not_numbers(record: Measurements) -> bool:
    """Whether the unlearned model's outputs are no numbers on some samples."""
    return any(losses.unlearned is None for losses in (record.loss.retain, record.loss.forget, record.loss.holdout))


def _retrains(count: int) -> str:
    return "one Retrain" if count == 1 else f"{count} Retrains"


def _pairs(further: int) -> str:
    count = further * (further + 1) // 2
    return "one pair" if count == 1 else f"{count} pairs"


def _samples(count: int) -> str:
    return "one sample" if count == 1 else f"{count} samples"
