"""Parts of an audit record: tensors in, JSON-able dictionaries out. No ids: samples are named by digests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fastntk.auditing.answers import Answers
from fastntk.auditing.metrics import accuracy, mean_loss
from fastntk.base.digest import tensor_digest
from fastntk.data import Samples
from fastntk.models import card_of
from fastntk.storage.results import id_digest
from fastntk.unlearning.result import Unlearned

SCHEMA = "fastntk-audit/1"
SETS = ("retain", "forget", "holdout")
BINS = 30
MOST_LOSS = 20.0


def subject(result: Unlearned, holdout: Samples) -> dict[str, Any]:
    """Which model, data, run and result the record is about."""
    run, card = result.run, card_of(result.run.model)
    return {
        "model": type(run.model).__name__ if card is None else card.name,
        "weights": None if card is None else card.weights,
        "tuned": run.subset.numel,
        "tuned_share": run.subset.ratio,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "classes": names(run.data, classes=0),
        "samples": len(run.data),
        "holdout": len(holdout),
        "run": {"data": run.data.digest(), "tuned": tensor_digest(run.subset.get()), "anchor": tensor_digest(run.anchor)},
        "result": {"tuned": tensor_digest(result.subset.get())},
        "recipe": None if run.recipe is None else run.recipe.to_dict(),
        "method": result.method,
        "options": dict(result.details.get("options", {})),
    }


def request(result: Unlearned) -> dict[str, Any]:
    """What was asked, without naming anybody."""
    classes = names(result.run.data, classes=0)
    return {
        "forget": len(result.split.forget),
        "retain": len(result.split.retain),
        "whole_classes": [classes[label] for label in result.split.whole_classes],
        "ids_digest": result.forgotten.ids_digest(),
    }


def names(samples: Samples, *, classes: int) -> list[str]:
    """Class names, or labels as names; at least ``classes`` of them."""
    known = list(samples.classes or [])
    return known + [str(label) for label in range(len(known), max(classes, samples.num_classes))]


def accuracies(models: Mapping[str, Answers], whole: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """By set, then by model; hold-out also split into forgotten and kept classes where whole classes went."""
    out = {
        where: {name: accuracy(getattr(model, where), model.labels[where]) for name, model in models.items()} for where in SETS
    }
    labels = next(iter(models.values())).labels["holdout"]
    gone = torch.isin(labels, torch.tensor(whole, dtype=labels.dtype, device=labels.device))
    for key, mask in (("holdout_forgotten_classes", gone), ("holdout_kept_classes", ~gone)):
        if whole and bool(mask.any()):
            out[key] = {name: accuracy(model.holdout[mask], labels[mask]) for name, model in models.items()}
    return out


def losses(models: Mapping[str, Answers]) -> dict[str, dict[str, float]]:
    """Mean cross-entropy, by set, then by model."""
    return {
        where: {name: mean_loss(getattr(model, where), model.labels[where]) for name, model in models.items()} for where in SETS
    }


def flow(models: Mapping[str, Answers], classes: list[str]) -> dict[str, Any]:
    """Of the forgotten samples: how many of each true class (row) get which answer (column)."""
    size = len(classes)
    tables: dict[str, Any] = {"classes": classes}
    for name, model in models.items():
        cells = model.labels["forget"] * size + model.forget.argmax(1)
        tables[name] = torch.bincount(cells, minlength=size * size).reshape(size, size).tolist()
    return tables


def loss_histogram(models: Mapping[str, Answers]) -> dict[str, Any]:
    """Counts of losses between common edges; what lies above the last is counted in the last bin."""
    values = {name: {where: sample_losses(model, where) for where in SETS} for name, model in models.items()}
    pooled = np.concatenate([part for parts in values.values() for part in parts.values()])
    pooled = pooled[np.isfinite(pooled)]
    top = float(np.clip(np.quantile(pooled, 0.995), 1e-3, MOST_LOSS)) if len(pooled) else 1.0
    edges = np.linspace(0, top, BINS + 1)

    def counts(part: Any) -> list[int]:
        clipped = np.clip(np.nan_to_num(part, nan=top, posinf=top), 0, top)
        return [int(count) for count in np.histogram(clipped, edges)[0]]

    table: dict[str, Any] = {"edges": [float(f"{edge:.6g}") for edge in edges]}
    for name, parts in values.items():
        table[name] = {where: counts(part) for where, part in parts.items()}
    return table


def sample_losses(model: Answers, where: str) -> Any:
    """Cross-entropy of each sample of a set, a numpy array (n,)."""
    return F.cross_entropy(getattr(model, where).double(), model.labels[where], reduction="none").cpu().numpy()


def forgotten_samples(models: Mapping[str, Answers], result: Unlearned, classes: list[str]) -> list[dict[str, Any]]:
    """One entry a forgotten sample: a digest of its id, its label, and each model's answer and loss."""
    samples = result.forgotten
    data_digest = result.run.data.digest()
    answered = {name: model.forget.argmax(1).tolist() for name, model in models.items()}
    lost = {name: sample_losses(model, "forget").tolist() for name, model in models.items()}
    return [
        {
            "digest": id_digest(samples.ids[row], data_digest=data_digest),
            "label": classes[label],
            **{name: classes[answers[row]] for name, answers in answered.items()},
            "loss": {name: float(f"{values[row]:.6g}") for name, values in lost.items()},
        }
        for row, label in enumerate(samples.labels.tolist())
    ]


def cost(result: Unlearned, retrain: Unlearned | None) -> dict[str, Any]:
    """Seconds and memory of unlearning, beside Retrain's seconds."""
    seconds = None if retrain is None else retrain.seconds
    stages = dict(result.details.get("seconds", {}))
    return {
        "seconds": result.seconds,
        "retrain_seconds": seconds,
        "ratio_to_retrain": None if not seconds else result.seconds / seconds,
        "peak_memory_bytes": result.details.get("peak_memory_bytes"),
        "stages": stages,
        # A linearisation was handed in: its rows are in no stage.
        "rows_made_before": "rows" in result.details and "rows" not in stages,
    }


def plain(value: Any) -> Any:
    """The same with every number that JSON does not know (NaN, infinite) as None, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Tensor | np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
