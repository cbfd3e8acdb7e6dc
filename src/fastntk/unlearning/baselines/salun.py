"""``salun`` (Fan et al. 2024): random labels for what goes, learned only by the parameters that matter most for it.

m_j = 1 for the share of parameters with the largest |∂L_f/∂w_j| at θ, else 0
an epoch:  a pass over D_f down ℓ(w; x, y'), then one over D_r down α·ℓ(w; x, y), both over the parameters with m_j = 1

y' is drawn anew for every batch. ``order="mixed"`` makes one pass over the shuffled union of both instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.training.recipe import Schedule
from fastntk.unlearning.baselines.common.costs import RATES, count_of
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, unmoved
from fastntk.unlearning.baselines.common.importance import batch_gradients
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import NOT_NEGATIVE, SHARE, checked, one_of

Order = Literal["passes", "mixed"]
Labels = Literal["any", "other"]


def salun(
    task: Task,
    *,
    share: float = 0.5,
    alpha: float = 1.0,
    order: Order = "passes",
    labels: Labels = "any",
    epochs: int = 5,
    lr: float = 1e-3,
    batch_size: int = 64,
    schedule: Schedule = "cosine",
    seed: int = 0,
) -> Outcome:
    """``share``: of the tuned parameters, those that may move (0.5: above the median, as in the paper); ``alpha``: weight of
    the retained samples' loss, 0: they are left out. ``labels``: drawn from ``any`` class, the sample's own included (the
    authors' code), or from the ``other`` ones (the paper's formula). An empty request moves nothing.
    """
    ranges = {"share": SHARE, "alpha": NOT_NEGATIVE, "order": one_of(get_args(Order)), "labels": one_of(get_args(Labels))}
    options = checked("salun", ranges | RANGES, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    classes = task.run.data.num_classes
    if classes < 2:
        raise InputError("Method 'salun' needs another class to draw labels from; the data has only one.")
    mask = most_salient(forget_gradient(task, batch_size=batch_size), share)
    retain = task.split.retain if alpha > 0 else task.split.retain[:0]
    steps = epochs * sum(math.ceil(count / batch_size) for count in _passes(len(task.split.forget), len(retain), order))
    descent = Descent(task, lr=lr, schedule=schedule, steps=steps, seed=seed, mask=mask)
    least = 0 if labels == "any" else 1
    for _ in track(range(epochs), "salun"):
        for batch in _epoch(descent, task.split.forget, retain, order=order, batch_size=batch_size):
            goes = torch.isin(batch, task.split.forget)
            shift = torch.randint(least, classes, (int(goes.sum()),), generator=descent.forget_draws).to(descent.labels)
            targets = descent.labels[batch].clone()
            targets[goes] = (targets[goes] + shift) % classes
            descent.step(_objective(descent, batch, targets, goes, alpha=alpha))
    return descent.outcome(options | {"movable": int(mask.sum())})


def _passes(forget: int, retain: int, order: Order) -> tuple[int, ...]:
    """Samples of each pass of an epoch."""
    return (forget, retain) if order == "passes" else (forget + retain,)


def _epoch(descent: Descent, forget: Tensor, retain: Tensor, *, order: Order, batch_size: int) -> Iterator[Tensor]:
    if order == "mixed":
        yield from batches(torch.cat([forget, retain]), batch_size, descent.retain_draws)
        return
    yield from batches(forget, batch_size, descent.forget_draws)
    if len(retain):
        yield from batches(retain, batch_size, descent.retain_draws)


def _objective(descent: Descent, batch: Tensor, wanted: Tensor, goes: Tensor, *, alpha: float) -> Tensor:
    """The batch's mean loss under these labels, retained samples weighted by α."""
    outputs = descent.outputs(batch)
    parts = [(goes, 1.0), (~goes, alpha)]
    losses = [
        weight * int(part.sum()) / len(batch) * descent.loss(batch[part], labels=wanted[part], outputs=outputs[part])
        for part, weight in parts
        if bool(part.any())
    ]
    return torch.stack(losses).sum()


def forget_gradient(task: Task, *, batch_size: int) -> Tensor:
    """Gradient of the mean loss of the forgotten samples at θ, (d,)."""
    parts = task.split.forget.split(batch_size)
    total = torch.zeros_like(task.run.subset.get())
    for batch, gradient in zip(parts, batch_gradients(task, parts)):
        total += len(batch) * gradient
    return total / len(task.split.forget)


def most_salient(gradient: Tensor, share: float) -> Tensor:
    """True for the given share (rounded, at least one) of the entries largest in size, (d,); the first of equals win."""
    order = gradient.abs().argsort(descending=True, stable=True)
    mask = torch.zeros(len(gradient), dtype=torch.bool, device=gradient.device)
    mask[order[: max(1, round(share * len(gradient)))]] = True
    return mask


def _cost(problem: Problem) -> list[Route]:
    epochs, batch = count_of(problem, "epochs"), count_of(problem, "batch_size")
    retain = 0 if problem.options["alpha"] == 0 else problem.sizes.retain
    return [problem.passes(epochs * (retain + problem.sizes.forget) + problem.sizes.forget, batch=batch)]


METHOD = Method(
    name="salun",
    summary="random labels for the forgotten samples, on the parameters that matter most to them",
    run=salun,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={
        "share": (0.25, 0.5, 0.75, 1.0),
        "order": ("passes", "mixed"),
        "lr": RATES,
        "epochs": (2, 3, 5),
    },
)
