"""How far a model is from Retrain: pure functions of answers and tuned vectors, in float64.

total variation   mean over samples of ½ Σ_c |p_c − q_c|                                    0 … 1
Jensen–Shannon    mean over samples of ½ KL(p‖m) + ½ KL(q‖m),  m = (p + q)/2,  in nats      0 … log 2
agreement         share of samples on which both give the same answer                       0 … 1
weights           ‖w − w_retrain‖ / ‖w_retrain − w0‖                                        0 = the same
recovered         (L − L_full) / (L_retrain − L_full),  L the mean loss of D_f              1 = as Retrain
tug-of-war        Π over forget, retain, hold-out of 1 − |accuracy − accuracy of Retrain|   1 = as Retrain
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastntk.auditing.answers import Answers
from fastntk.auditing.metrics import accuracy, mean_loss, recovered, total_variation
from fastntk.base.errors import InputError

SETS = ("forget", "holdout")
"""Where distances are taken. On the retained samples both models were trained, which says little."""


def jensen_shannon(p: Tensor, q: Tensor) -> float:
    """Mean Jensen–Shannon divergence, in nats, of two sets of class probabilities (n, C)."""
    if p.shape != q.shape or p.dim() != 2 or len(p) == 0:
        raise InputError(f"jensen_shannon compares two (n, C) sets of probabilities; got {tuple(p.shape)} and {tuple(q.shape)}.")
    one, two = p.double(), q.double()
    middle = (one + two) / 2
    # x log x at 0 is 0, which xlogy knows; where the middle is 0, both are.
    terms = torch.xlogy(one, one / middle.clamp_min(1e-300)) + torch.xlogy(two, two / middle.clamp_min(1e-300))
    return float((0.5 * terms.sum(1)).mean().clamp_min(0.0))


def agreement(one: Tensor, two: Tensor) -> float:
    """Share of samples on which two sets of scores (n, C) have their largest at the same class."""
    if one.shape != two.shape or one.dim() != 2 or len(one) == 0:
        raise InputError(f"agreement compares two (n, C) sets of scores; got {tuple(one.shape)} and {tuple(two.shape)}.")
    return float((one.argmax(1) == two.argmax(1)).double().mean())


def weight_distance(vector: Tensor, reference: Tensor, anchor: Tensor) -> float | None:
    """‖w − w_retrain‖ / ‖w_retrain − w0‖ of tuned vectors (d,); None where Retrain did not move."""
    reach = (reference.double() - anchor.double()).norm()
    return None if reach == 0 else float((vector.double() - reference.double()).norm() / reach)


def tug_of_war(accuracies: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Π of 1 − |accuracy − Retrain's| over the sets that both have, fractions; 1 where all agree."""
    product = 1.0
    for name in accuracies.keys() & reference.keys():
        product *= 1 - abs(accuracies[name] - reference[name])
    return product


def compare(one: Answers, reference: Answers, *, full: Answers, anchor: Tensor) -> dict[str, Any]:
    """Every distance of one model to a Retrain; a figure is None where outputs are not numbers. JSON-able."""
    sets = {name: (getattr(one, name), getattr(reference, name)) for name in SETS}
    return {
        "total_variation": {name: _probabilities(total_variation, *pair) for name, pair in sets.items()},
        "jensen_shannon": {name: _probabilities(jensen_shannon, *pair) for name, pair in sets.items()},
        "agreement": {name: agreement(*pair) for name, pair in sets.items()},
        "weights": weight_distance(one.vector, reference.vector, anchor),
        "recovered": recovered(*(mean_loss(model.forget, model.labels["forget"]) for model in (one, full, reference))),
        "tug_of_war": tug_of_war(accuracies(one), accuracies(reference)),
    }


def accuracies(model: Answers) -> dict[str, float]:
    """Accuracy on retained, forgotten and held-out samples."""
    return {name: accuracy(getattr(model, name), model.labels[name]) for name in ("retain", "forget", "holdout")}


def mean_of(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The average of several results of :func:`compare`, figure by figure; None where any is None."""

    def average(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: average([value[name] for value in values]) for name in values[0]}
        return None if any(value is None for value in values) else sum(values) / len(values)

    result: dict[str, Any] = average(records)
    return result


def _probabilities(distance: Any, one: Tensor, two: Tensor) -> float | None:
    if not (torch.isfinite(one).all() and torch.isfinite(two).all()):
        return None
    value: float = distance(one.double().softmax(1), two.double().softmax(1))
    return value
