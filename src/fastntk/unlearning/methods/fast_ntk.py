"""``fast-ntk``: the corrected closed form; see :mod:`fastntk.unlearning.closed_form` and docs/method.md."""

from __future__ import annotations

from pathlib import Path

from fastntk.unlearning.closed_form import DAMPING, ScaleFit, closed_form
from fastntk.unlearning.linearisation import Point, RowsAt
from fastntk.unlearning.methods.stepped import stepped
from fastntk.unlearning.task import Outcome, Task


def fast_ntk(
    task: Task,
    *,
    damping: float = DAMPING,
    scale: float | None = None,
    scale_fit: ScaleFit = "auto",
    at: Point = "trained",
    solver: str = "auto",
    rows: RowsAt = "auto",
    folder: str | Path | None = None,
    memory_budget: int | None = None,
    chunk: int | None = None,
    validate: bool = True,
) -> Outcome:
    """The corrected closed form; needs only the anchor."""
    lin = task.linearised(at, chunk=chunk, rows=rows, folder=folder, memory_budget=memory_budget)
    form = closed_form(
        lin,
        task.run.data.labels,
        task.split,
        damping=damping,
        scale=scale,
        scale_fit=scale_fit,
        loss="cross-entropy" if task.run.recipe is None else task.run.recipe.loss,
        solver=solver,
        memory_budget=memory_budget,
    )
    task.stages.update(form.seconds)
    return stepped(task, lin, form.delta.to(lin.theta), form.details(), None, validate=validate)
