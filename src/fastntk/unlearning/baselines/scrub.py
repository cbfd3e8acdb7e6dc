"""``scrub`` (Kurmanji et al. 2023): a student that disobeys its teacher on what goes, and obeys it on what stays.

    max pass:  max_w  KL_T(p_θ(x) ‖ p_w(x)),                         x of D_f, in the first ``max_epochs`` epochs
    min pass:  min_w  α·KL_T(p_θ(x) ‖ p_w(x)) + γ·ℓ(w; x, y),        x of D_r, in every epoch, after the max pass

KL_T: T²·KL of distributions softened by the temperature T. The teacher is the run's model at θ, and the student starts there.
KL and its gradient vanish at θ, so the very first max step follows rounding errors, which Adam makes a step of at most lr: it
only leaves the saddle.

Paper: a variant, SCRUB+R, rewinds to the epoch whose forget error is nearest to that on unseen samples of the same kind. Here:
``rewind`` is that error, a number that the caller brings along. Because a run has no samples that it was not trained on.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.training.network import is_right, predict
from fastntk.training.recipe import Schedule
from fastntk.unlearning.baselines.common.costs import count_of
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, unmoved
from fastntk.unlearning.baselines.common.distillation import divergence, taught
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import COUNT, COUNT_FROM_ZERO, NOT_NEGATIVE, POSITIVE, UNIT, checked, or_none

SCRUB_RANGES = {
    "alpha": NOT_NEGATIVE,
    "gamma": NOT_NEGATIVE,
    "temperature": POSITIVE,
    "max_epochs": COUNT_FROM_ZERO,
    "forget_batch_size": COUNT,
    "rewind": or_none(UNIT),
    **RANGES,
}


def scrub(
    task: Task,
    *,
    alpha: float = 0.1,
    gamma: float = 1.0,
    temperature: float = 2.0,
    max_epochs: int = 2,
    epochs: int = 3,
    lr: float = 2e-3,
    batch_size: int = 64,
    forget_batch_size: int = 64,
    rewind: float | None = None,
    schedule: Schedule = "cosine",
    seed: int = 0,
) -> Outcome:
    """Each epoch: a max pass over the forgotten samples (in the first ``max_epochs``), then a min pass over the retained ones,
    with one Adam for both. ``rewind``: return to the end of the epoch whose error on the forgotten samples is nearest to this
    one, the last of equals. No max epochs, α = 0 and γ = 1 is ``fine-tune``. An empty request moves nothing.
    """
    options = checked("scrub", SCRUB_RANGES, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    retain, forget = task.split.retain, task.split.forget
    ascents = min(max_epochs, epochs) * math.ceil(len(forget) / forget_batch_size)
    descent = Descent(task, lr=lr, schedule=schedule, steps=epochs * math.ceil(len(retain) / batch_size) + ascents, seed=seed)
    teacher = taught(task.run.model, task.run.data.inputs, temperature=temperature, device=descent.labels.device)
    ends: list[tuple[float, Tensor]] = []
    for epoch in track(range(epochs), "scrub"):
        if epoch < max_epochs:
            for batch in batches(forget, forget_batch_size, descent.forget_draws):
                descent.step(-divergence(teacher[batch], descent.outputs(batch), temperature=temperature), penalty=False)
        for batch in batches(retain, batch_size, descent.retain_draws):
            outputs = descent.outputs(batch)
            objective = gamma * descent.loss(batch, outputs=outputs)
            if alpha > 0:
                objective = objective + alpha * divergence(teacher[batch], outputs, temperature=temperature)
            descent.step(objective)
        if rewind is not None:
            ends.append((_error(descent, forget), descent.subset.get()))
    return descent.outcome(options | _rewound(descent, ends, rewind))


def _error(descent: Descent, positions: Tensor) -> float:
    """The share of these samples that are not classified correctly."""
    right = is_right(predict(descent.model, descent.inputs[positions]), descent.labels[positions].cpu())
    return 1.0 - float(right.double().mean())


def _rewound(descent: Descent, ends: list[tuple[float, Tensor]], error: float | None) -> dict[str, Any]:
    """Set the weights of the epoch whose error is nearest; say which it was, counted from 1."""
    if error is None or not ends:
        return {}
    nearest = min(range(len(ends)), key=lambda epoch: (abs(ends[epoch][0] - error), -epoch))
    descent.subset.set(ends[nearest][1])
    return {"rewound_to": nearest + 1}


def _cost(problem: Problem) -> list[Route]:
    epochs, batch, s = count_of(problem, "epochs"), count_of(problem, "batch_size"), problem.sizes
    ascents = count_of(problem, "max_epochs", least=0)
    looks = s.samples + (0 if problem.options["rewind"] is None else epochs * s.forget)
    passes = epochs * s.retain + min(epochs, ascents) * s.forget
    return [problem.passes(passes, batch=batch, extra_seconds=looks * problem.speed.forward)]


METHOD = Method(
    name="scrub",
    summary="a student that leaves its teacher on the forgotten samples and stays with it on the others",
    run=scrub,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={
        "alpha": (0.0, 0.1, 0.5),
        "temperature": (1.0, 2.0, 4.0),
        "max_epochs": (1, 2, 3),
        "epochs": (2, 3, 5),
        "lr": (5e-4, 1e-3, 2e-3, 5e-3),
        "forget_batch_size": (16, 64),
    },
)
