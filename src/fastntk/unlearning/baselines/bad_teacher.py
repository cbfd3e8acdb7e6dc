"""``bad-teacher`` (Chundawat et al. 2023): a student of two teachers, one that knows the data and one that does not.

    min_w  mean over a batch of D_f and a share of D_r together:   KL_T(p_θ(x) ‖ p_w(x))    x of D_r
                                                                  KL_T(p_w0(x) ‖ p_w(x))   x of D_f

KL_T: T²·KL of distributions softened by the temperature T. The student starts at θ; labels play no part, and neither does the
run's penalty, since there is no training loss that it belongs to.

Paper: the incompetent teacher is a network with random weights. Here: the run's model at its anchor. Because that is the model
before it saw any of the data, and where Retrain starts: where it knows something of the forgotten samples, Retrain does so too.
A zero head, as models built here have at the anchor, guesses uniformly, as random heads do on average.
"""

from __future__ import annotations

import math

import torch

from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.training.network import working_copy
from fastntk.training.recipe import Schedule
from fastntk.unlearning.baselines.common.costs import count_of
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, unmoved
from fastntk.unlearning.baselines.common.distillation import divergence, taught
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import POSITIVE, SHARE, checked


def bad_teacher(
    task: Task,
    *,
    temperature: float = 1.0,
    share: float = 1.0,
    epochs: int = 3,
    lr: float = 1e-3,
    batch_size: int = 64,
    schedule: Schedule = "cosine",
    seed: int = 0,
) -> Outcome:
    """``share`` of the retained samples, drawn once, take part beside all forgotten ones. An empty request moves nothing."""
    options = checked("bad-teacher", {"temperature": POSITIVE, "share": SHARE, **RANGES}, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    run, retain, forget = task.run, task.split.retain, task.split.forget
    count = taking_part(len(retain), share)
    steps = epochs * math.ceil((count + len(forget)) / batch_size)
    descent = Descent(task, lr=lr, schedule=schedule, steps=steps, seed=seed)
    retain_sample = retain[torch.randperm(len(retain), generator=descent.retain_draws)[:count]]
    positions = torch.cat([retain_sample, forget])
    incompetent = working_copy(run)
    run.subset.on(incompetent).set(run.anchor)
    device = descent.labels.device
    teacher = taught(run.model, run.data.inputs, temperature=temperature, device=device)
    teacher[forget] = taught(incompetent, run.data.inputs[forget], temperature=temperature, device=device)
    for _ in track(range(epochs), "bad-teacher"):
        for batch in batches(positions, batch_size, descent.forget_draws):
            descent.step(divergence(teacher[batch], descent.outputs(batch), temperature=temperature), penalty=False)
    return Outcome(descent.subset.get(), options | {"retained_taking_part": count, "steps": descent.taken})


def taking_part(retained: int, share: float) -> int:
    """How many retained samples that is, one at least."""
    return max(1, round(share * retained))


def _cost(problem: Problem) -> list[Route]:
    epochs, batch, s = count_of(problem, "epochs"), count_of(problem, "batch_size"), problem.sizes
    share = problem.options["share"]
    count = taking_part(s.retain, share) if isinstance(share, int | float) and SHARE.holds(share) else s.retain
    teachers = (s.samples + s.forget) * problem.speed.forward
    return [problem.passes(epochs * (count + s.forget), batch=batch, extra_seconds=teachers)]


METHOD = Method(
    name="bad-teacher",
    summary="a student of the run's model on the retained samples and of the untrained one on the forgotten ones",
    run=bad_teacher,
    cost=_cost,
    needs=frozenset({"images"}),
    search_space={
        "temperature": (1.0, 2.0, 4.0),
        "share": (0.3, 1.0),
        "lr": (1e-4, 5e-4, 1e-3, 2e-3, 5e-3),
        "epochs": (1, 2, 3, 5),
    },
)
