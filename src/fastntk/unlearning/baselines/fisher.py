"""``fisher``, Fisher forgetting (Golatkar et al. 2020): noise where it costs the retained samples least.

    w = θ + α·F^(−1/4)·ε,    ε ~ N(0, I),    F = diagonal Fisher of D_r,    α·F_j^(−1/4) ≤ clip

D_f plays no part except that it is left out of F: what only D_f held in place is blurred most. The paper's α is (λσ²)^(1/4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastntk.planning import Problem, Route
from fastntk.unlearning.baselines.common.costs import gradients_route
from fastntk.unlearning.baselines.common.descent import unmoved
from fastntk.unlearning.baselines.common.importance import fisher_diagonal
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import COUNT_OR_NONE, NOT_NEGATIVE, checked


def fisher(task: Task, *, alpha: float = 5e-2, clip: float = 0.5, seed: int = 0) -> Outcome:
    """``alpha``: size of the noise; ``clip``: its largest standard deviation, that of parameters D_r says nothing about.

    An empty request moves nothing, though the formula would add noise all the same: nobody asked for it.
    """
    ranges = {"alpha": NOT_NEGATIVE, "clip": NOT_NEGATIVE, "seed": COUNT_OR_NONE}
    options = checked("fisher", ranges, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    diagonal = fisher_diagonal(task, task.split.retain, description="Fisher of the retained samples")
    deviation = noise_deviation(diagonal, alpha=alpha, clip=clip)
    noise = torch.randn(len(diagonal), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    theta = task.run.subset.get().cpu()
    details = {"mean_deviation": float(deviation.mean()), "clipped": int((deviation >= clip).sum())}
    return Outcome(theta + (deviation * noise).to(theta), options | details)


def noise_deviation(diagonal: Tensor, *, alpha: float, clip: float) -> Tensor:
    """min(α·F^(−1/4), clip), (d,); parameters with F = 0 get the clip, unless α is 0."""
    return (alpha * diagonal.clamp(min=torch.finfo(diagonal.dtype).tiny).pow(-0.25)).clamp(max=clip)


def _cost(problem: Problem) -> list[Route]:
    return [gradients_route(problem, samples=problem.sizes.retain, vectors=problem.sizes.classes)]


METHOD = Method(
    name="fisher",
    summary="noise on the parameters, most where the retained samples need them least",
    run=fisher,
    cost=_cost,
    needs=frozenset({"engine", "images"}),
    search_space={"alpha": (1e-2, 2e-2, 5e-2, 1e-1, 2e-1), "clip": (0.1, 0.2, 0.5, 1.0)},
)
