"""What an audit will take, in seconds, before it is spent: a batch is timed, the rest is counting.

Times are rough (a factor of two on a busy machine); they are there so that somebody can decide whether to wait.
"""

from __future__ import annotations

import time

import torch

from fastntk.auditing.record_figures import EnsembleKind
from fastntk.data import Samples
from fastntk.models import logits
from fastntk.training.loop import batch_loss
from fastntk.training.network import eval_mode, fast_layout
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.unlearning.result import Unlearned

BATCH = 32
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
) -> dict[str, float]:
    """Seconds of each stage. ``retrains``: all Retrains that are made, the one of the run's own seed included."""
    forward, step = _speed(run)
    recipe = run.recipe or Recipe()
    samples, forget = len(run.data), len(result.split.forget)
    retrain = recipe.epochs * (samples - forget) * step
    compared = 2 + (1 if retrains else 0)
    stages = {
        "retrain": retrains * retrain,
        "predictions": (compared + max(retrains - 1, 0) + (2 if probes else 0)) * (samples + len(holdout)) * forward,
        "relearn, at most": compared * relearn_cap * forget * (step + forward),
    }
    if ensemble is not None:
        read = ensemble * 3 * forget * forward
        if ensemble_kind == "real":
            stages["ensemble"] = ensemble * (recipe.epochs * samples * step + retrain + result.seconds) + read
        else:
            classes = run.data.num_classes
            rows = 0.0 if result.linearisation is not None else ROWS * samples * (classes + 1) * forward
            replay = recipe.epochs * 4.0 * samples * classes * run.subset.numel / FLOPS
            stages["ensemble"] = rows + (2 * ensemble + 4) * replay + read
    return {name: seconds for name, seconds in stages.items() if seconds > 0}


def _speed(run: Run) -> tuple[float, float]:
    """Seconds an image of a forward pass and of a training step, from one short batch; nothing is changed."""
    count = min(BATCH, len(run.data))
    inputs, labels = fast_layout(run.model, run.data.inputs[:count]), run.data.labels[:count].to(run.data.inputs.device)
    parameters = list(run.subset.parameters.values())

    def forward(size: int) -> None:
        with torch.no_grad():
            logits(run.model, inputs[:size])

    def step(size: int) -> None:
        loss = batch_loss(logits(run.model, inputs[:size]), labels[:size], run.recipe or Recipe())
        torch.autograd.grad(loss, parameters)

    with eval_mode(run.model):
        times = []
        for work in (forward, step):
            work(min(2, count))  # the first call pays for memory and kernels
            start = time.perf_counter()
            work(count)
            times.append((time.perf_counter() - start) / count)
    return times[0], times[1]
