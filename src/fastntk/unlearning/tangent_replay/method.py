"""``tangent-replay``: the recipe replayed in the linearised model; see ``tangent_replay.difference`` and docs/method.md."""

from __future__ import annotations

import math
import time

from fastntk.linalg.choose import CHUNK_BYTES
from fastntk.planning import Problem, Route
from fastntk.planning.problem import Rows, without_recipe
from fastntk.training.network import working_copy
from fastntk.training.recipe import Recipe
from fastntk.unlearning.fast_ntk.routes import newton_memory, newton_seconds
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.tangent_replay.averaging import SEEDS, Average
from fastntk.unlearning.tangent_replay.blending import Blend
from fastntk.unlearning.tangent_replay.difference import tangent_replay_update
from fastntk.unlearning.tangent_replay.path_models import BATCH, PathName
from fastntk.unlearning.tangent_replay.polish import finish
from fastntk.unlearning.update import checked_update

OPERATIONS_A_STEP = 500
"""Small tensor operations of one step of a replay, the optimiser's included."""
PATHS = 3


def tangent_replay(
    task: Task,
    *,
    path: PathName = "auto",
    average: Average = "auto",
    blend: Blend = "auto",
    polish: int = 0,
    validate: bool = True,
) -> Outcome:
    """The recipe replayed in the linearised model, with and without the forget set."""
    recipe = task.recipe
    lin = task.linearised()
    labels = task.run.data.labels
    walked = task.run.walked
    update = tangent_replay_update(
        lin, labels, task.split, recipe, path=path, average=average, blend=blend, polish=polish, walked=walked
    )
    task.stages["replay"] = update.seconds
    details = update.details()
    if recipe.bn_stats == "update":
        details["note"] = "the recipe trained on batch statistics, the replay on the final ones: an approximation"
    target = lin.theta + update.delta
    predicted = lambda batch: update.path.model(batch, target)
    outcome = checked_update(task, lin, update.delta, details, predicted, validate=validate, miss=details["replay_miss"])
    if update.resume is None:
        return outcome
    started = time.perf_counter()
    work = working_copy(task.run)
    vector = finish(
        work,
        task.run.subset.on(work),
        task.run.data,
        recipe,
        start=outcome.vector,
        anchor=lin.anchor,
        keep=task.keep,
        resume=update.resume,
        walked=walked,
    )
    task.stages["polish"] = time.perf_counter() - started
    return Outcome(vector, outcome.details | {"polish": polish})


def _cost(problem: Problem) -> list[Route]:
    places = [place for place in problem.places if place in ("memory", "disk")]
    if not places:
        why = "needs stored rows: give rows='disk' and folder=..., or raise memory_budget"
        return [Route(problem.method, "stream", "replays", math.nan, fits=False, why_not=why)]
    routes = [_route(problem, place, problem.recipe or Recipe()) for place in places]
    return [without_recipe(route) for route in routes] if problem.recipe is None else routes


def _route(problem: Problem, place: Rows, recipe: Recipe) -> Route:
    """Trainings on stored rows, a batch gathered and multiplied twice; under cross-entropy the softmax form as well.

    With all samples by each path model, and without the forgotten ones for each seed. An exact replay needs fewer.
    """
    s, speed, options = problem.sizes, problem.speed, problem.options
    paths = PATHS if options["path"] == "auto" else 1
    average = options["average"]
    seeds = average if isinstance(average, int) else SEEDS if problem.whole_classes else 1
    steps = recipe.epochs * math.ceil(s.samples / recipe.batch_size)
    read_seconds = problem.read_seconds(speed.replay, place)
    seconds = (paths + seeds) * (recipe.epochs * read_seconds + steps * OPERATIONS_A_STEP * speed.dispatch)
    batch_memory = min(max(2 * recipe.batch_size, 2 * BATCH), 2 * s.samples) * s.body_row_bytes
    memory = batch_memory + 16 * 8 * s.parameters + CHUNK_BYTES
    if options["blend"] != 0 and (options["blend"] != "auto" or recipe.loss == "cross-entropy"):
        seconds += newton_seconds(problem, place)
        memory = max(memory, newton_memory(problem))
    polish = options["polish"]
    seconds += (polish if isinstance(polish, int) else 0) * s.retain * speed.step
    return problem.stored(place, "replays", seconds=seconds, memory=memory, settings={})


METHOD = Method(
    name="tangent-replay",
    summary="the fine-tuning replayed without the forgotten samples, on a linear model of the network",
    run=tangent_replay,
    cost=_cost,
    needs=frozenset({"rows", "recipe", "images"}),
)
