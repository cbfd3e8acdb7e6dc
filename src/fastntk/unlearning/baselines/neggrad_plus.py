"""``neggrad+``: descend the loss of what stays and ascend that of what goes, in the same step (as in Kurmanji et al. 2023).

    min_w  α·L_r(w) − (1 − α)·L_f(w),    from θ

The second term has no lower bound: α near 1, few epochs, or the model is destroyed.
"""

from __future__ import annotations

import math

from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.training.recipe import Schedule
from fastntk.unlearning.baselines.common.costs import RATES, count_of, paired_passes
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, endless, unmoved
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import UNIT, checked


def neggrad_plus(
    task: Task,
    *,
    alpha: float = 0.95,
    epochs: int = 3,
    lr: float = 2e-3,
    batch_size: int = 64,
    schedule: Schedule = "cosine",
    seed: int = 0,
) -> Outcome:
    """An epoch is one pass over the retained samples, each batch paired with the next of the forgotten ones, which are gone
    through as often as needed. α = 1 is ``fine-tune``, step for step. An empty request moves nothing.
    """
    options = checked("neggrad+", {"alpha": UNIT, **RANGES}, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    retain = task.split.retain
    descent = Descent(task, lr=lr, schedule=schedule, steps=epochs * math.ceil(len(retain) / batch_size), seed=seed)
    forget = endless(task.split.forget, batch_size, descent.forget_draws)
    for _ in track(range(epochs), "neggrad+"):
        for batch in batches(retain, batch_size, descent.retain_draws):
            objective = alpha * descent.loss(batch)
            if alpha < 1:
                objective = objective - (1 - alpha) * descent.loss(next(forget))
            descent.step(objective)
    return descent.outcome(options)


def _cost(problem: Problem) -> list[Route]:
    epochs, batch = count_of(problem, "epochs"), count_of(problem, "batch_size")
    return [problem.passes(epochs * (problem.sizes.retain + paired_passes(problem)), batch=batch)]


METHOD = Method(
    name="neggrad+",
    summary="training that lowers the loss of the retained samples and raises that of the forgotten ones",
    run=neggrad_plus,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={"alpha": (0.8, 0.9, 0.95, 0.99, 0.999, 0.9999), "lr": RATES, "epochs": (1, 2, 3, 5)},
)
