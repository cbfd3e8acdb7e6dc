"""What a result of ``path-replay`` says of itself, without a Retrain to compare with."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor

from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.unlearning.path_replay.columns import Columns
from fastntk.unlearning.path_replay.judging import change, watched
from fastntk.unlearning.path_replay.replay import Lanes
from fastntk.unlearning.path_replay.walking import Walk, Walker
from fastntk.unlearning.update import RETRAIN, prediction_error

MISS = 0.05
"""How far the replay of all samples may end from the trained weights, over the fine-tuning's own length."""
WHOLE = 0.5
"""Share of all the model's weights that may be trained below the head: beyond it, replays are known to miss Retrain."""
CHECKED = 64
"""Samples of each set on which the network is asked whether it does what the replay said."""


FEWEST = 16
"""Images that are needed to tell whether they are the recorded ones."""


class Match(NamedTuple):
    """The share of images whose features are nearer to their own recorded ones than to another sample's, and what chance would
    hardly exceed: two standard deviations above a half."""

    share: float
    chance: float


def images_match(features: Tensor, recorded: Tensor, labels: Tensor) -> Match | None:
    """How many samples have ``features`` (k, H) nearer to those ``recorded`` at their last visit than to those of the next sample
    of their class; None where there are too few. Weights moved since, and images may have been augmented: so it is a share and no
    equality, and of a small network that was trained with both, hardly three quarters."""
    if len(labels) < FEWEST:
        return None
    order = labels.argsort(stable=True)
    now, own = features[order].double(), recorded[order].double()
    share = float(((now - own).norm(dim=1) < (now - own.roll(1, 0)).norm(dim=1)).double().mean())
    return Match(share, 0.5 + 1 / math.sqrt(len(labels)))


def replay_miss(run: Run, columns: Columns, lanes: Lanes) -> float:
    """How far the recorded lane ended from the trained weights, over the fine-tuning's own length."""
    theta, origin = run.subset.get().cpu(), run.anchor.cpu()
    end = theta.clone()
    end[columns.head] = lanes.head[0].reshape(-1)
    if columns.bias is not None and lanes.bias is not None:
        end[columns.bias] = lanes.bias[0]
    if len(columns.body):
        end[columns.body] = lanes.body[0]
    return float((end - theta).norm() / (theta - origin).norm().clamp_min(1e-30))


def missing_text(miss: float) -> str:
    """A miss beyond :data:`MISS` in words."""
    return f"the recorded path, walked again, misses the trained weights by {miss:.2f} of the way"


def body_share(run: Run, trace: Trace, moved: Collection[str] = ()) -> float:
    """Of all the model's weights, those that were trained, the head and ``moved`` left out."""
    out = {trace.facts.head_weight, trace.facts.head_bias, *moved}
    body = sum(parameter.numel() for name, parameter in run.subset.parameters.items() if name not in out)
    return body / sum(parameter.numel() for parameter in run.model.parameters())


def whole_text(trained: float, left: float) -> str | None:
    """Why not to believe a replay after full fine-tuning, by the shares that were trained and left; None after another."""
    if left > WHOLE:
        return (
            f"{100 * left:.0f} % of the model's weights were trained and stay as they are, with what they learnt of the "
            "forgotten samples: after full fine-tuning the head alone forgets a part only, and deeper depths can end farther "
            "away. Train again where that matters"
        )
    if trained > WHOLE:
        return (
            f"{100 * trained:.0f} % of the model's weights were trained: rows foretell how few weights move a little, and after "
            "full fine-tuning deep replays were measured to end farther from Retrain than the head alone. Train again"
        )
    return None


def checked(walker: Walker, walk: Walk, *, validate: bool) -> tuple[Trace, dict[str, Any], dict[str, Any]]:
    """Does the trace lead to the trained weights, does the network do what the replay said, do errors of requests in a row
    add up? Returns the new trace, what is known of the chain, and the verdict."""
    miss = replay_miss(walker.run, walk.columns, walk.lanes)
    reasons = []
    if miss > MISS:
        reasons.append(missing_text(miss))
    empty = not len(walker.split.forget)
    trained, left_share = (0.0 if empty else body_share(walker.run, walker.trace, names) for names in ((), walk.names))
    evidence: dict[str, Any] = {"replay_miss": miss, "trained_share": trained, "left_share": left_share}
    evidence["thresholds"] = {"replay_miss": MISS, "retrain": RETRAIN, "trained_share": WHOLE, "left_share": WHOLE}
    own = walk.size.depth > 0 and len(walk.exact) == walker.trace.epochs  # every epoch was the network's own
    if (whole := whole_text(trained, left_share)) and (left_share > WHOLE or not own):
        reasons.insert(0, whole)
        warnings.warn(f"path-replay: {whole}.", stacklevel=2)
    drift = walker.trace.facts.drift
    checkable = walk.size.depth > 0 and walker.trace.visits > 0  # the head's features are the recorded ones: nothing to ask
    if checkable and validate:
        started = time.perf_counter()
        errors, apart, match = _errors(walker, walk)
        walker.count("validity", started)
        evidence |= {"error": errors, "images_match": None if match is None else match.share}
        if match is not None and match.share < match.chance:
            warnings.warn(
                f"path-replay: only {100 * match.share:.0f} % of the images looked at have features nearer to those recorded for "
                "them than to those of another sample of their class (half would by chance): these may be other images under the "
                "same ids. Ids and labels were compared, pixels cannot be",
                stacklevel=2,
            )
        drift += apart
        if errors.get("retain", 0.0) > RETRAIN:
            reasons.append(f"the network does not follow the prediction (error {errors['retain']:.2f} on retained samples)")
    facts = dataclasses.replace(walk.trace.facts, drift=drift)
    chain: dict[str, Any] = {"requests": facts.requests, "drift": drift, "noise": None}
    if walker.trace.facts.requests and drift:
        chain["noise"] = walker.noise(watched(walker.trace, walker.split))["retain"]
        if drift > chain["noise"]:
            reasons.append(
                f"the errors of {facts.requests} requests in a row add up to {drift:.3f} of total variation, more than two "
                f"seeds differ ({chain['noise']:.3f}): ask the run they began with for all of them at once"
            )
    outcome = "retrain instead" if reasons else "not checked" if checkable and not validate else "ok"
    verdict = {"verdict": outcome, "reasons": reasons, "step_length": 1.0, **evidence}
    return dataclasses.replace(walk.trace, facts=facts), chain, verdict


def _errors(walker: Walker, walk: Walk) -> tuple[dict[str, float], float, Match | None]:
    """‖actual − predicted‖ / ‖predicted − before‖ of centred logits, on a few samples of each set; the mean total variation of
    actual and predicted answers on the retained ones; and whether these are the recorded images (:func:`images_match`)."""
    watch = watched(walker.trace, walker.split, most=CHECKED)
    theta = walker.run.subset.get()
    before, features = walker.network.features(theta, watch.positions)
    after, _ = walker.network.features(walk.vector, watch.positions)
    replay = walker.expected(walk, dataclasses.replace(watch, features=features))
    sets = {"retain": ~watch.forgotten, "forget": watch.forgotten}
    errors = {
        name: prediction_error(after[where], before[where], replay[where]) for name, where in sets.items() if bool(where.any())
    }
    return errors, change(after, replay, watch)["retain"], images_match(features, watch.features, watch.labels)
