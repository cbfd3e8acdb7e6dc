"""Which models an audit compares with, and whether what was handed in belongs together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import torch

from fastntk.auditing.sections import class_names
from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.models.card import fingerprint_of
from fastntk.training.network import check_samples
from fastntk.training.run import Run
from fastntk.unlearning import prepare
from fastntk.unlearning.baselines.own_training import Retrainer, function_name, own_seed
from fastntk.unlearning.result import Unlearned

Reference = Unlearned | Sequence[Unlearned] | Literal["retrain"] | None
MOST_SHARED = 0.01
"""Samples that may be in both training and hold-out data, as a share of the smaller: real data has a few copies."""


def references(
    run: Run, result: Unlearned, reference: Reference, *, retrains: int, retrain: Retrainer | None = None
) -> list[Unlearned]:
    """Retrains, the one with the run's own seed first; none where no reference is wanted.

    ``"retrain"`` makes it and ``retrains`` more with the seeds that follow, by the recipe or by the function ``retrain``; given
    ones are checked and nothing is made.
    """
    if reference is None:
        return []
    if isinstance(reference, str):
        return _retrained(run, result, reference, retrains=retrains, retrain=retrain)
    results = [reference] if isinstance(reference, Unlearned) else list(reference)
    for item in results:
        _check_reference(run, result, item)
    if not results:
        raise InputError("reference is an empty list: give None, 'retrain', or results of unlearn(..., method='retrain').")
    own = own_seed(run)
    first = results[0].details.get("seed")
    if first != own:
        raise InputError(
            f"The (first) reference must be a Retrain with the run's own seed {own}, so that only the data differs; it has seed "
            f"{first}. Make it with unlearn(run, ..., method='retrain'), or give reference='retrain'."
        )
    seeds = [item.details.get("seed") for item in results]
    if len(set(seeds)) != len(seeds):
        raise InputError(f"The references must have different seeds; got {seeds}.")
    return results


def _retrained(run: Run, result: Unlearned, kind: str, *, retrains: int, retrain: Retrainer | None) -> list[Unlearned]:
    if kind != "retrain":
        raise InputError(f"reference must be None, 'retrain' or a result of unlearn(..., method='retrain'); got {kind!r}.")
    if run.recipe is None and retrain is None:
        raise InputError(
            "reference='retrain' repeats the run's recipe, and the run has none. Give a training function of your own: "
            "retrain=function (--retrain-with MODULE:FUNCTION); or the recipe, Run(..., recipe=Recipe(...)) with the settings "
            "the model was fine-tuned with; or leave the reference out, and the record will say that there is none."
        )
    if retrains < 0:
        raise InputError(f"retrains counts further Retrains: 0 or more, got {retrains}.")
    own = {} if retrain is None else {"retrain": retrain}
    models: list[Unlearned] = []
    seed_by_digest: dict[str, int] = {}
    for seed in range(own_seed(run), own_seed(run) + retrains + 1):
        retrained = prepare(run, split=result.split, method="retrain", options={"seed": seed, **own}).execute()
        digest = json_digest(fingerprint_of(retrained.model))
        if retrain is not None and digest in seed_by_digest:
            raise InputError(
                f"{function_name(retrain)} gave the same weights for the seeds {seed_by_digest[digest]} and {seed}: how "
                "far two Retrains lie apart is then not seen. Let it draw by the seed it is given, or ask for no further ones "
                "(retrains=0)."
            )
        seed_by_digest[digest] = seed
        models.append(retrained)
    return models


def _check_reference(run: Run, result: Unlearned, item: object) -> None:
    if not isinstance(item, Unlearned):
        raise InputError(
            f"reference must be None, 'retrain' or a result of unlearn(..., method='retrain'); got {type(item).__name__}."
        )
    if item.method != "retrain":
        raise InputError(f"The reference was made by method {item.method!r}: only a Retrain can be the reference.")
    check_result(run, item, what="reference")
    if not torch.equal(item.split.forget, result.split.forget):
        raise InputError(
            f"The reference forgot {len(item.split.forget)} samples, the result {len(result.split.forget)}, and they are not the "
            "same ones: make the Retrain for the same request."
        )


def check_result(run: Run, result: Unlearned, *, what: str = "result") -> None:
    """Refuse a result of another run, and a run without the images that an audit looks at."""
    if not isinstance(result, Unlearned):
        raise InputError(f"audit takes a result of unlearn(...); got {type(result).__name__} as the {what}.")
    if run.samples is None:
        raise InputError(
            f"{run.lacks_images('an audit')} What can be said without them is in result.details, and fastntk.predict(model, "
            "inputs) shows what a model makes of hold-out images."
        )
    origin = result.run
    if origin is run:
        return
    same = (
        origin.subset.names == run.subset.names
        and torch.equal(origin.subset.get(), run.subset.get())
        and torch.equal(origin.anchor, run.anchor)
        and origin.data.digest() == run.data.digest()
    )
    if not same:
        raise InputError(f"The {what} was made from another run (other weights, anchor or data): give it with its own run.")


def check_holdout(run: Run, holdout: Samples) -> int:
    """Refuse a hold-out set that does not fit the model; return how many of its samples are training samples too."""
    if not isinstance(holdout, Samples):
        raise InputError(f"holdout must be Samples that were not trained on; got {type(holdout).__name__}.")
    if len(holdout) == 0:
        raise InputError("The hold-out set is empty: give samples of the same classes that were not trained on.")
    if holdout.inputs.shape[1:] != run.data.inputs.shape[1:]:
        raise InputError(
            f"Hold-out inputs have shape {tuple(holdout.inputs.shape[1:])}, the run's {tuple(run.data.inputs.shape[1:])}: "
            "prepare both in the same way."
        )
    classes = check_samples(run.model, holdout)
    ours, theirs = (class_names(samples, classes=classes) for samples in (run.data, holdout))
    if run.data.classes is not None and holdout.classes is not None and ours != theirs:
        named = [class_names(samples, classes=0)[:8] for samples in (holdout, run.data)]
        raise InputError(
            f"The hold-out set names its classes {named[0]}, the run {named[1]}: load it by "
            "load_source(..., classes=run.data.classes), which matches labels by name."
        )
    training = set(_content(run.data))
    overlap = sum(digest in training for digest in _content(holdout))
    if overlap > max(1, MOST_SHARED * min(len(holdout), len(run.data))):
        raise InputError(
            f"{overlap} of {len(holdout)} hold-out samples are training samples of this run: give samples it never saw."
        )
    return overlap


def _content(samples: Samples) -> list[bytes]:
    rows = samples.inputs.detach().cpu().contiguous()
    return [hashlib.sha256(row.reshape(-1).view(torch.uint8).numpy().data).digest() for row in rows]
