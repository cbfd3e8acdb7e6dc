"""``unlearn``: from a request to a new model, by a named method.

Request → split → method → new tuned vector → fresh copy of the model → evidence. The run is never written to. Chained requests
are computed from the run itself with everything forgotten so far, so one linearisation, one λ and one scale serve them all,
and the order of requests does not matter.
"""

from __future__ import annotations

import inspect
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastntk.data import ForgetRequest, Split
from fastntk.errors import InputError
from fastntk.recipe import Recipe
from fastntk.run import Run
from fastntk.unlearning.baselines import push_away, retrain
from fastntk.unlearning.closed_form import DAMPING, ScaleFit, closed_form
from fastntk.unlearning.linearisation import Linearisation, Point, RowsAt, linearise_run, working_copy
from fastntk.unlearning.path import PathName
from fastntk.unlearning.replay import finish, tangent_replay
from fastntk.unlearning.residue import outside_report, renew_statistics
from fastntk.unlearning.result import Unlearned
from fastntk.unlearning.validity import check_step


@dataclass
class _Task:
    """What a method is given."""

    run: Run
    split: Split
    linearisation: Linearisation | None
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def keep(self) -> Tensor:
        """True for samples that stay, (n,)."""
        mask = torch.ones(len(self.run.data), dtype=torch.bool)
        mask[self.split.forget] = False
        return mask

    @property
    def recipe(self) -> Recipe:
        """The run's recipe, or an error that says what to do without one."""
        if self.run.recipe is None:
            raise InputError(
                "This method replays the run's recipe, and the run has none. Give it: Run(..., recipe=Recipe(...)) with the "
                "settings the model was fine-tuned with; or use method='fast-ntk', which needs only the anchor."
            )
        return self.run.recipe

    def linearised(self, at: Point, **options: Any) -> Linearisation:
        """The linearisation that was handed in, or a new one."""
        if self.linearisation is None or self.linearisation.at != at:
            self.linearisation = linearise_run(self.run, at=at, **options)
            self.stages["rows"] = self.linearisation.seconds
        else:
            self.linearisation.check_run(self.run)
        return self.linearisation


@dataclass(frozen=True)
class _Outcome:
    """What a method gives back: the new tuned vector (d,), and details."""

    vector: Tensor
    details: dict[str, Any]


def _fast_ntk(
    task: _Task,
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
) -> _Outcome:
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
    return _stepped(task, lin, form.delta.to(lin.theta), form.details(), None, validate=validate)


def _tangent_replay(
    task: _Task,
    *,
    path: PathName = "auto",
    polish: int = 0,
    at: Point = "trained",
    rows: RowsAt = "auto",
    folder: str | Path | None = None,
    memory_budget: int | None = None,
    chunk: int | None = None,
    validate: bool = True,
) -> _Outcome:
    """The recipe replayed in the linearised model, with and without the forget set."""
    recipe = task.recipe
    lin = task.linearised(at, chunk=chunk, rows=rows, folder=folder, memory_budget=memory_budget)
    made = tangent_replay(lin, task.run.data.labels, task.split, recipe, path=path, polish=polish)
    task.stages["replay"] = made.seconds
    details = made.details()
    if recipe.bn_stats == "update":
        details["note"] = "the recipe trained on batch statistics, the replay on the final ones: an approximation"
    target = lin.theta + made.delta
    predicted = lambda batch: made.model(batch, target)
    outcome = _stepped(task, lin, made.delta, details, predicted, validate=validate, miss=details["replay_miss"])
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
    return _Outcome(vector, outcome.details | {"polish": polish})


def _stepped(
    task: _Task,
    lin: Linearisation,
    delta: Tensor,
    details: dict[str, Any],
    predicted: Callable[[Tensor], Tensor] | None,
    *,
    validate: bool,
    miss: float = 0.0,
) -> _Outcome:
    """Check the step, shorten it where the network disagrees, and report."""
    if not torch.isfinite(delta).all():
        raise InputError("The update is not finite: raise the damping, or check the inputs and weights for NaN.")
    length = 1.0
    details["rows"] = lin.routes | {"at": lin.at, "kept": lin.kept}
    if validate and bool((delta != 0).any()):
        started = time.perf_counter()
        length, details["validity"] = check_step(task.run, lin, task.split, delta, predicted, miss=miss)
        task.stages["validity"] = time.perf_counter() - started
    else:
        details["validity"] = {"verdict": "ok" if not bool((delta != 0).any()) else "not checked", "step_length": 1.0}
    return _Outcome(lin.theta + length * delta, details)


def _retrain(task: _Task, *, seed: int | None = None) -> _Outcome:
    """The reference: from the anchor, with the run's recipe, without the forgotten samples."""
    work = working_copy(task.run)
    subset = task.run.subset.on(work)
    history = retrain(work, subset, task.run.anchor, task.run.data, task.keep, task.recipe, seed=seed)
    return _Outcome(subset.get(), {"seed": task.recipe.seed if seed is None else seed, "final": history[-1:]})


def _full(task: _Task) -> _Outcome:
    """Nothing is done."""
    return _Outcome(task.run.subset.get(), {})


def _max_loss(task: _Task, *, epochs: int = 2, lr: float = 1e-2, batch_size: int = 64, seed: int = 0) -> _Outcome:
    """Ascend the loss of the forgotten samples."""
    return _pushed(task, random_labels=False, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)


def _random_label(task: _Task, *, epochs: int = 5, lr: float = 1e-2, batch_size: int = 64, seed: int = 0) -> _Outcome:
    """Descend the loss of the forgotten samples under random other labels."""
    return _pushed(task, random_labels=True, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)


def _pushed(task: _Task, *, random_labels: bool, **options: Any) -> _Outcome:
    work = working_copy(task.run)
    subset = task.run.subset.on(work)
    if len(task.split.forget):
        push_away(work, subset, task.run.data.subset(task.split.forget), random_labels=random_labels, **options)
    return _Outcome(subset.get(), dict(options))


METHODS: dict[str, Callable[..., _Outcome]] = {
    "fast-ntk": _fast_ntk,
    "tangent-replay": _tangent_replay,
    "retrain": _retrain,
    "full": _full,
    "max-loss": _max_loss,
    "random-label": _random_label,
}


def unlearn(
    run: Run | Unlearned,
    *,
    classes: Sequence[int | str] | None = None,
    ids: Sequence[int | str] | None = None,
    method: str = "fast-ntk",
    linearisation: Linearisation | None = None,
    **options: Any,
) -> Unlearned:
    """Make a copy of the run's model that behaves as if it had never seen the samples named.

    ``classes``: labels (int) or class names (str); ``ids``: sample ids; both together mean either. ``run`` may be an earlier
    result: its request is then extended, from the same linearisation. ``linearisation``: one from
    :func:`linearise_run`, to serve several requests. ``options`` are those of the method: an unknown one is refused with
    the list of known ones.
    """
    previous = run if isinstance(run, Unlearned) else None
    origin = previous.run if previous else run
    assert isinstance(origin, Run)
    call = METHODS.get(method)
    if call is None:
        raise InputError(f"Unknown method {method!r}: choose one of {', '.join(METHODS)}.")
    _check_options(method, call, options)
    started = time.perf_counter()
    split = _resolve(origin, previous, classes, ids)
    task = _Task(origin, split, linearisation or (previous.linearisation if previous else None))
    outcome = call(task, **options)
    model = working_copy(origin)
    model.train(origin.model.training)
    subset = origin.subset.on(model)
    subset.set(outcome.vector)
    kept = origin.data.subset(split.retain)
    details = {
        "method": method,
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "request": _request_details(origin, split, previous),
        **outcome.details,
        **renew_statistics(origin, model, kept),
        "outside_subset": outside_report(origin),
        "seconds": task.stages | {"total": time.perf_counter() - started},
        "peak_memory_bytes": _peak_memory(),
    }
    start = previous.subset.get() if previous else origin.subset.get()
    return Unlearned(
        run=origin,
        model=model,
        delta=outcome.vector - start,
        method=method,
        split=split,
        seconds=time.perf_counter() - started,
        details=details,
        linearisation=task.linearisation,
    )


def _resolve(run: Run, previous: Unlearned | None, classes: Sequence[int | str] | None, ids: Sequence[int | str] | None) -> Split:
    """The request's split, with what earlier requests forgot added."""
    request = ForgetRequest(classes=None if classes is None else tuple(classes), ids=None if ids is None else tuple(ids))
    split = request.resolve(run.data, allow_empty=True)
    if previous is None:
        return split
    gone = set(previous.split.forget.tolist())
    again = [run.data.ids[i] for i in split.forget.tolist() if i in gone]
    if again and classes is None:
        raise InputError(f"Already forgotten by the earlier request: {', '.join(again[:8])}.")
    union = sorted(gone | set(split.forget.tolist()))
    return ForgetRequest(ids=tuple(run.data.ids[i] for i in union)).resolve(run.data, allow_empty=True)


def _request_details(run: Run, split: Split, previous: Unlearned | None) -> dict[str, Any]:
    """What was asked, without naming anybody: counts, classes and a digest of the ids."""
    return {
        "forget": len(split.forget),
        "retain": len(split.retain),
        "whole_classes": list(split.whole_classes),
        "ids_digest": run.data.subset(split.forget).ids_digest() if len(split.forget) else None,
        "chained": previous is not None,
    }


def _check_options(method: str, call: Callable[..., _Outcome], options: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(call).parameters if name != "task"]
    unknown = [name for name in options if name not in known]
    if unknown:
        accepted = ", ".join(known) or "none"
        raise InputError(f"Method {method!r} has no option {', '.join(unknown)}; it takes: {accepted}.")


def _peak_memory() -> int:
    """Peak resident bytes of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
