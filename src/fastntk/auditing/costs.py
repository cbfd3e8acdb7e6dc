"""What an audit will take, in seconds, before it is spent: a batch is timed, the rest is counting.

Times are rough (a factor of two on a busy machine); they are there so that somebody can decide whether to wait.
"""

from __future__ import annotations

import math

from fastntk.auditing.record_figures import EnsembleKind
from fastntk.data import Samples
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.training.speed import measure_speed
from fastntk.unlearning.baselines.own_training import Retrainer
from fastntk.unlearning.result import Unlearned

ROWS = 1.5
"""Rows of a sample take about this many times one forward pass per class and one more."""
FLOPS = 5e9
"""A replay multiplies with all rows twice a step; a core does about this many operations a second at it."""


def estimate(
    run: Run,
    result: Unlearned,
    *,
    holdout: Samples,
    retrains: int,
    relearn_cap: int = 100,
    probes: bool = True,
    ensemble: int | None = None,
    ensemble_kind: EnsembleKind = "real",
    retrain: Retrainer | None = None,
) -> dict[str, float]:
    """Seconds of each stage. ``retrains``: all Retrains that are made, the one of the run's own seed included.

    What a training function of the user takes is not known, so neither is a stage that calls it.
    """
    recipe = run.recipe or Recipe()
    speed = measure_speed(run.subset, run.data, recipe)
    forward, step = speed.forward, speed.step
    samples, forget = len(run.data), len(result.split.forget)
    once = recipe.epochs * (samples - forget) * step if retrain is None else math.nan
    model_count = 2 + (1 if retrains else 0)
    stages = {
        "retrain": retrains * once,
        "predictions": (model_count + max(retrains - 1, 0) + (2 if probes else 0)) * (samples + len(holdout)) * forward,
        "relearn, at most": model_count * relearn_cap * forget * (step + forward),
    }
    if ensemble is not None:
        prediction = ensemble * 3 * forget * forward
        if ensemble_kind == "real":
            stages["ensemble"] = ensemble * (recipe.epochs * samples * step + once + result.seconds) + prediction
        else:
            classes = run.data.num_classes
            rows = 0.0 if result.linearisation is not None else ROWS * samples * (classes + 1) * forward
            replay = recipe.epochs * 4.0 * samples * classes * run.subset.numel / FLOPS
            stages["ensemble"] = rows + (2 * ensemble + 4) * replay + prediction
    return {name: seconds for name, seconds in stages.items() if seconds > 0}  # NaN is not
