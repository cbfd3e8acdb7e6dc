"""The models of the path experiment: ``path/<request>/<model>-seed<k>.safetensors`` holds a tuned vector and its logits on D_f
and the hold-out set, beside the trained weights of :mod:`fastntk.reproduce.experiment`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from fastntk.auditing import accuracy, mean_loss, recovered, total_variation, weight_distance
from fastntk.auditing.metrics import margins
from fastntk.auditing.ulira import logit_confidence
from fastntk.base.atomic import write_file
from fastntk.base.digest import json_digest, tensor_digest
from fastntk.reproduce.experiment import Experiment
from fastntk.reproduce.setting import Request
from fastntk.training.network import predict

SCHEMA = "fastntk-path/1"
"""Of a seed's record."""
SETS = ("forget", "holdout")


@dataclass(frozen=True, eq=False)
class Outputs:
    """A tuned vector (d,), its logits (n, C) on D_f and the hold-out set, their labels, and the accuracy on retained samples."""

    vector: Tensor
    forget: Tensor
    holdout: Tensor
    labels: dict[str, Tensor]
    retain_accuracy: float

    @property
    def finite(self) -> bool:
        """Whether all logits are numbers."""
        return bool(torch.isfinite(self.forget).all() and torch.isfinite(self.holdout).all())


def outputs_of(experiment: Experiment, request: Request, vector: Tensor, path: Path) -> Outputs:
    """The logits of a tuned vector: read where they are of this vector on this data, else made and kept."""
    split = experiment.split(request)
    samples, forgotten = experiment.samples, experiment.samples.subset(split.forget)
    holdout = experiment.holdout
    identity = json_digest([experiment.identity, holdout.digest(), forgotten.ids_digest(), tensor_digest(vector)])
    stored = read_outputs(path, identity=identity)
    if stored is not None:
        return stored
    model = experiment.model_with(vector)
    retained = samples.subset(split.retain)
    outputs = Outputs(
        vector=vector,
        forget=predict(model, forgotten.inputs),
        holdout=predict(model, holdout.inputs),
        labels={"forget": forgotten.labels, "holdout": holdout.labels},
        retain_accuracy=accuracy(predict(model, retained.inputs), retained.labels),
    )
    tensors = {"vector": outputs.vector, "forget": outputs.forget, "holdout": outputs.holdout}
    tensors |= {f"{name}_labels": labels for name, labels in outputs.labels.items()}
    header = {"identity": identity, "retain_accuracy": json.dumps(outputs.retain_accuracy)}
    write_file(path, save({name: value.contiguous() for name, value in tensors.items()}, metadata=header), overwrite=True)
    return outputs


def read_outputs(path: Path, *, identity: str | None = None) -> Outputs | None:
    """Logits that are kept; None where there are none, or (with ``identity``) they are of something else."""
    if not path.exists():
        return None
    with safetensors.safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        if identity is not None and header.get("identity") != identity:
            return None
        labels = {name: file.get_tensor(f"{name}_labels") for name in SETS}
        vector, forget, holdout = (file.get_tensor(name) for name in ("vector", *SETS))
    return Outputs(vector, forget, holdout, labels, json.loads(header["retain_accuracy"]))


def outputs_file(folder: Path, request: Request, model: str, seed: int) -> Path:
    """Where the logits of a model lie, below the folder of trained weights."""
    return folder / "path" / request.name / f"{model}-seed{seed}.safetensors"


def own_figures(outputs: Outputs) -> dict[str, Any]:
    """JSON-able figures of one model; confidences log p_y/(1 − p_y) of the forgotten samples are what U-LiRA compares."""
    labels, finite = outputs.labels, outputs.finite
    confidences = logit_confidence(outputs.forget, labels["forget"]).tolist() if finite else None
    return {
        "accuracy": {
            "retain": outputs.retain_accuracy,
            "forget": accuracy(outputs.forget, labels["forget"]),
            "holdout": accuracy(outputs.holdout, labels["holdout"]),
        },
        "loss": mean_loss(outputs.forget, labels["forget"]),
        "margin": float(margins(outputs.forget, labels["forget"]).mean()),
        "confidences": None if confidences is None else [round(value, 4) for value in confidences],
    }


def compared(outputs: Outputs, *, retrain: Outputs, full: Outputs, anchor: Tensor) -> dict[str, Any]:
    """JSON-able: how far a model is from the same seed's Retrain."""
    losses = [mean_loss(each.forget, each.labels["forget"]) for each in (outputs, full, retrain)]
    return {
        "same": variation(outputs, retrain),
        "weights": weight_distance(outputs.vector, retrain.vector, anchor),
        "recovered": recovered(*losses),
    }


def variation(first: Outputs, second: Outputs) -> dict[str, float] | None:
    """Total variation of two models on D_f and the hold-out set; None where logits are not numbers."""
    if not (first.finite and second.finite):
        return None
    pairs = {name: [getattr(each, name).double().softmax(1) for each in (first, second)] for name in SETS}
    return {name: total_variation(*pair) for name, pair in pairs.items()}
