"""How far a model is from Retrain: pure functions of predictions and tuned vectors, in float64.

total variation   mean over samples of ½ Σ_c |p_c − q_c|                                    0 … 1
Jensen–Shannon    mean over samples of ½ KL(p‖m) + ½ KL(q‖m),  m = (p + q)/2,  in nats      0 … log 2
agreement         share of samples on which both predict the same class                     0 … 1
log probability   root mean square over samples of log p_y − log q_y,  y the label,  in nats
weights           ‖w − w_retrain‖ / ‖w_retrain − w0‖                                        0 = the same
recovered         (L − L_full) / (L_retrain − L_full),  L the mean loss of D_f              1 = as Retrain
tug-of-war        Π over forget, retain, hold-out of 1 − |accuracy − accuracy of Retrain|   1 = as Retrain
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from fastntk.auditing.metrics import accuracy, mean_loss, recovered, total_variation
from fastntk.auditing.predictions import Predictions
from fastntk.auditing.record_figures import Distance, Places, RetrainFigures, SetAccuracies, SetLosses
from fastntk.base.errors import InputError
from fastntk.base.schema import finite

SETS = ("forget", "holdout")
"""Where distances are taken. On the retained samples both models were trained, which says little."""


def jensen_shannon(p: Tensor, q: Tensor) -> float:
    """Mean Jensen–Shannon divergence, in nats, of two sets of class probabilities (n, C)."""
    if p.shape != q.shape or p.dim() != 2 or len(p) == 0:
        raise InputError(f"jensen_shannon compares two (n, C) sets of probabilities; got {tuple(p.shape)} and {tuple(q.shape)}.")
    first, second = p.double(), q.double()
    middle = (first + second) / 2
    # x log x at 0 is 0, which xlogy knows; where the middle is 0, both are.
    terms = torch.xlogy(first, first / middle.clamp_min(1e-300)) + torch.xlogy(second, second / middle.clamp_min(1e-300))
    return float((0.5 * terms.sum(1)).mean().clamp_min(0.0))


def agreement(first: Tensor, second: Tensor) -> float:
    """Share of samples on which two sets of scores (n, C) have their largest at the same class."""
    if first.shape != second.shape or first.dim() != 2 or len(first) == 0:
        raise InputError(f"agreement compares two (n, C) sets of scores; got {tuple(first.shape)} and {tuple(second.shape)}.")
    return float((first.argmax(1) == second.argmax(1)).double().mean())


def weight_distance(vector: Tensor, reference: Tensor, anchor: Tensor) -> float | None:
    """‖w − w_retrain‖ / ‖w_retrain − w0‖ of tuned vectors (d,); None where Retrain did not move."""
    w, retrained, w0 = (each.cpu().double() for each in (vector, reference, anchor))
    reach = (retrained - w0).norm()
    return None if reach == 0 else float((w - retrained).norm() / reach)


def tug_of_war(accuracies: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Π of 1 − |accuracy − Retrain's| over the sets that both have, fractions; 1 where all agree."""
    product = 1.0
    # In the order given: that of a set would differ between processes, and with it the last bit.
    for name in [name for name in accuracies if name in reference]:
        product *= 1 - abs(accuracies[name] - reference[name])
    return product


def compare(candidate: Predictions, reference: Predictions, *, full: Predictions, anchor: Tensor) -> Distance:
    """Every distance of one model to a Retrain; a figure is None where outputs are not numbers."""
    return Distance(
        total_variation=_places(candidate, reference, _of_probabilities(total_variation)),
        jensen_shannon=_places(candidate, reference, _of_probabilities(jensen_shannon)),
        agreement=_places(candidate, reference, agreement),
        weights=finite(weight_distance(candidate.vector, reference.vector, anchor)),
        recovered=finite(recovered(*(mean_loss(model.forget, model.labels["forget"]) for model in (candidate, full, reference)))),
        tug_of_war=tug_of_war(asdict(accuracies(candidate)), asdict(accuracies(reference))),
        log_probability=Places(**{name: _log_probability(candidate, reference, name) for name in SETS}),
    )


def accuracies(model: Predictions) -> SetAccuracies:
    """Accuracy on retained, forgotten and held-out samples."""
    return SetAccuracies(
        retain=accuracy(model.retain, model.labels["retain"]),
        forget=accuracy(model.forget, model.labels["forget"]),
        holdout=accuracy(model.holdout, model.labels["holdout"]),
    )


def figures(model: Predictions) -> RetrainFigures:
    """What a Retrain gets by itself: accuracies and losses."""
    losses = {name: finite(mean_loss(getattr(model, name), model.labels[name])) for name in ("retain", "forget", "holdout")}
    return RetrainFigures(accuracy=accuracies(model), loss=SetLosses(**losses))


def mean_of(distances: Sequence[Distance]) -> Distance:
    """The average of several distances, figure by figure; None where any is None."""

    def places(name: str) -> Places:
        each = [getattr(distance, name) for distance in distances]
        return Places(forget=_mean([place.forget for place in each]), holdout=_mean([place.holdout for place in each]))

    return Distance(
        total_variation=places("total_variation"),
        jensen_shannon=places("jensen_shannon"),
        agreement=places("agreement"),
        weights=_mean([distance.weights for distance in distances]),
        recovered=_mean([distance.recovered for distance in distances]),
        tug_of_war=sum(distance.tug_of_war for distance in distances) / len(distances),
        log_probability=places("log_probability"),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None


def _places(first: Predictions, second: Predictions, distance: Callable[[Tensor, Tensor], float | None]) -> Places:
    """A distance on the sets of ``SETS``."""
    return Places(**{name: distance(getattr(first, name), getattr(second, name)) for name in SETS})


def _log_probability(first: Predictions, second: Predictions, name: str) -> float | None:
    """How far two models' log probabilities of the labels lie apart; the mean loss of few samples scatters by that."""
    labels = first.labels[name].unsqueeze(1)
    logs = [getattr(model, name).double().log_softmax(1).gather(1, labels) for model in (first, second)]
    return finite(float((logs[0] - logs[1]).square().mean().sqrt()))


def _of_probabilities(distance: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float | None]:
    """A distance of probabilities, taken of logits (n, C); None where these are not numbers."""

    def of_logits(first: Tensor, second: Tensor) -> float | None:
        if not (torch.isfinite(first).all() and torch.isfinite(second).all()):
            return None
        return distance(first.double().softmax(1), second.double().softmax(1))

    return of_logits
