"""``tangent-replay``: the recipe replayed in the linearised model; see ``tangent_replay.difference`` and docs/method.md."""

from __future__ import annotations

import time
from pathlib import Path

from fastntk.tangent.linearisation import Point, RowsAt
from fastntk.training.network import working_copy
from fastntk.unlearning.tangent_replay.averaging import Average
from fastntk.unlearning.tangent_replay.blending import Blend
from fastntk.unlearning.tangent_replay.difference import tangent_replay_update
from fastntk.unlearning.tangent_replay.path_models import PathName
from fastntk.unlearning.tangent_replay.polish import finish
from fastntk.unlearning.task import Outcome, Task
from fastntk.unlearning.update import stepped


def tangent_replay(
    task: Task,
    *,
    path: PathName = "auto",
    average: Average = "auto",
    blend: Blend = "auto",
    polish: int = 0,
    at: Point = "trained",
    rows: RowsAt = "auto",
    folder: str | Path | None = None,
    memory_budget: int | None = None,
    chunk: int | None = None,
    validate: bool = True,
) -> Outcome:
    """The recipe replayed in the linearised model, with and without the forget set."""
    recipe = task.recipe
    lin = task.linearised(at, chunk=chunk, rows=rows, folder=folder, memory_budget=memory_budget)
    made = tangent_replay_update(
        lin, task.run.data.labels, task.split, recipe, path=path, average=average, blend=blend, polish=polish
    )
    task.stages["replay"] = made.seconds
    details = made.details()
    if recipe.bn_stats == "update":
        details["note"] = "the recipe trained on batch statistics, the replay on the final ones: an approximation"
    target = lin.theta + made.delta
    predicted = lambda batch: made.path.model(batch, target)
    outcome = stepped(task, lin, made.delta, details, predicted, validate=validate, miss=details["replay_miss"])
    if made.resume is None:
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
        resume=made.resume,
    )
    task.stages["polish"] = time.perf_counter() - started
    return Outcome(vector, outcome.details | {"polish": polish})
