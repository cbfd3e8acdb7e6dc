"""What an audit does not show, in plain sentences from what was measured: a pure function, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastntk.auditing.record import Measurements
from fastntk.auditing.record_figures import known
from fastntk.base.errors import listing

FEW = 100
"""With fewer unseen samples than this, a false-positive rate of 1 % cannot be told from none."""

SINGLE = 5
"""Up to so many forgotten samples, figures over them are close to figures of each."""


def limits(record: Measurements, *, shared: int, unseen: Sequence[str] = ()) -> tuple[str, ...]:
    """The sentences; ``shared``: hold-out samples that are copies of training samples; ``unseen``: classes that were trained and
    have no hold-out sample."""
    samples = _of_the_samples(record, shared, unseen)
    return (*_of_any_audit(record), *_of_the_reference(record), *_of_the_attacks(record), *samples)


def _of_any_audit(record: Measurements) -> Iterator[str]:
    yield "This is evidence from measurements, not a certificate and not a proof that nothing is left."
    outside = record.details.get("outside_subset", {})
    if outside.get("status") == "retrained":
        yield "The whole model is what a training function returned."
    else:
        yield f"Only the tuned parameters were changed. {outside.get('message', '')}"
    left_tensors = record.details.get("left")
    if left_tensors:
        yield f"Of the tuned parameters, {len(left_tensors)} tensors were left where the forgotten samples helped to put them."
    yield "Only the attacks named here were tried; a stronger one may see more."
    yield "Copies of the data, of the old model and of files made from it are not looked at."


def _of_the_reference(record: Measurements) -> Iterator[str]:
    reference = record.reference
    if not reference.made:
        yield "There is no retrained model to compare with, so no figure here says whether it is good."
        if record.subject.recipe is None:
            yield (
                "The run has no recipe that could be repeated, so accuracies, losses, relearning and attacks stand without "
                "Retrain's, and there are no distances to it. A training function of your own gives them: audit(..., "
                "retrain=function), or --retrain-with MODULE:FUNCTION."
            )
    elif not reference.other_seeds:
        yield "Only one retraining was made, so how far two of them lie apart is not known."
    maker, change_count = known(reference.made_by), known(reference.changed_outside)
    if maker is not None:
        yield (
            f"Retrain was made by a function of the user ({maker}): that it never looked at the forgotten samples is not checked."
        )
    if change_count:
        yield (
            f"Retrain also differs from the run in {change_count} tensors outside the tuned parameters, which unlearning does "
            "not reach."
        )


def _of_the_attacks(record: Measurements) -> Iterator[str]:
    membership = record.membership
    if membership.population is None:
        yield str(membership.note).capitalize() + "."
    sizes = known(membership.sizes)
    if sizes is not None and sizes.holdout < FEW:
        yield (
            f"The attack has {sizes.holdout} unseen samples of the classes concerned: its rate at 1 % false positives is the "
            "rate at none."
        )
    lira = known(membership.u_lira)
    if lira is None:
        yield "No attack per sample (U-LiRA) was made: it needs an ensemble of models."
        return
    yield (
        "The models of U-LiRA and KLoM differ by their seeds only: data, forget set and weights before fine-tuning are the same."
    )
    if known(lira.ensemble.made_by) is None:
        yield "The models of the ensemble saw the forgotten samples and stay in the cache until somebody deletes them."
        if lira.ensemble.kind == "tangent":
            yield "The ensemble was made by replay in a linear model of the network, not by training."


def _of_the_samples(record: Measurements, shared: int, unseen: Sequence[str]) -> Iterator[str]:
    if record.request.forget <= SINGLE:
        yield (
            f"So few samples were forgotten ({record.request.forget}) that means and counts over them tell much of each: keep "
            "this record as you would keep them."
        )
    if shared:
        yield f"{shared} of the hold-out samples are exact copies of training samples."
    if unseen:
        yield (
            f"No hold-out sample is of these trained classes: {listing(unseen)}. No figure on unseen samples says anything of "
            "them."
        )
