"""``deltagrad`` (Wu, Dobriban and Davidson 2020): the recorded training again without D_f, most gradients guessed.

At step t the batch has B samples, r of them forgotten. w_t, g_t: parameters and batch gradient of the recorded path; w': the new
parameters.

    batch gradient at w'      g ≈ g_t + H (w' − w_t)              H: L-BFGS matrix of the newest pairs (w' − w_t, g(w') − g_t)
                              g computed on the network           in the first burn_in steps, and every period-th step after them
    of the retained part      (B·g − Σ_{i forgotten} ∇ℓ_i(w')) / (B − r)      the forgotten samples' gradients are always computed
    step                      the run's own optimiser, rate and penalty

Paper: gradient descent, or SGD with large batches, on strongly convex losses; for networks a variant that computes the gradient
wherever the guess cannot be trusted. Here: that variant, driven through the run's optimiser (Adam, momentum), with batches as
small as the recipe's. Because that is how runs are made; pairs of such batches tell of other batches' Hessians only roughly, and
the promise of the paper's theorems does not reach here. ``period=1`` computes everything and is Retrain.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastntk.base.errors import DivergedError, InputError
from fastntk.base.progress import track
from fastntk.models import device_of, logits
from fastntk.planning import Problem, Route
from fastntk.planning.problem import without_recipe, without_trace
from fastntk.training.loop import batch_loss
from fastntk.training.network import check_samples, fast_layout, working_copy
from fastntk.training.trace_path import PathOptimizer, recorded_path
from fastntk.unlearning.baselines.common.costs import count_of, head_path_seconds
from fastntk.unlearning.baselines.common.descent import unmoved
from fastntk.unlearning.baselines.common.lbfgs import History
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.ranges import COUNT, COUNT_FROM_ZERO, checked


def deltagrad(task: Task, *, period: int = 5, burn_in: int = 20, history: int = 2) -> Outcome:
    """``history``: pairs that H is made of. A step whose guess fails a check is computed as well, and counted in the details; so
    is each pair that the curvature condition refuses. A batch of forgotten samples only is skipped, as in Retrain. An empty
    request moves nothing.
    """
    options = checked("deltagrad", {"period": COUNT, "burn_in": COUNT_FROM_ZERO, "history": COUNT}, locals())
    if not len(task.split.forget):
        return unmoved(task, options)
    vector, counts = replayed(task, period=period, burn_in=burn_in, history=history)
    return Outcome(vector, options | counts)


def replayed(task: Task, *, period: int, burn_in: int, history: int) -> tuple[Tensor, dict[str, int]]:
    """Where the path without the forgotten samples ends (d,), and how many steps were computed, guessed, skipped."""
    run, trace = task.run, task.trace
    network = _Gradients(task)
    pairs = History(history)
    new = PathOptimizer(trace, run.subset, run.anchor)
    counts = {"steps": trace.steps, "computed": 0, "guessed": 0, "fell_back": 0, "skipped": 0}
    for step in track(recorded_path(trace, run.subset, run.anchor), "deltagrad", total=trace.steps):
        keep = task.keep[step.samples]
        retain, forget = step.samples[keep], step.samples[~keep]
        if not len(retain):
            counts["skipped"] += 1
            continue
        difference = new.values - step.weights
        forget_gradient = network.mean(forget, new.values) if len(forget) else torch.zeros_like(difference)
        explicit = step.number < burn_in or (step.number - burn_in) % period == 0
        change = None if explicit else pairs.product(difference)
        if change is None:
            gradient = network.mean(retain, new.values)
            whole = (len(retain) * gradient + len(forget) * forget_gradient) / len(step.samples)
            pairs.add(difference, whole - step.gradient)
            counts["computed" if explicit else "fell_back"] += 1
        else:
            gradient = (len(step.samples) * (step.gradient + change) - len(forget) * forget_gradient) / len(retain)
            counts["guessed"] += 1
        new.step(step.number, gradient)
        if not bool(new.values.isfinite().all()):
            raise DivergedError(
                f"deltagrad diverged in step {step.number + 1} of {trace.steps}: the guessed gradients led away. Compute more of "
                f"them: a smaller period (now {period}) or a longer burn_in (now {burn_in})."
            )
    return new.values.detach(), counts | {"refused_pairs": pairs.refused}


class _Gradients:
    """Gradients of the run's loss on a working copy of its model."""

    def __init__(self, task: Task) -> None:
        data, self._recipe = task.run.data, task.recipe
        if self._recipe.bn_stats == "update":
            raise InputError(
                "Method 'deltagrad' needs gradients of single samples' losses, and with bn_stats='update' those depend on the "
                "rest of the batch. Use method='retrain', or fine-tune with bn_stats='frozen'."
            )
        check_samples(task.run.model, data)
        self._model = working_copy(task.run)
        self._subset = task.run.subset.on(self._model)
        self._smoothing = task.trace.facts.smoothing
        self._inputs, self._labels = fast_layout(self._model, data.inputs), data.labels.to(device_of(self._model))

    def mean(self, batch: Tensor, vector: Tensor) -> Tensor:
        """∇ of the mean loss of these samples at these tuned parameters, (d,)."""
        self._subset.set(vector)
        loss = batch_loss(logits(self._model, self._inputs[batch]), self._labels[batch], self._recipe, smoothing=self._smoothing)
        gradients = torch.autograd.grad(loss, list(self._subset.parameters.values()), materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _cost(problem: Problem) -> list[Route]:
    path, recipe, s = problem.trace, problem.recipe, problem.sizes
    if path is None or recipe is None:
        return [(without_trace if path is None else without_recipe)(problem.passes(0, batch=1))]
    first = min(path.steps, count_of(problem, "burn_in", least=0))
    explicit = first + math.ceil((path.steps - first) / count_of(problem, "period"))
    share = explicit / max(path.steps, 1)
    count = path.visits * (share + (1 - share) * s.forget / s.samples)
    # One more pass a step, over the few forgotten samples: small operations count there, not samples.
    extra = head_path_seconds(problem) + path.steps * 200 * problem.speed.dispatch
    return [problem.passes(count, batch=recipe.batch_size, extra_seconds=extra, note="training passes, more where a guess fails")]


METHOD = Method(
    name="deltagrad",
    summary="the recorded training again without the forgotten samples, most of its gradients approximated by L-BFGS",
    run=deltagrad,
    cost=_cost,
    needs=frozenset({"trace", "recipe", "images"}),
    search_space={"period": (2, 3, 5, 10, 20), "burn_in": (5, 20, 50, 100), "history": (1, 2, 5)},
)
