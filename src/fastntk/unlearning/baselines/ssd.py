"""``ssd``, selective synaptic dampening (Foster et al. 2024): shrink the parameters that matter far more for D_f than for D.

    where I_f > α·I_D:   w_j ← t_j + β_j·(θ_j − t_j),    β_j = min(λ·I_D,j / I_f,j, 1),    t = 0 (or the anchor)

I are mean squared gradients (``common.importance``) on all data and on the forgotten samples, of single samples or of batches.
No training. As D holds D_f, I_f ≤ (n/n_f)·I_D for single samples: for α ≥ n/n_f nothing is ever chosen.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fastntk.planning import Problem, Route
from fastntk.unlearning.baselines.common.costs import count_of, gradients_route
from fastntk.unlearning.baselines.common.descent import unmoved
from fastntk.unlearning.baselines.common.importance import batch_importance, loss_importance
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import COUNT, POSITIVE, checked, one_of
from fastntk.unlearning.reuse import computed_once

Towards = Literal["zero", "anchor"]
Importance = Literal["sample", "batch"]


def ssd(
    task: Task,
    *,
    alpha: float = 5.0,
    dampening: float = 1.0,
    towards: Towards = "zero",
    importance: Importance = "sample",
    batch_size: int = 64,
) -> Outcome:
    """``alpha``: how many times more important for D_f a parameter must be; ``dampening``: the paper's λ.

    ``towards="zero"`` is the paper's. ``"anchor"`` takes back only what fine-tuning put there: a norm's scale was near one before
    it ever saw D_f. ``importance``: squared gradients of single samples (the paper's formula), or of the mean loss of batches of
    ``batch_size`` (the authors' code). Nothing is drawn, so there is no seed. An empty request moves nothing.
    """
    ranges = {
        "alpha": POSITIVE,
        "dampening": POSITIVE,
        "towards": one_of(get_args(Towards)),
        "importance": one_of(get_args(Importance)),
        "batch_size": COUNT,
    }
    options = checked("ssd", ranges, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    settings = {"of": importance} | ({"batch_size": batch_size} if importance == "batch" else {})
    both = computed_once(task, "importance", lambda: importances(task, importance, batch_size=batch_size), **settings)
    on_forget, on_all = both.value
    theta = task.run.subset.get().cpu()
    target = task.run.anchor.cpu() if towards == "anchor" else torch.zeros_like(theta)
    factor = dampening_factor(on_forget, on_all, alpha=alpha, dampening=dampening)
    vector = torch.where(factor < 1, target + factor.to(theta) * (theta - target), theta)
    return Outcome(vector, options | _described(factor, on_forget, on_all) | both.details("importance"))


def importances(task: Task, importance: Importance, *, batch_size: int) -> Tensor:
    """Importance on D_f and on D, (2, d). Batches of D are of D_r, then D_f, as in the authors' code: class by class where a
    class goes as a whole, else in the run's order.
    """
    retain, forget = task.split.retain, task.split.forget
    if importance == "batch":
        if task.split.whole_classes:
            retain, forget = (part[task.run.data.labels[part].argsort(stable=True)] for part in (retain, forget))
        parts = (forget, torch.cat([retain, forget]))
        return torch.stack([batch_importance(task, part, batch_size=batch_size) for part in parts])
    on_forget = loss_importance(task, forget, description="importance on the forgotten samples")
    on_retain = loss_importance(task, retain, description="importance on the retained samples")
    return torch.stack([on_forget, (len(forget) * on_forget + len(retain) * on_retain) / (len(forget) + len(retain))])


def dampening_factor(on_forget: Tensor, on_all: Tensor, *, alpha: float, dampening: float) -> Tensor:
    """β, (d,): 1 where a parameter is left alone."""
    mask = on_forget > alpha * on_all
    return torch.where(mask, (dampening * on_all / on_forget).clamp(max=1.0), torch.ones_like(on_all))


def _described(factor: Tensor, on_forget: Tensor, on_all: Tensor) -> dict[str, Any]:
    mask = factor < 1
    return {
        "dampened": int(mask.sum()),
        "mean_factor": float(factor[mask].mean()) if bool(mask.any()) else None,
        "largest_ratio": float((on_forget / on_all.clamp(min=torch.finfo(torch.float64).tiny)).max()),
    }


def _cost(problem: Problem) -> list[Route]:
    s = problem.sizes
    if problem.options["importance"] == "batch":
        return [problem.passes(s.samples + s.forget, batch=count_of(problem, "batch_size"))]
    return [gradients_route(problem, samples=s.samples + s.forget, vectors=1)]


METHOD = Method(
    name="ssd",
    summary="dampening of the parameters that matter more to the forgotten samples than to all",
    run=ssd,
    cost=_cost,
    needs=frozenset({"engine", "images"}),
    spared=lambda options: frozenset({"engine"}) if options["importance"] == "batch" else frozenset(),
    search_space={
        "alpha": (1.5, 3.0, 5.0, 7.0, 8.0, 9.0, 10.0, 15.0, 25.0, 50.0),
        "dampening": (0.1, 0.3, 1.0),
        "towards": ("zero", "anchor"),
        "importance": ("sample", "batch"),
    },
)
