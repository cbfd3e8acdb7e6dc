"""``l1-sparse`` (Jia et al. 2023): go on training without the forgotten samples, with an L1 penalty that fades.

    min_w  L_r(w) + wd/2·‖w − w0‖² + γ_e·‖w − t‖₁,    γ_e = γ·(1 − e/epochs) in epoch e = 0, 1, …,    from θ

Paper: t = 0 and all weights of a network. Here: t = w0, or 0 with ``towards="zero"``. Because tuned norm scales were near one
before they saw any of the data: pulled to 0 they lose what pre-training knew, pulled to w0 they lose what fine-tuning taught.
γ = 0 is ``fine-tune``, bit for bit.
"""

from __future__ import annotations

import math

import torch

from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.training.recipe import Schedule
from fastntk.unlearning.baselines.common.costs import count_of
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, unmoved
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import NOT_NEGATIVE, checked, one_of

TOWARDS = ("anchor", "zero")


def l1_sparse(
    task: Task,
    *,
    gamma: float = 5e-4,
    towards: str = "anchor",
    epochs: int = 3,
    lr: float = 2e-3,
    batch_size: int = 64,
    schedule: Schedule = "cosine",
    seed: int = 0,
) -> Outcome:
    """``towards``: where the penalty pulls, ``anchor`` or ``zero``. An empty request moves nothing."""
    options = checked("l1-sparse", {"gamma": NOT_NEGATIVE, "towards": one_of(TOWARDS), **RANGES}, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    retain, anchor = task.split.retain, task.run.anchor
    descent = Descent(task, lr=lr, schedule=schedule, steps=epochs * math.ceil(len(retain) / batch_size), seed=seed)
    parameters = descent.subset.parameters
    targets = descent.subset.split(anchor if towards == "anchor" else torch.zeros_like(anchor))
    for epoch in track(range(epochs), "l1-sparse"):
        weight = gamma * (1 - epoch / epochs)
        for batch in batches(retain, batch_size, descent.retain_draws):
            objective = descent.loss(batch)
            if weight > 0:
                distances = [(value - targets[name]).abs().sum() for name, value in parameters.items()]
                objective = objective + weight * torch.stack(distances).sum()
            descent.step(objective)
    return descent.outcome(options)


def _cost(problem: Problem) -> list[Route]:
    return [problem.passes(count_of(problem, "epochs") * problem.sizes.retain, batch=count_of(problem, "batch_size"))]


METHOD = Method(
    name="l1-sparse",
    summary="further training on the retained samples alone, with an L1 penalty that fades",
    run=l1_sparse,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={
        "gamma": (1e-4, 5e-4, 2e-3, 5e-3, 2e-2),
        "towards": TOWARDS,
        "lr": (5e-4, 1e-3, 2e-3, 5e-3, 1e-2),
        "epochs": (2, 3, 5),
    },
)
