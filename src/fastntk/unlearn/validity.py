"""Does the network do what the linear model said it would?

After a step Δ the predicted logits are f_θ + JΔ (or those of the path model); the actual ones take a forward pass. On
each of three sets (retained samples, forgotten samples, and a probe batch of inputs nobody trained on)

    error = ‖actual − predicted‖ / ‖predicted − f_θ‖        logits centred per sample, as softmax sees them

0 is a perfectly linear step; at 1 the prediction is no better than "nothing changes". Above ``SEARCH`` on any set the
step length is searched; above ``RETRAIN`` on the retained samples after that, the result says "retrain instead".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastntk.data import Split
from fastntk.run import Run
from fastntk.tangent import TangentOperator
from fastntk.training import predict
from fastntk.unlearn.linearisation import Linearisation, working_copy

SEARCH = 0.6
RETRAIN = 0.8
LENGTHS = (1.0, 0.75, 0.5, 0.25, 1.25)
MOST = 256
"""Samples of each set that are looked at, evenly spaced."""


def check_step(
    run: Run, linearisation: Linearisation, split: Split, delta: Tensor, predicted: Callable[[Tensor], Tensor] | None
) -> tuple[float, dict[str, Any]]:
    """Return the step length to take and the JSON-able evidence.

    ``predicted(batch)`` gives the logits (k, C) that the method expects at θ + Δ; None means f_θ + JΔ.
    """
    if predicted is None:
        predicted = lambda batch: linearisation.outputs[batch] + linearisation.rows.subset(batch).matvec(delta)
    work = working_copy(run)
    subset = run.subset.on(work)
    sets: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for name, indices in (("retain", split.retain), ("forget", split.forget)):
        if len(indices):
            some = indices[torch.linspace(0, len(indices) - 1, min(MOST, len(indices))).round().long()]
            sets[name] = (run.data.inputs[some], linearisation.outputs[some], predicted(some))
    probe = _probe(run, split)
    if probe is not None:
        operator = TangentOperator(work, subset, probe)
        before = predict(work, probe)
        sets["probe"] = (probe, before, before + operator.matvec(delta))

    def errors(length: float) -> dict[str, float]:
        subset.set(linearisation.theta + length * delta)
        return {name: _error(predict(work, inputs), then, expected) for name, (inputs, then, expected) in sets.items()}

    by_length = {1.0: errors(1.0)}
    chosen = 1.0
    if max(by_length[1.0].values(), default=0.0) > SEARCH:
        for length in LENGTHS[1:]:
            by_length[length] = errors(length)
        chosen = min(by_length, key=lambda length: (sum(by_length[length].values()), abs(length - 1)))
    final = by_length[chosen]
    trusted = final.get("retain", 0.0) <= RETRAIN
    verdict = "ok" if trusted else "retrain instead"
    return chosen, {
        "verdict": verdict,
        "error": final,
        "error_at_full_step": by_length[1.0],
        "step_length": chosen,
        "searched": {str(length): value for length, value in by_length.items()} if len(by_length) > 1 else None,
        "thresholds": {"search": SEARCH, "retrain": RETRAIN},
        "definition": "‖actual − predicted‖ / ‖predicted − before‖ of centred logits; at 1 the prediction is useless",
    }


def _probe(run: Run, split: Split) -> Tensor | None:
    """Averages of pairs of retained inputs: never trained on, and no hold-out data is needed."""
    if len(split.retain) < 2:
        return None
    count = min(32, len(split.retain) // 2)
    picks = split.retain[torch.linspace(0, len(split.retain) - 1, 2 * count).round().long()]
    inputs = run.data.inputs[picks]
    return 0.5 * (inputs[:count] + inputs[count:])


def _error(actual: Tensor, before: Tensor, predicted: Tensor) -> float:
    def centre(z: Tensor) -> Tensor:
        return z.double() - z.double().mean(1, keepdim=True)

    change = (centre(predicted) - centre(before)).norm()
    miss = (centre(actual) - centre(predicted)).norm()
    return 0.0 if miss == 0 else float(miss / change.clamp_min(1e-12 * (1 + centre(before).norm())))
