"""``retrain``: the reference everything is compared with, and ``full``: nothing done, the other end of every comparison.

The run's recipe from its anchor, without the forgotten samples, in the run's own batch order (of a run from which samples were
forgotten before: that of its trace, where it has one); or the user's own training, where
a function is given (:mod:`fastntk.unlearning.baselines.own_training`).
"""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor, nn

from fastntk.data import Samples
from fastntk.planning import Problem, Route
from fastntk.planning.problem import without_recipe
from fastntk.training.fitting import train
from fastntk.training.loop import WalkedBatches
from fastntk.training.network import working_copy
from fastntk.training.recipe import Recipe
from fastntk.tuning import Subset
from fastntk.unlearning.baselines.own_training import Retrainer, function_name, own_seed, train_own
from fastntk.unlearning.method import Method, Outcome, Task


def retrain(task: Task, *, seed: int | None = None, retrain: Retrainer | None = None) -> Outcome:
    """The reference: from the anchor, with the run's recipe, without the forgotten samples; or by ``retrain(keep_ids, seed)``."""
    if retrain is not None:
        return _by_own_training(task, retrain, seed=own_seed(task.run) if seed is None else seed)
    work = working_copy(task.run)
    subset = task.run.subset.on(work)
    run = task.run
    history = retrain_in_place(work, subset, run.anchor, run.data, task.keep, task.recipe, seed=seed, walked=run.walked)
    return Outcome(subset.get(), {"seed": task.recipe.seed if seed is None else seed, "final": history[-1:]})


def _by_own_training(task: Task, function: Retrainer, *, seed: int) -> Outcome:
    ids = task.run.listed.ids
    training = train_own(task.run, function, [ids[i] for i in task.split.retain.tolist()], seed=seed)
    details = {"seed": seed, "retrained_by": function_name(function), "changed_outside": len(training.outside)}
    vector = task.run.subset.on(training.model).get()
    return Outcome(vector, details, model=training.model if training.whole else None)


def full(task: Task) -> Outcome:
    """Nothing is done."""
    return Outcome(task.run.subset.get(), {})


def retrain_in_place(
    model: nn.Module,
    subset: Subset,
    anchor: Tensor,
    samples: Samples,
    keep: Tensor,
    recipe: Recipe,
    *,
    seed: int | None,
    walked: WalkedBatches | None = None,
) -> list[dict[str, float]]:
    """Train ``model`` in place from the anchor on the kept samples; return the history."""
    subset.set(anchor)
    recipe = recipe if seed is None else dataclasses.replace(recipe, seed=seed)
    return train(model, subset, samples, recipe, keep=keep, description="retraining", walked=walked)


def _cost(problem: Problem) -> list[Route]:
    recipe = problem.recipe
    if problem.options["retrain"] is not None:
        return [Route(problem.method, "none", "your own training", math.nan, bounded=False)]
    if recipe is None:
        return [without_recipe(problem.passes(0, batch=1))]
    return [problem.passes(recipe.epochs * problem.sizes.retain, batch=recipe.batch_size)]


RETRAIN = Method(
    name="retrain",
    summary="fine-tuning again from the start without the forgotten samples",
    run=retrain,
    cost=_cost,
    needs=frozenset({"recipe", "images"}),
    spared=lambda options: frozenset({"recipe", "images"}) if options["retrain"] is not None else frozenset(),
)
FULL = Method(
    name="full",
    summary="nothing: the model as it was",
    run=full,
    cost=lambda problem: [problem.passes(0, batch=1, note="nothing to compute")],
)
