"""``fast-ntk``: the difference of two regressions on the rows; needs only the anchor. See docs/method.md.

Two forms: ``ridge`` is the paper's equation (1), corrected and damped (:mod:`fastntk.unlearning.fast_ntk.ridge`); ``softmax`` has
the cross-entropy in place of squares (:mod:`fastntk.unlearning.fast_ntk.softmax`) and lands several times nearer to Retrain where
that was the loss. ``auto`` takes ``ridge`` where one of its own options is given, where squares were trained or explain the
logits, or where the rows are not stored; ``softmax`` otherwise. The details say which, and why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from fastntk.base.errors import InputError
from fastntk.linalg import HeadRows
from fastntk.tangent.linearisation import Linearisation, Point, RowsAt
from fastntk.training.recipe import Recipe
from fastntk.unlearning.fast_ntk.ridge import DAMPING, RIDGE_REGIME, ClosedForm, ScaleFit, check_damping, closed_form
from fastntk.unlearning.fast_ntk.softmax import SoftmaxForm, softmax_form
from fastntk.unlearning.task import Outcome, Task
from fastntk.unlearning.update import stepped

Form = Literal["auto", "ridge", "softmax"]
RIDGE_OPTIONS = ("damping", "scale", "scale_fit", "solver")
"""Options that make ``auto`` take ``ridge``; of these only ``damping`` exists in both forms."""


def fast_ntk(
    task: Task,
    *,
    damping: float | None = None,
    scale: float | None = None,
    form: Form = "auto",
    scale_fit: ScaleFit = "auto",
    at: Point = "trained",
    solver: str = "auto",
    rows: RowsAt = "auto",
    folder: str | Path | None = None,
    memory_budget: int | None = None,
    chunk: int | None = None,
    validate: bool = True,
) -> Outcome:
    """The difference of two regressions on the rows, in closed form or by Newton's steps; needs only the anchor."""
    check_damping(damping)
    if form not in get_args(Form):
        raise InputError(f"form must be one of {', '.join(get_args(Form))}; got {form!r}.")
    values = {"damping": damping, "scale": scale, "scale_fit": scale_fit, "solver": solver}
    given = [name for name in RIDGE_OPTIONS if values[name] not in (None, "auto")]
    foreign = [name for name in given if name != "damping"]
    if form == "softmax" and foreign:
        raise InputError(f"{', '.join(foreign)} belongs to form='ridge': leave it out, or choose that form.")
    lin = task.linearised(at, chunk=chunk, rows=rows, folder=folder, memory_budget=memory_budget)
    labels, recipe = task.run.data.labels, task.run.recipe
    chosen, because = (form, "asked for") if form != "auto" else _automatic(recipe, lin, given)
    made: ClosedForm | SoftmaxForm | None = None
    if chosen != "softmax":
        made = closed_form(
            lin,
            labels,
            task.split,
            damping=DAMPING if damping is None else damping,
            scale=scale,
            scale_fit=scale_fit,
            loss="cross-entropy" if recipe is None else recipe.loss,
            solver=solver,
            memory_budget=memory_budget,
        )
        if chosen == "auto":
            chosen = "ridge" if made.explained >= RIDGE_REGIME else "softmax"
            because = f"no recipe names the loss, and a ridge regression explains {made.explained:.3f} of the logits' movement"
    if made is None or chosen == "softmax":
        made = softmax_form(lin, labels, task.split, damping=damping)
    task.stages.update(made.seconds)
    details = made.details() | {"form": chosen, "form_because": because}
    return stepped(task, lin, made.delta.to(lin.theta), details, None, validate=validate)


def _automatic(recipe: Recipe | None, lin: Linearisation, given: list[str]) -> tuple[Form, str]:
    """(form, why); still "auto" where only the fit of a ridge regression can tell."""
    if given:
        return "ridge", f"{', '.join(given)} given"
    if not isinstance(lin.rows, HeadRows):
        return "ridge", "the rows are not stored, and softmax needs them many times"
    if recipe is None:
        return "auto", ""
    return ("ridge", "the loss was squared") if recipe.loss == "squared" else ("softmax", "the loss was cross-entropy")
