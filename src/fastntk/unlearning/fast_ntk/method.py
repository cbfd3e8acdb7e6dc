"""``fast-ntk``: the difference of two regressions on the rows; needs only the anchor. See docs/method.md.

Two forms: ``ridge`` is the paper's equation (1), corrected and damped (``fast_ntk.ridge``); ``softmax`` has the cross-entropy in
place of squares (``fast_ntk.softmax``) and lands several times nearer to Retrain where that was the loss. ``auto`` takes
``ridge`` where one of its own options is given, where squares were trained or explain the logits, or where the rows are not
stored; ``softmax`` otherwise. Which one, and why, is decided with the route (``fast_ntk.routes``) and said in the details.
"""

from __future__ import annotations

from fastntk.unlearning.fast_ntk.ridge import DAMPING, RIDGE_REGIME, ClosedForm, ScaleFit, check_damping, closed_form
from fastntk.unlearning.fast_ntk.routes import Form, cost
from fastntk.unlearning.fast_ntk.softmax import SoftmaxForm, softmax_form
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.update import checked_update


def fast_ntk(
    task: Task,
    *,
    damping: float | None = None,
    scale: float | None = None,
    form: Form = "auto",
    scale_fit: ScaleFit = "auto",
    solver: str = "auto",
    validate: bool = True,
) -> Outcome:
    """The difference of two regressions on the rows, in closed form or by Newton's steps; needs only the anchor."""
    check_damping(damping)
    assert task.route is not None
    settings = task.route.settings
    lin = task.linearised()
    labels, recipe = task.run.data.labels, task.run.recipe
    form, because = settings["form"], settings["because"]
    update: ClosedForm | SoftmaxForm | None = None
    if form != "softmax":
        update = closed_form(
            lin,
            labels,
            task.split,
            damping=DAMPING if damping is None else damping,
            scale=scale,
            scale_fit=scale_fit,
            loss="cross-entropy" if recipe is None else recipe.loss,
            solver=settings["solver"],
            rank=settings.get("rank"),
        )
        if form == "auto":
            form = "ridge" if update.explained >= RIDGE_REGIME else "softmax"
            because = f"no recipe names the loss, and a ridge regression explains {update.explained:.3f} of the logits' movement"
    if update is None or form == "softmax":
        update = softmax_form(lin, labels, task.split, damping=damping)
    task.stages.update(update.seconds)
    details = update.details() | {"form": form, "form_because": because}
    return checked_update(task, lin, update.delta.to(lin.theta), details, None, validate=validate)


METHOD = Method(
    name="fast-ntk",
    summary="one computed step of the tuned weights, from a linear model of the network",
    run=fast_ntk,
    cost=cost,
    needs=frozenset({"rows", "images"}),
)
