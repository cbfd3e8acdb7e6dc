"""``fine-tune``: go on training, without the forgotten samples, in the hope that those fade.

    min_w  L_r(w) + wd/2·‖w − w0‖²,    from θ

Nothing aims at D_f. A class that no longer occurs loses its part of the head, given a large enough rate; single samples whose
like are still in D_r have no reason to be forgotten.
"""

from __future__ import annotations

import math

from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.training.recipe import Schedule
from fastntk.unlearning.baselines.common.costs import count_of
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, unmoved
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import checked


def fine_tune(
    task: Task, *, epochs: int = 3, lr: float = 2e-3, batch_size: int = 64, schedule: Schedule = "cosine", seed: int = 0
) -> Outcome:
    """A few more epochs on the retained samples alone. An empty request moves nothing."""
    options = checked("fine-tune", RANGES, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    retain = task.split.retain
    descent = Descent(task, lr=lr, schedule=schedule, steps=epochs * math.ceil(len(retain) / batch_size), seed=seed)
    for _ in track(range(epochs), "fine-tuning on the retained samples"):
        for batch in batches(retain, batch_size, descent.retain_draws):
            descent.step(descent.loss(batch))
    return descent.outcome(options)


def _cost(problem: Problem) -> list[Route]:
    epochs, batch = count_of(problem, "epochs"), count_of(problem, "batch_size")
    return [problem.passes(epochs * problem.sizes.retain, batch=batch)]


METHOD = Method(
    name="fine-tune",
    summary="further training on the retained samples alone",
    run=fine_tune,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={"lr": (2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2), "epochs": (1, 2, 3, 5, 10)},
)
