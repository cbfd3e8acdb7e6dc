"""``salun`` (Fan et al. 2024): random labels for what goes, learned only by the parameters that matter most for it.

m_j = 1 for the share of parameters with the largest |∂L_f/∂w_j| at θ, else 0
min_w  E_f[ℓ(w; x, y')] + α·E_r[ℓ(w; x, y)]  over the parameters with m_j = 1,     y' ≠ y drawn uniformly
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.training.recipe import Schedule
from fastntk.unlearning.baselines.common.costs import RATES, count_of, paired_passes
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, endless, unmoved
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import NOT_NEGATIVE, SHARE, checked


def salun(
    task: Task,
    *,
    share: float = 0.5,
    alpha: float = 1.0,
    epochs: int = 2,
    lr: float = 2e-3,
    batch_size: int = 64,
    schedule: Schedule = "cosine",
    seed: int = 0,
) -> Outcome:
    """``share``: of the tuned parameters, those that may move (0.5: above the median, as in the paper); ``alpha``: weight of
    the retained samples' loss. An epoch is one pass over the retained samples, each batch paired with the next of the
    forgotten ones under new labels. An empty request moves nothing.
    """
    options = checked("salun", {"share": SHARE, "alpha": NOT_NEGATIVE, **RANGES}, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    classes = task.run.data.num_classes
    if classes < 2:
        raise InputError("Method 'salun' needs another class to draw labels from; the data has only one.")
    retain = task.split.retain
    mask = most_salient(forget_gradient(task, batch_size=batch_size), share)
    steps = epochs * math.ceil(len(retain) / batch_size)
    descent = Descent(task, lr=lr, schedule=schedule, steps=steps, seed=seed, mask=mask)
    forget = endless(task.split.forget, batch_size, descent.forget_draws)
    for _ in track(range(epochs), "salun"):
        for batch in batches(retain, batch_size, descent.retain_draws):
            forgotten = next(forget)
            shift = torch.randint(1, classes, (len(forgotten),), generator=descent.forget_draws).to(descent.labels)
            objective = descent.loss(forgotten, labels=(descent.labels[forgotten] + shift) % classes)
            descent.step(objective + alpha * descent.loss(batch) if alpha > 0 else objective)
    return descent.outcome(options | {"movable": int(mask.sum())})


def forget_gradient(task: Task, *, batch_size: int) -> Tensor:
    """Gradient of the mean loss of the forgotten samples at θ, (d,)."""
    descent = Descent(task, lr=1.0, schedule="constant", steps=1, seed=0)
    parameters = list(descent.subset.parameters.values())
    total = torch.zeros_like(task.run.subset.get())
    for batch in task.split.forget.split(batch_size):
        grads = torch.autograd.grad(descent.loss(batch) * len(batch), parameters)
        total += torch.cat([grad.reshape(-1) for grad in grads])
    return total / len(task.split.forget)


def most_salient(gradient: Tensor, share: float) -> Tensor:
    """True for the given share (rounded, at least one) of the entries largest in size, (d,); the first of equals win."""
    order = gradient.abs().argsort(descending=True, stable=True)
    mask = torch.zeros(len(gradient), dtype=torch.bool, device=gradient.device)
    mask[order[: max(1, round(share * len(gradient)))]] = True
    return mask


def _cost(problem: Problem) -> list[Route]:
    epochs, batch = count_of(problem, "epochs"), count_of(problem, "batch_size")
    passes = epochs * (problem.sizes.retain + paired_passes(problem)) + problem.sizes.forget
    return [problem.passes(passes, batch=batch)]


METHOD = Method(
    name="salun",
    summary="random labels for the forgotten samples, on the parameters that matter most to them",
    run=salun,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={"share": (0.25, 0.5, 0.75), "lr": RATES, "epochs": (2, 5)},
)
