"""What the linearised methods do with their update Δ: check it on the network, shorten it where that disagrees, and report.

Does the network do what the linear model said it would?

After a step Δ the predicted logits are f_θ + JΔ (or those of the path model); the actual ones take a forward pass. On
each of three sets (retained samples, forgotten samples, and a probe batch of inputs nobody trained on)

    error = ‖actual − predicted‖ / ‖predicted − f_θ‖        logits centred per sample, as softmax sees them

0 is a perfectly linear step; at 1 the prediction is no better than "nothing changes". Above ``SEARCH`` on any set the step
length is searched. The result says "retrain instead" where, after that, the error on the retained samples is above ``RETRAIN``,
the retained samples lost more than ``DROP`` of their accuracy and more than ``FEW`` of them went wrong, or the
replay of all samples missed θ by more than ``MISS`` of the way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.tangent import TangentOperator
from fastntk.tangent.linearisation import Linearisation
from fastntk.training.network import predict
from fastntk.training.run import Run
from fastntk.tuning import Subset
from fastntk.unlearning.method import Outcome, Task

SEARCH = 0.6
RETRAIN = 0.8
DROP = 0.05
FEW = 2
"""Of a handful of retained samples, this many may go wrong without that meaning anything."""
MISS = 0.5
LENGTHS = (1.0, 0.75, 0.5, 0.25, 1.25)
MOST = 256
"""Samples of each set that are looked at, evenly spaced."""


def checked_update(
    task: Task,
    lin: Linearisation,
    delta: Tensor,
    details: dict[str, Any],
    predicted: Callable[[Tensor], Tensor] | None,
    *,
    validate: bool,
    miss: float = 0.0,
) -> Outcome:
    """Check the step, shorten it where the network disagrees, and report."""
    if not torch.isfinite(delta).all():
        raise InputError("The update is not finite: raise the damping, or check the inputs and weights for NaN.")
    length = 1.0
    details["rows"] = lin.routes | {"at": lin.at, "kept": lin.place}
    if validate and bool((delta != 0).any()):
        started = time.perf_counter()
        length, details["validity"] = check_step(task.run, lin, task.split, delta, predicted, miss=miss)
        task.stages["validity"] = time.perf_counter() - started
    else:
        details["validity"] = {"verdict": "ok" if not bool((delta != 0).any()) else "not checked", "step_length": 1.0}
    return Outcome(lin.theta + length * delta, details)


def check_step(
    run: Run,
    linearisation: Linearisation,
    split: Split,
    delta: Tensor,
    predicted: Callable[[Tensor], Tensor] | None,
    *,
    miss: float = 0.0,
) -> tuple[float, dict[str, Any]]:
    """Return the step length to take and the JSON-able evidence.

    ``predicted(batch)`` gives the logits (k, C) that the method expects at θ + Δ; None means f_θ + JΔ. ``miss``: how far
    the replay of all samples ended from θ.
    """
    if predicted is None:
        predicted = lambda batch: linearisation.outputs[batch] + linearisation.rows.subset(batch).matvec(delta)
    engine = linearisation.engine
    work, subset = engine.model, engine.subset
    sets: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for name, indices in (("retain", split.retain), ("forget", split.forget)):
        if len(indices):
            few = some(indices)
            sets[name] = (run.data.inputs[few], linearisation.outputs[few], predicted(few))
    with engine.lock, _restored(linearisation):
        subset.set(linearisation.theta)
        probe = _probe(run, split)
        if probe is not None:
            operator = TangentOperator(work, subset, probe, engine=engine)
            now = predict(work, probe)
            sets["probe"] = (probe, now, now + operator.matvec(delta))

        def errors(length: float) -> dict[str, float]:
            subset.set(linearisation.theta + length * delta)
            return {
                name: prediction_error(predict(work, inputs), then, expected) for name, (inputs, then, expected) in sets.items()
            }

        by_length = {1.0: errors(1.0)}
        step_length = 1.0
        if max(by_length[1.0].values(), default=0.0) > SEARCH:
            for length in LENGTHS[1:]:
                by_length[length] = errors(length)
            step_length = min(by_length, key=lambda length: (sum(by_length[length].values()), abs(length - 1)))
        before, after = _retained_accuracy(run, linearisation, split, subset, step_length * delta)
    error = by_length[step_length]
    reasons = _reasons(error.get("retain", 0.0), before, after, looked_at=len(some(split.retain)), miss=miss)
    return step_length, {
        "verdict": "retrain instead" if reasons else "ok",
        "reasons": reasons,
        "error": error,
        "error_at_full_step": by_length[1.0],
        "step_length": step_length,
        "searched": {str(length): value for length, value in by_length.items()} if len(by_length) > 1 else None,
        "retain_accuracy": {"before": before, "after": after},
        "thresholds": {"search": SEARCH, "retrain": RETRAIN, "accuracy_drop": DROP, "replay_miss": MISS},
        "definition": "‖actual − predicted‖ / ‖predicted − before‖ of centred logits; at 1 the prediction is useless",
    }


def _reasons(error: float, before: float, after: float, *, looked_at: int, miss: float) -> list[str]:
    """Why to retrain instead, by what was seen on so many retained samples; none where all is well."""
    reasons = []
    if error > RETRAIN:
        reasons.append(f"the network does not follow the prediction (error {error:.2f} on retained samples)")
    if (before - after) * looked_at > max(DROP * looked_at, FEW):
        reasons.append(f"accuracy on retained samples fell from {100 * before:.1f} % to {100 * after:.1f} %")
    if miss > MISS:
        reasons.append(f"the replay of all samples missed the trained weights by {miss:.2f} of the way")
    return reasons


@contextlib.contextmanager
def _restored(linearisation: Linearisation) -> Iterator[None]:
    """The engine's working copy is back where its rows were taken, whatever happens inside."""
    try:
        yield
    finally:
        linearisation.engine.subset.set(linearisation.point)


def _retained_accuracy(run: Run, linearisation: Linearisation, split: Split, subset: Subset, step: Tensor) -> tuple[float, float]:
    """Accuracy on (evenly spaced) retained samples before and after the step, as fractions."""
    few = some(split.retain)
    labels = run.data.labels[few]
    subset.set(linearisation.theta + step)
    pair = linearisation.outputs[few], predict(subset.model, run.data.inputs[few])
    before, after = (float((outputs.argmax(1) == labels).double().mean()) for outputs in pair)
    return before, after


def some(indices: Tensor, most: int = MOST) -> Tensor:
    """At most so many of them, evenly spaced."""
    return indices[torch.linspace(0, len(indices) - 1, min(most, len(indices))).round().long()]


def _probe(run: Run, split: Split) -> Tensor | None:
    """Averages of pairs of retained inputs: never trained on, and no hold-out data is needed.

    None of whole numbers: the average of two tokens is no token.
    """
    if len(split.retain) < 2 or not run.data.inputs.is_floating_point():
        return None
    count = min(32, len(split.retain) // 2)
    picks = split.retain[torch.linspace(0, len(split.retain) - 1, 2 * count).round().long()]
    inputs = run.data.inputs[picks]
    return 0.5 * (inputs[:count] + inputs[count:])


def prediction_error(actual: Tensor, before: Tensor, predicted: Tensor) -> float:
    """‖actual − predicted‖ / ‖predicted − before‖ of logits (k, C), centred per sample."""

    def centre(z: Tensor) -> Tensor:
        return z.double() - z.double().mean(1, keepdim=True)

    change = (centre(predicted) - centre(before)).norm()
    miss = (centre(actual) - centre(predicted)).norm()
    return 0.0 if miss == 0 else float(miss / change.clamp_min(1e-12 * (1 + centre(before).norm())))


def total_variation(p: Tensor, q: Tensor) -> float:
    """Mean over samples of half the L1 distance of class probabilities (n, C), in [0, 1]."""
    return float(0.5 * (p - q).abs().sum(1).mean())
