"""``scrub`` (Kurmanji et al. 2023): a student that disobeys its teacher on what goes, and obeys it on what stays.

    max step:  max_w  KL(p_θ(x) ‖ p_w(x)),                         x of D_f, in the first ``max_epochs`` epochs
    min step:  min_w  α·KL(p_θ(x) ‖ p_w(x)) + γ·ℓ(w; x, y),        x of D_r, in every epoch

The teacher is the run's model at θ, and the student starts there. KL and its gradient vanish at θ, so the very first max step
follows rounding errors, which Adam makes a step of at most lr: it only leaves the saddle.
The paper's rewinding (SCRUB+R: go back to the epoch whose forget error matches a validation set's) is not here: it needs
validation data that the run was not trained on.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.training.network import predict
from fastntk.training.recipe import Schedule
from fastntk.unlearning.baselines.common.costs import RATES, count_of
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, unmoved
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import COUNT_OR_NONE, NOT_NEGATIVE, checked


def scrub(
    task: Task,
    *,
    alpha: float = 0.1,
    gamma: float = 1.0,
    max_epochs: int = 2,
    epochs: int = 3,
    lr: float = 2e-3,
    batch_size: int = 64,
    schedule: Schedule = "cosine",
    seed: int = 0,
) -> Outcome:
    """Each epoch: a max pass over the forgotten samples (in the first ``max_epochs``), then a min pass over the retained ones,
    with one Adam for both. No max epochs, α = 0 and γ = 1 is ``fine-tune``. An empty request moves nothing.
    """
    ranges = {"alpha": NOT_NEGATIVE, "gamma": NOT_NEGATIVE, "max_epochs": COUNT_OR_NONE, **RANGES}
    options = checked("scrub", ranges, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    retain, forget = task.split.retain, task.split.forget
    steps = epochs * math.ceil(len(retain) / batch_size) + min(max_epochs, epochs) * math.ceil(len(forget) / batch_size)
    descent = Descent(task, lr=lr, schedule=schedule, steps=steps, seed=seed)
    teacher = torch.log_softmax(predict(task.run.model, task.run.data.inputs), 1).to(descent.labels.device)
    for epoch in track(range(epochs), "scrub"):
        if epoch < max_epochs:
            for batch in batches(forget, batch_size, descent.forget_draws):
                descent.step(-divergence(teacher[batch], descent.outputs(batch)), penalty=False)
        for batch in batches(retain, batch_size, descent.retain_draws):
            outputs = descent.outputs(batch)
            objective = gamma * descent.loss(batch, outputs=outputs)
            if alpha > 0:
                objective = objective + alpha * divergence(teacher[batch], outputs)
            descent.step(objective)
    return descent.outcome(options)


def divergence(teacher: Tensor, outputs: Tensor) -> Tensor:
    """Mean of KL(teacher ‖ student) over the batch, from the teacher's log-probabilities and the student's logits, (b, C)."""
    return F.kl_div(outputs.log_softmax(1), teacher, reduction="batchmean", log_target=True)


def _cost(problem: Problem) -> list[Route]:
    epochs, batch, ascents = (count_of(problem, name) for name in ("epochs", "batch_size", "max_epochs"))
    s = problem.sizes
    teacher = s.samples * problem.speed.forward
    return [problem.passes(epochs * s.retain + min(epochs, ascents) * s.forget, batch=batch, extra_seconds=teacher)]


METHOD = Method(
    name="scrub",
    summary="a student that leaves its teacher on the forgotten samples and stays with it on the others",
    run=scrub,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={"alpha": (0.0, 0.1, 0.5), "max_epochs": (1, 2, 3), "lr": RATES},
)
