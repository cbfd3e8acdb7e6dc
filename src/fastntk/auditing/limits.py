"""What an audit does not show, in plain sentences from what was measured: a pure function, no torch."""

from __future__ import annotations

from fastntk.auditing.record import Measurements
from fastntk.auditing.record_figures import known

FEW = 100
"""With fewer unseen samples than this, a false-positive rate of 1 % cannot be told from none."""

SINGLE = 5
"""Up to so many forgotten samples, figures over them are close to figures of each."""


def limits(record: Measurements, *, shared: int) -> tuple[str, ...]:
    """The sentences; ``shared``: hold-out samples that are copies of training samples."""
    outside = record.details.get("outside_subset", {}).get("message", "")
    status = record.details.get("outside_subset", {}).get("status")
    sentences = [
        "This is evidence from measurements, not a certificate and not a proof that nothing is left.",
        "The whole model is what a training function returned."
        if status == "retrained"
        else f"Only the tuned parameters were changed. {outside}",
        "Only the attacks named here were tried; a stronger one may see more.",
        "Copies of the data, of the old model and of files made from it are not looked at.",
    ]
    left = record.details.get("left")
    if left:
        sentences.insert(
            2, f"Of the tuned parameters, {len(left)} tensors were left where the forgotten samples helped to put them."
        )
    if not record.reference.made:
        sentences.append("There is no retrained model to compare with, so no figure here says whether it is good.")
        if record.subject.recipe is None:
            sentences.append(
                "The run has no recipe that could be repeated, so accuracies, losses, relearning and attacks stand without "
                "Retrain's, and there are no distances to it. A training function of your own gives them: audit(..., "
                "retrain=function), or --retrain-with MODULE:FUNCTION."
            )
    elif not record.reference.other_seeds:
        sentences.append("Only one retraining was made, so how far two of them lie apart is not known.")
    maker, outside_changed = known(record.reference.made_by), known(record.reference.changed_outside)
    if maker is not None:
        sentences.append(
            f"Retrain was made by a function of the user ({maker}): that it never looked at the forgotten samples is not checked."
        )
    if outside_changed:
        sentences.append(
            f"Retrain also differs from the run in {outside_changed} tensors outside the tuned parameters, which unlearning does "
            "not reach."
        )
    membership = record.membership
    if membership.population is None:
        sentences.append(str(membership.note).capitalize() + ".")
    sizes = known(membership.sizes)
    if sizes is not None and sizes.holdout < FEW:
        sentences.append(
            f"The attack has {sizes.holdout} unseen samples of the classes concerned: its rate at 1 % false positives is the "
            "rate at none."
        )
    lira = known(membership.u_lira)
    if lira is None:
        sentences.append("No attack per sample (U-LiRA) was made: it needs an ensemble of models.")
    else:
        sentences.append(
            "The models of U-LiRA and KLoM differ by their seeds only: data, forget set and weights before fine-tuning are the "
            "same."
        )
    if lira is not None and known(lira.ensemble.made_by) is None:
        sentences.append(
            "The models of the ensemble saw the forgotten samples and stay in the cache until somebody deletes them."
        )
        if lira.ensemble.kind == "tangent":
            sentences.append("The ensemble was made by replay in a linear model of the network, not by training.")
    if record.request.forget <= SINGLE:
        sentences.append(
            f"So few samples were forgotten ({record.request.forget}) that means and counts over them tell much of each: keep "
            "this record as you would keep them."
        )
    if shared:
        sentences.append(f"{shared} of the hold-out samples are exact copies of training samples.")
    return tuple(sentences)
