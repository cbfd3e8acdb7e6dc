"""``fast-ntk``: the difference of two regressions on the rows; needs only the anchor. See docs/method.md.

Two forms: ``ridge`` is the paper's equation (1), corrected and damped (:mod:`fastntk.unlearning.closed_form`); ``softmax`` has
the cross-entropy in place of squares (:mod:`fastntk.unlearning.softmax_form`) and lands several times nearer to Retrain where
that was the loss. ``auto`` takes ``ridge`` where one of its own options is given, where squares were trained or explain the
logits, or where the rows are not stored; ``softmax`` otherwise. The details say which, and why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from fastntk.errors import InputError
from fastntk.linalg import HeadRows
from fastntk.unlearning.closed_form import DAMPING, RIDGE_REGIME, ClosedForm, ScaleFit, check_damping, closed_form
from fastntk.unlearning.linearisation import Linearisation, Point, RowsAt
from fastntk.unlearning.methods.stepped import stepped
from fastntk.unlearning.softmax_form import SoftmaxForm, softmax_form
from fastntk.unlearning.task import Outcome, Task

Form = Literal["auto", "ridge", "softmax"]


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
    of_ridge = {"scale": scale is not None, "scale_fit": scale_fit != "auto", "solver": solver != "auto"}
    given = [name for name, here in of_ridge.items() if here]
    if form == "softmax" and given:
        raise InputError(f"{', '.join(given)} belongs to form='ridge': leave it out, or choose that form.")
    lin = task.linearised(at, chunk=chunk, rows=rows, folder=folder, memory_budget=memory_budget)
    if damping is not None:
        given.append("damping")
    chosen, because = (form, "asked for") if form != "auto" else _automatic(task, lin, given)

    def ridge() -> ClosedForm:
        return closed_form(
            lin,
            task.run.data.labels,
            task.split,
            damping=DAMPING if damping is None else damping,
            scale=scale,
            scale_fit=scale_fit,
            loss="cross-entropy" if task.run.recipe is None else task.run.recipe.loss,
            solver=solver,
            memory_budget=memory_budget,
        )

    made: ClosedForm | SoftmaxForm | None = None
    if chosen == "look":
        made = ridge()
        fits = made.explained >= RIDGE_REGIME
        chosen = "ridge" if fits else "softmax"
        because = f"no recipe names the loss, and a ridge regression explains {made.explained:.3f} of the logits' movement"
        made = made if fits else None
    if made is None:
        made = ridge() if chosen == "ridge" else softmax_form(lin, task.run.data.labels, task.split, damping=damping)
    task.stages.update(made.seconds)
    details = made.details() | {"form": chosen, "form_because": because}
    return stepped(task, lin, made.delta.to(lin.theta), details, None, validate=validate)


def _automatic(task: Task, lin: Linearisation, given: list[str]) -> tuple[str, str]:
    """(form, why); the form is "look" where only the fit of a ridge regression can tell."""
    recipe = task.run.recipe
    if given:
        return "ridge", f"{', '.join(given)} given"
    if not isinstance(lin.rows, HeadRows):
        return "ridge", "the rows are not stored, and softmax needs them many times"
    if recipe is None:
        return "look", ""
    return ("ridge", "the loss was squared") if recipe.loss == "squared" else ("softmax", "the loss was cross-entropy")
