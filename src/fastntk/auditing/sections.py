"""Parts of an audit record from tensors: predictions in, the record's dataclasses out. Nothing of a single sample goes in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import UNSET
from torch import Tensor

from fastntk.auditing.metrics import accuracy, mean_loss
from fastntk.auditing.predictions import Predictions
from fastntk.auditing.record import Cost, Outside, RequestSummary, ResultDigests, RunDigests, Subject
from fastntk.auditing.record_figures import SETS, Accuracies, Flow, Fractions, Losses, LossHistogram, Numbers, SetCounts
from fastntk.auditing.roc import Array
from fastntk.base.digest import tensor_digest
from fastntk.base.schema import finite
from fastntk.data import Samples
from fastntk.data.catalog import is_hidden
from fastntk.models import card_of
from fastntk.training.run import Run
from fastntk.unlearning.residue import outside_report
from fastntk.unlearning.result import Unlearned

BINS = 30
MOST_LOSS = 20.0


def subject(result: Unlearned, *, holdout: int, classes: tuple[str, ...], data_digest: str) -> Subject:
    """Which model, data, run and result the record is about."""
    run, card = result.run, card_of(result.run.model)
    return Subject(
        model=type(run.model).__name__ if card is None else card.name,
        weights=None if card is None else card.weights,
        tuned=run.subset.numel,
        tuned_share=run.subset.ratio,
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        classes=classes,
        samples=len(run.data),
        holdout=holdout,
        run=RunDigests(data=data_digest, tuned=tensor_digest(run.subset.get()), anchor=tensor_digest(run.anchor)),
        result=ResultDigests(tuned=tensor_digest(result.subset.get())),
        recipe=None if run.recipe is None else plain(run.recipe.to_dict()),
        method=result.method,
        options=plain(result.details.get("options", {})),
    )


def request(result: Unlearned) -> RequestSummary:
    """The request, without naming anybody."""
    classes = class_names(result.run.data, classes=0)
    return RequestSummary(
        forget=len(result.split.forget),
        retain=len(result.split.retain),
        whole_classes=tuple(classes[label] for label in result.split.whole_classes),
        ids_digest=result.ids_digest,
    )


def outside(run: Run, *, accepted: str | None) -> Outside:
    """What is known of the weights outside the tuned subset."""
    report = outside_report(run)
    return Outside(
        status=report["status"],
        message=report["message"],
        count=report.get("count", 0),
        accepted=UNSET if accepted is None else accepted,
    )


def class_names(samples: Samples, *, classes: int) -> tuple[str, ...]:
    """Class names, or labels as names (of hidden ones too); at least ``classes`` of them."""
    names = tuple(str(label) if is_hidden(name) else name for label, name in enumerate(samples.classes or ()))
    return names + tuple(str(label) for label in range(len(names), max(classes, samples.num_classes)))


def accuracies(models: Mapping[str, Predictions], whole: tuple[int, ...]) -> Accuracies:
    """By set, then by model; hold-out also split into forgotten and kept classes where whole classes went.

    Classes that an earlier request forgot are neither.
    """
    shares = {
        where: Fractions(**{name: accuracy(getattr(model, where), model.labels[where]) for name, model in models.items()})
        for where in SETS
    }
    labels_by_set = next(iter(models.values())).labels
    labels = labels_by_set["holdout"]
    forgotten_mask = torch.isin(labels, torch.tensor(whole, dtype=labels.dtype, device=labels.device))
    kept_mask = torch.isin(labels, labels_by_set["retain"].unique()) & ~forgotten_mask
    has_others = bool((~forgotten_mask & ~kept_mask).any())
    for key, mask in (("holdout_forgotten_classes", forgotten_mask), ("holdout_kept_classes", kept_mask)):
        if (whole or has_others) and bool(mask.any()):
            shares[key] = Fractions(**{name: accuracy(model.holdout[mask], labels[mask]) for name, model in models.items()})
    return Accuracies(**shares)


def losses(models: Mapping[str, Predictions]) -> Losses:
    """Mean cross-entropy, by set, then by model."""

    def mean(where: str) -> Numbers:
        return Numbers(**{name: finite(mean_loss(getattr(model, where), model.labels[where])) for name, model in models.items()})

    return Losses(retain=mean("retain"), forget=mean("forget"), holdout=mean("holdout"))


def flow(models: Mapping[str, Predictions], classes: tuple[str, ...]) -> Flow:
    """Of the forgotten samples: how many of each true class (row) get which prediction (column); outputs of NaN are none."""
    size = len(classes)
    tables = {}
    for name, model in models.items():
        cells = model.labels["forget"] * size + model.forget.argmax(1)
        counts = torch.bincount(cells[~model.forget.isnan().any(1)], minlength=size * size).tolist()
        tables[name] = tuple(tuple(counts[low:high]) for low, high in pairwise(range(0, size * size + 1, size)))
    return Flow(classes=classes, **tables)


def loss_histogram(models: Mapping[str, Predictions]) -> LossHistogram:
    """Counts of losses between common edges; what lies above the last is counted in the last bin."""
    values = {name: {where: sample_losses(model, where) for where in SETS} for name, model in models.items()}
    all_losses = np.concatenate([part for parts in values.values() for part in parts.values()])
    all_losses = all_losses[np.isfinite(all_losses)]
    top = float(np.clip(np.quantile(all_losses, 0.995), 1e-3, MOST_LOSS)) if len(all_losses) else 1.0
    top = float(f"{top:.2g}")  # the quantile itself may be the loss of one sample
    edges = np.linspace(0, top, BINS + 1)

    def counts(part: Array) -> tuple[int, ...]:
        clipped = np.clip(np.nan_to_num(part, nan=top, posinf=top), 0, top)
        return tuple(int(count) for count in np.histogram(clipped, edges)[0])

    tables = {name: SetCounts(**{where: counts(part) for where, part in parts.items()}) for name, parts in values.items()}
    return LossHistogram(edges=tuple(float(f"{edge:.6g}") for edge in edges), **tables)


def sample_losses(model: Predictions, where: str) -> Array:
    """Cross-entropy of each sample of a set, (n,)."""
    return np.asarray(F.cross_entropy(getattr(model, where).double(), model.labels[where], reduction="none").cpu().numpy())


def cost(result: Unlearned, retrain: Unlearned | None, *, audit_seconds: float) -> Cost:
    """Seconds and memory of unlearning, beside Retrain's seconds and the audit's own."""
    seconds = None if retrain is None else retrain.seconds
    stages = plain(result.details.get("seconds", {}))
    return Cost(
        seconds=result.seconds,
        retrain_seconds=seconds,
        ratio_to_retrain=None if not seconds else result.seconds / seconds,
        peak_memory_bytes=result.details.get("peak_memory_bytes"),
        stages=stages,
        # A linearisation was handed in: its rows are in no stage.
        rows_made_before=("rows" in result.details and "rows" not in stages) or bool(result.details.get("rows_reused")),
        audit_seconds=audit_seconds,
    )


def plain(value: Any) -> Any:
    """The same with every number that JSON does not know (NaN, infinite) as None, tuples as lists, tensors as numbers."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Tensor | np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
