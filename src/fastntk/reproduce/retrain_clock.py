"""Retrain's seconds as measured in the process that times a method: a cost is then a ratio within one run.

The kept Retrain may have been made hours earlier, beside other work or with other threads. Its first epochs (same batches) are
run again and scaled up, and again every ``RENEW`` seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastntk.reproduce.experiment import Experiment
    from fastntk.reproduce.setting import Request

TIMED_EPOCHS = 2
"""Epochs of a Retrain that are timed; the rest is proportional."""
RENEW = 900.0
"""Seconds after which Retrain is timed again."""


def timed_retrain(experiment: Experiment, request: Request, seed: int) -> dict[str, Any]:
    """Seconds of a Retrain, from its first epochs, run here and now; JSON-able."""
    whole = experiment.setting.recipe.epochs
    epochs = min(TIMED_EPOCHS, whole)
    part = experiment.train(seed, experiment.split(request).keep, epochs=epochs)
    scale = whole / max(1, epochs)
    return {"wall": part.wall * scale, "cpu": part.cpu * scale, "epochs_timed": epochs, "threads": part.threads}


@dataclass(eq=False)
class RetrainClock:
    """An experiment's Retrain times, by request, not older than ``RENEW`` seconds."""

    experiment: Experiment
    times: dict[str, tuple[float, dict[str, Any]]] = field(default_factory=dict)

    def seconds(self, request: Request, seed: int) -> dict[str, Any]:
        """What a Retrain takes now."""
        when, timing = self.times.get(request.name, (float("-inf"), {}))
        if time.perf_counter() - when > RENEW:
            timing = timed_retrain(self.experiment, request, seed)
            self.times[request.name] = time.perf_counter(), timing
        return timing
