"""``fisher``, Fisher forgetting (Golatkar et al. 2020): noise where it costs the retained samples least.

    form="code":   w_j = μ_j + √v_j·ε_j,   v = α²·mean over a row of min(1/(F + 1e-8), cap),   ×10 for the head and for vectors
    form="paper":  w_j = μ_j + α·F_j^(−1/4)·ε_j,                                               ε ~ N(0, I)

F: the diagonal Fisher of D_r. μ = θ, but 0 in the head's rows of classes that go as a whole, with v = 1e-4 there. No deviation is
above ``clip``. Besides those rows, D_f is only left out of F: what it alone held in place is blurred most.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.planning import Problem, Route
from fastntk.training.run import Run
from fastntk.tuning import find_head
from fastntk.unlearning.baselines.common.costs import gradients_route
from fastntk.unlearning.baselines.common.descent import unmoved
from fastntk.unlearning.baselines.common.importance import fisher_diagonal
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import COUNT_FROM_ZERO, NOT_NEGATIVE, checked, one_of
from fastntk.unlearning.reuse import computed_once

Form = Literal["code", "paper"]
ClassRows = Literal["zero", "noise"]

FLOOR, CAP, HEAD_CAP = 1e-8, 1e3, 1e2
"""Of the code's form: what is added to F, the largest 1/F, and that of the head."""
LOUDER = 10.0
"""How many times larger the code's form makes the variance of the head and of vectors (norms, biases)."""
ROW_VARIANCE = 1e-4
"""Of a forgotten class's row in the head."""


def fisher(
    task: Task,
    *,
    alpha: float = 1e-3,
    form: Form = "code",
    class_rows: ClassRows = "zero",
    clip: float = 0.5,
    seed: int = 0,
) -> Outcome:
    """``alpha``: size of the noise; ``clip``: its largest standard deviation. ``class_rows="zero"`` puts noise around 0 in place
    of the head's rows of classes that go as a whole (single samples have no row); ``"noise"`` treats them as the others.

    An empty request moves nothing, though the formula would add noise all the same: nobody asked for it.
    """
    ranges = {
        "alpha": NOT_NEGATIVE,
        "form": one_of(get_args(Form)),
        "class_rows": one_of(get_args(ClassRows)),
        "clip": NOT_NEGATIVE,
        "seed": COUNT_FROM_ZERO,
    }
    options = checked("fisher", ranges, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    description = "Fisher of the retained samples"
    diagonal = computed_once(task, "fisher", lambda: fisher_diagonal(task, task.split.retain, description=description))
    run, classes = task.run, list(task.split.whole_classes) if class_rows == "zero" else []
    rows = class_row_positions(run, classes)
    deviation = noise_deviation(diagonal.value, run, alpha=alpha, form=form)
    deviation[rows] = (ROW_VARIANCE * (LOUDER if form == "code" else 1.0)) ** 0.5
    deviation = deviation.clamp(max=clip)
    noise = torch.randn(len(deviation), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mean = run.subset.get().cpu()
    mean[rows] = 0.0
    details = {
        "mean_deviation": float(deviation.mean()),
        "clipped": int((deviation >= clip).sum()),
        "zeroed": len(rows),
    }
    return Outcome(mean + (deviation * noise).to(mean), options | details | diagonal.details("fisher"))


def noise_deviation(diagonal: Tensor, run: Run, *, alpha: float, form: Form) -> Tensor:
    """Standard deviations by the form, (d,), before the clip and the rows of classes; infinite where F = 0 in the paper's."""
    if form == "paper":
        return torch.zeros_like(diagonal) if alpha == 0 else alpha * diagonal.pow(-0.25)
    head = head_names(run)
    parts = []
    for name, part in run.subset.split(diagonal).items():
        variance = (1.0 / (part + FLOOR)).clamp(max=HEAD_CAP if name in head else CAP)
        if variance.ndim > 1:
            variance = variance.mean(1, keepdim=True).expand_as(variance)
        louder = LOUDER if name in head or part.ndim == 1 else 1.0
        parts.append((louder * variance).sqrt().reshape(-1))
    return alpha * torch.cat(parts)


def head_names(run: Run) -> set[str]:
    """Names of the tuned parameters that have a row for each class: those of the head; none where no head is found."""
    try:
        name, _ = find_head(run.model)
    except InputError:
        return set()
    prefix = f"{name}." if name else ""
    return {f"{prefix}weight", f"{prefix}bias"} & set(run.subset.names)


def class_row_positions(run: Run, classes: list[int]) -> Tensor:
    """Where the head's rows of these classes lie in the tuned vector, ascending."""
    positions = run.subset.split(torch.arange(run.subset.numel))
    rows = [positions[name][classes].reshape(-1) for name in sorted(head_names(run))]
    return torch.cat([torch.empty(0, dtype=torch.long), *rows]).sort().values


def _cost(problem: Problem) -> list[Route]:
    return [gradients_route(problem, samples=problem.sizes.retain, vectors=problem.sizes.classes)]


METHOD = Method(
    name="fisher",
    summary="noise on the parameters, most where the retained samples need them least",
    run=fisher,
    cost=_cost,
    needs=frozenset({"engine", "images"}),
    search_space={
        "alpha": (1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2),
        "form": ("code", "paper"),
        "class_rows": ("zero", "noise"),
        "clip": (0.05, 0.5),
    },
)
