"""``ssd``, selective synaptic dampening (Foster et al. 2024): shrink the parameters that matter far more for D_f than for D.

    where I_f > α·I_D:   w_j ← t_j + β_j·(θ_j − t_j),    β_j = min(λ·I_D,j / I_f,j, 1),    t = 0 (or the anchor)

I are mean squared per-sample gradients (``common.importance``) on all data and on the forgotten samples.
No training. As D holds D_f, I_f ≤ (n/n_f)·I_D: for α ≥ n/n_f nothing is ever chosen.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from fastntk.planning import Problem, Route
from fastntk.unlearning.baselines.common.costs import gradients_route
from fastntk.unlearning.baselines.common.descent import unmoved
from fastntk.unlearning.baselines.common.importance import loss_importance
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import POSITIVE, checked, one_of

Towards = Literal["zero", "anchor"]


def ssd(task: Task, *, alpha: float = 1.5, dampening: float = 1.0, towards: Towards = "zero") -> Outcome:
    """``alpha``: how many times more important for D_f a parameter must be; ``dampening``: the paper's λ.

    ``towards="zero"`` is the paper's. ``"anchor"`` takes back only what fine-tuning put there: a norm's scale was near one before
    it ever saw D_f. Nothing is drawn, so there is no seed. An empty request moves nothing.
    """
    ranges = {"alpha": POSITIVE, "dampening": POSITIVE, "towards": one_of(get_args(Towards))}
    options = checked("ssd", ranges, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    retain, forget = task.split.retain, task.split.forget
    on_forget = loss_importance(task, forget, description="importance on the forgotten samples")
    on_retain = loss_importance(task, retain, description="importance on the retained samples")
    on_all = (len(forget) * on_forget + len(retain) * on_retain) / (len(forget) + len(retain))
    theta = task.run.subset.get().cpu()
    chosen = on_forget > alpha * on_all
    factor = torch.where(chosen, (dampening * on_all / on_forget).clamp(max=1.0), torch.ones_like(on_all))
    target = task.run.anchor.cpu() if towards == "anchor" else torch.zeros_like(theta)
    vector = torch.where(factor < 1, target + factor.to(theta) * (theta - target), theta)
    details = {
        "dampened": int((factor < 1).sum()),
        "mean_factor": float(factor[factor < 1].mean()) if bool((factor < 1).any()) else None,
        "largest_ratio": float((on_forget / on_all.clamp(min=torch.finfo(torch.float64).tiny)).max()),
    }
    return Outcome(vector, options | details)


def _cost(problem: Problem) -> list[Route]:
    s = problem.sizes
    return [gradients_route(problem, samples=s.samples + s.forget, vectors=1)]


METHOD = Method(
    name="ssd",
    summary="dampening of the parameters that matter more to the forgotten samples than to all",
    run=ssd,
    cost=_cost,
    needs=frozenset({"engine", "images"}),
    search_space={"alpha": (1.0, 1.25, 1.5, 2.0, 3.0), "dampening": (0.1, 0.3, 1.0), "towards": ("zero", "anchor")},
)
