"""``amnesiac``, amnesiac unlearning (Graves, Nagisetty and Ganesh 2021): take back the updates of batches with forgotten samples.

    w = θ − Σ_{t: B_t ∩ D_f ≠ ∅} (w_{t+1} − w_t),    then epochs of min_w L_r(w) + wd/2·‖w − w0‖² from there

The paper keeps the updates of batches that hold sensitive samples; here all follow from the trace. What the retained samples of
those batches taught goes with them, and later steps, taken from where the earlier ones had led, stay as they were. With batches
of 64 and a tenth of the samples nearly every batch holds one: nearly everything is taken back, and what comes after is training
from about the anchor. So the method needs D_f in few batches, or the training afterwards, as the paper advises.
"""

from __future__ import annotations

import math

import torch

from fastntk.base.progress import track
from fastntk.planning import Problem, Route
from fastntk.planning.problem import without_trace
from fastntk.training.recipe import Schedule
from fastntk.training.trace_path import recorded_path
from fastntk.unlearning.baselines.common.costs import count_of, head_path_seconds
from fastntk.unlearning.baselines.common.descent import RANGES, Descent, batches, unmoved
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import checked


def amnesiac(
    task: Task, *, epochs: int = 5, lr: float = 1e-2, batch_size: int = 64, schedule: Schedule = "cosine", seed: int = 0
) -> Outcome:
    """``epochs``: of training on the retained samples once updates are taken back; 0: none. An empty request moves nothing."""
    options = checked("amnesiac", RANGES, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    trace, run = task.trace, task.run
    theta = run.subset.get().cpu()
    taken_back, count = torch.zeros_like(theta, dtype=torch.float64), 0
    for step in track(recorded_path(trace, run.subset, run.anchor), "taking back updates", total=trace.steps):
        if not bool(task.keep[step.samples].all()):
            taken_back += step.after.cpu().double() - step.weights.cpu().double()
            count += 1
    vector = theta - taken_back.to(theta)
    details = options | {"batches": trace.steps, "taken_back": count, "share_taken_back": count / max(trace.steps, 1)}
    if not epochs:
        return Outcome(vector, details)
    retain = task.split.retain
    descent = Descent(task, lr=lr, schedule=schedule, steps=epochs * math.ceil(len(retain) / batch_size), seed=seed)
    descent.subset.set(vector)
    for _ in track(range(epochs), "training on the retained samples"):
        for batch in batches(retain, batch_size, descent.retain_draws):
            descent.step(descent.loss(batch))
    return descent.outcome(details)


def _cost(problem: Problem) -> list[Route]:
    if problem.trace is None:
        return [without_trace(problem.passes(0, batch=1))]
    count, size = count_of(problem, "epochs", least=0) * problem.sizes.retain, count_of(problem, "batch_size")
    return [problem.passes(count, batch=size, extra_seconds=head_path_seconds(problem), note="recorded updates, training passes")]


METHOD = Method(
    name="amnesiac",
    summary="taking back the recorded updates of all batches that held forgotten samples, and training on the retained ones",
    run=amnesiac,
    cost=_cost,
    needs=frozenset({"trace", "images"}),
    spared=lambda options: frozenset() if options["epochs"] else frozenset({"images"}),
    search_space={"lr": (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2), "epochs": (0, 1, 2, 3, 5, 10)},
)
