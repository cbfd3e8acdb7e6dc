"""What the comparison of methods adds to a record: further distances, a membership attack, and the material of ensembles.

    js, agreement, tug_of_war     to the Retrain of the run's seed; definitions in :mod:`fastntk.auditing.distances`
    population                    the attack that tells forgotten samples from hold-out samples of their classes
    confidences, margins          log p_y/(1 − p_y) and z_y − max z of every forgotten sample

U-LiRA and KLoM compare ensembles: the page forms them from the confidences and margins of all seeds. Positions are those of the
request, and say nothing of an id.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastntk.auditing.distances import agreement, jensen_shannon, tug_of_war
from fastntk.auditing.membership import attack_features, population_attack
from fastntk.auditing.metrics import margins
from fastntk.auditing.ulira import logit_confidence
from fastntk.experiments.measure import Scene, View


def evidence(scene: Scene, view: View, *, seed: int) -> dict[str, Any]:
    """JSON-able; figures are None where the model's outputs are not numbers, as after a diverged ascent."""
    bench, forget = scene.bench, scene.split.forget
    labels, reference = bench.samples.labels[forget], scene.retrain(seed)
    if not (torch.isfinite(view.data).all() and torch.isfinite(view.holdout).all()):
        return {"distances": None, "population": None, "confidences": None, "margins": None}
    pairs = {"forget": (view.data[forget], reference.data[forget]), "holdout": (view.holdout, reference.holdout)}
    seen = (bench.holdout.labels[:, None] == labels.unique()).any(1)
    attack = population_attack(
        attack_features(view.data[forget], labels), attack_features(view.holdout[seen], bench.holdout.labels[seen])
    )
    return {
        "distances": {
            "jensen_shannon": {
                name: jensen_shannon(*(logits.double().softmax(1) for logits in pair)) for name, pair in pairs.items()
            },
            "agreement": {name: agreement(*pair) for name, pair in pairs.items()},
            "tug_of_war": tug_of_war(scene.accuracies(view), scene.accuracies(reference)),
        },
        "population": {name: getattr(attack, name) for name in ("auc", "auc_standard_error", "tpr_at_1pct_fpr")},
        "confidences": _digits(logit_confidence(view.data[forget], labels)),
        "margins": _digits(margins(view.data[forget], labels)),
    }


def _digits(values: Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]
