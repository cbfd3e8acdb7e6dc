"""``plan`` and ``unlearn``: from a request to a new model, by a named method and a route that is decided before any work.

Request → split → plan → method along the plan's route → new tuned vector → fresh copy of the model → evidence. The run is never
written to. Chained requests are computed from the run itself with everything forgotten so far, so one linearisation, one λ and
one scale serve them all, and the order of requests does not matter.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError
from fastntk.base.gradients import with_gradients
from fastntk.base.memory import memory_allowed
from fastntk.data import ForgetRequest, Split
from fastntk.data.duplicates import Check, find_copies
from fastntk.planning import Plan, Problem, Route, calibrate, disk_budget, make_plan, sizes_of, uncalibrated
from fastntk.planning.problem import Rows, TraceSizes, without_images
from fastntk.tangent.linearisation import Linearisation
from fastntk.tangent.on_disk import bytes_on_disk
from fastntk.training.network import check_finite, check_precision
from fastntk.training.run import Run
from fastntk.unlearning.job import Job
from fastntk.unlearning.method import ROW_OPTIONS, Method, RowOptions, Task, recipe_of, trace_of
from fastntk.unlearning.registry import METHODS, find_method
from fastntk.unlearning.residue import check_reason, outside_report
from fastntk.unlearning.result import Unlearned

Names = int | str | Sequence[int | str] | Tensor | None
"""Classes or ids: one, or several."""


def unlearn(
    run: Run | Unlearned,
    *,
    classes: Names = None,
    ids: Names = None,
    method: str | None = None,
    linearisation: Linearisation | None = None,
    plan: Plan | None = None,
    accept_outside: str | None = None,
    **options: Any,
) -> Unlearned:
    """Make a copy of the run's model that behaves as if it had never seen the samples named.

    ``classes``: labels (int) or class names (str); ``ids``: sample ids; both together mean either. ``run`` may be an earlier
    result: its request is then extended, from the same linearisation. ``linearisation``: one from
    ``linearise_run``, to serve several requests. ``plan``: one that ``fastntk.plan`` made for this request, whose route is
    taken; without it one is made. ``options`` are those of the method: an unknown one is refused with the list of known ones.

    Weights outside the tuned subset are not changed. Where they were trained on this data too, or nothing is known of them, a
    warning says so first, and no audit will say that the samples were forgotten; ``accept_outside``: why you go on all the same,
    which is recorded.

    Without ``method``: ``path-replay`` where the run has a trace, else ``tangent-replay`` where it has a recipe, else
    ``fast-ntk``; ``details["method"]`` says which, ``details["method_because"]`` why.
    """
    job = prepare(
        run,
        classes=classes,
        ids=ids,
        method=method,
        linearisation=linearisation,
        plan=plan,
        options=options,
        accept_outside=accept_outside,
    )
    if job.leaves_open and accept_outside is None:
        warnings.warn(f"unlearn: {job.outside['message']}", stacklevel=2)
    return job.execute()


def plan(
    run: Run,
    *,
    classes: Names = None,
    ids: Names = None,
    method: str | Sequence[str] | None = None,
    memory_budget: int | None = None,
    disk_budget: int | None = None,
    chunk: int | None = None,
    folder: str | Path | None = None,
    duplicates: Check = "exact",
    **options: Any,
) -> Plan:
    """Estimate what forgetting these classes and ids would cost; BudgetError with advice where nothing fits.

    ``method``: one or several; None means ``path-replay`` where there is a trace, and every method that works on rows.
    ``options``: those of the one method. Budgets are in bytes; None means 70 % of the memory available and 90 % of the free disk
    where the rows would go (``folder``, or the temporary folder). Without classes and ids, Retrain is counted with all samples.
    ``Plan.copies``: samples that stay and are copies of some that go; ``duplicates="near"`` adds those that only look alike.
    """
    run = _known(run)
    names = [method] if isinstance(method, str) else list(method or _compared(run))
    methods = [find_method(name) for name in names]
    arguments = {"memory_budget": memory_budget, "disk_budget": disk_budget, "chunk": chunk, "folder": folder}
    common: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    common |= {name: value for name, value in options.items() if name in ROW_OPTIONS}
    own = {name: value for name, value in options.items() if name not in ROW_OPTIONS}
    if own and len(names) != 1:
        raise InputError(f"options ({', '.join(own)}) go with one method; give method=... as well.")
    by_method = {
        each: each.checked(own | {name: value for name, value in common.items() if name in each.options}) for each in methods
    }
    split = _resolve(run, None, classes if classes is not None or ids is not None else (), ids)
    copies = find_copies(run.samples, split, check=duplicates)
    result, _ = _plan(Task(run, split, row_options=RowOptions(**common)), by_method, measured=True)
    if not result.chosen:
        result.route(names[0])  # says why
    return replace(result, copies=copies)


def _known(run: object) -> Run:
    """The run, or a refusal of what is none."""
    if not isinstance(run, Run):
        advice = (
            "take result.as_run()" if isinstance(run, Unlearned) else "make one of a model by Run(model, subset, anchor, samples)"
        )
        raise InputError(f"Expected a Run, as fit, recorder.finish and Run.load return it, got {type(run).__name__}: {advice}.")
    return run


def _compared(run: Run) -> list[str]:
    return [*(["path-replay"] if run.trace is not None else []), *with_rows()]


def with_rows() -> list[str]:
    """Methods that work on rows: what a plan compares with Retrain unless told otherwise."""
    return [name for name, method in METHODS.items() if "rows" in method.needs]


def prepare(
    run: Run | Unlearned,
    *,
    classes: Names = None,
    ids: Names = None,
    method: str | None = None,
    linearisation: Linearisation | None = None,
    plan: Plan | None = None,
    options: dict[str, Any] | None = None,
    split: Split | None = None,
    measured: bool = False,
    accept_outside: str | None = None,
) -> Job:
    """Check a request and plan it; ``measured`` adds times, from a calibration of a few seconds.

    ``split``: a request on this run that was resolved before, in place of ``classes`` and ``ids``.
    """
    previous = run if isinstance(run, Unlearned) else None
    origin = _known(previous.run if previous else run)
    check_precision(origin.subset.parameters.items())
    check_reason(accept_outside)
    check_finite(origin.model, what="The run's model")
    because = "it was asked for"
    if method is None:
        method, because = _planned_method(plan) if plan is not None else default_method(origin)
    entry = find_method(method)
    settings = entry.checked(_planned_options(plan, method) | (options or {}) if plan is not None else options or {})
    started = time.perf_counter()
    split = _resolve(origin, previous, classes, ids) if split is None else split
    needs = entry.needed(settings)
    if "recipe" in needs:
        recipe_of(origin)
    if "images" in needs and origin.samples is None:
        raise InputError(origin.lacks_images(f"method {entry.name!r}"))
    if "trace" in needs:
        trace_of(origin).check(origin.subset, origin.anchor, origin.samples)  # weights may have been written to since
    available = linearisation or (previous.linearisation if previous else None)
    rows = RowOptions(**{name: value for name, value in settings.items() if name in ROW_OPTIONS})
    task = Task(origin, split, _usable(available, origin, rows) if "rows" in entry.needs else None, rows)
    calibrating = 0.0
    if plan is None:
        plan, calibrating = _plan(task, {entry: settings}, measured=measured)
    else:
        _check_plan(plan, task, entry, settings)
    plan.route(entry.name)
    return Job(
        entry, settings, task, plan, previous, available, time.perf_counter() - started - calibrating, because, accept_outside
    )


def default_method(run: Run) -> tuple[str, str]:
    """The method that a request takes where none is named, and why."""
    if run.trace is not None:
        return "path-replay", "the run has a trace of its fine-tuning"
    if run.recipe is not None:
        return "tangent-replay", "the run has no trace, but says how it was trained"
    return "fast-ntk", "the run has neither a trace nor a recipe"


def _planned_method(plan: Plan) -> tuple[str, str]:
    """The one method that a plan was made for."""
    if len(plan.options) != 1:
        raise InputError(f"This plan holds {', '.join(plan.options)}: say which with method=....")
    return next(iter(plan.options)), "it was planned"


def _planned_options(plan: Plan, method: str) -> dict[str, Any]:
    """The options that a plan was made with for this method."""
    if method not in plan.options:
        raise InputError(f"This plan holds {', '.join(plan.options)}, not {method!r}: make one with fastntk.plan(method=...).")
    return dict(plan.options[method])


def _check_plan(plan: Plan, task: Task, method: Method, options: dict[str, Any]) -> None:
    """Refuse a plan of another request, of other options, or for rows elsewhere than those handed in."""
    if plan.request != _request_digest(task):
        raise InputError("This plan was made for another run or request: make one with fastntk.plan for this one.")
    before, without = plan.options[method.name], ("validate",)  # whether a step is checked changes no route
    other = [name for name, value in options.items() if name not in without and (name not in before or before[name] != value)]
    if other:
        raise InputError(f"This plan was made with other options ({', '.join(other)}): leave them out, or plan with them.")
    ready = task.linearisation
    if ready is not None and "rows" in method.needs and plan.route(method.name).rows != ready.place:
        place = plan.route(method.name).rows
        raise InputError(f"This plan has its rows in {place}, the linearisation handed in has them in {ready.place}: plan again.")


def _request_digest(task: Task) -> str:
    """Which samples of which data go; of ids and positions, not of pixels."""
    return json_digest([task.run.listed.ids_digest(), task.split.forget.tolist(), task.run.subset.numel])


@with_gradients
def _plan(task: Task, methods: dict[Method, dict[str, Any]], *, measured: bool) -> tuple[Plan, float]:
    """Routes of these methods with these options, judged by the budgets, and the seconds that measuring took.

    The engine is made only where a method needs it.
    """
    run, rows = task.run, task.row_options
    blind = {method for method, options in methods.items() if run.samples is None and "images" in method.needed(options)}
    engine = task.engine if any({"rows", "engine"} & method.needs for method in methods if method not in blind) else None
    sizes = sizes_of(run, task.split, engine, chunk=rows.chunk)
    started = time.perf_counter()
    speed = calibrate(run, engine, chunk=sizes.chunk) if measured else uncalibrated(engine, run.listed.inputs)
    calibrating = time.perf_counter() - started if measured else 0.0
    memory = memory_allowed(rows.memory_budget)
    whole = task.split.of_whole_classes(run.listed.labels.cpu())

    def problem(method: Method, options: dict[str, Any]) -> Problem:
        values = method.filled(options)
        return Problem(
            method=method.name,
            sizes=sizes,
            speed=speed,
            options=values,
            surveyed=None if method.survey is None else method.survey(run, values),
            given=frozenset(options),
            recipe=run.recipe,
            places=_places(task),
            ready=task.linearisation is not None,
            on_disk=0 if rows.folder is None else bytes_on_disk(rows.folder),
            whole_classes=len(whole) > 0 and bool(whole.all()),
            memory=memory,
            trace=None if run.trace is None else TraceSizes.of(run.trace),
        )

    def routes(method: Method, options: dict[str, Any]) -> Sequence[Route]:
        return [without_images(method.name)] if method in blind else method.cost(problem(method, options))

    retrain = find_method("retrain")
    plan = make_plan(
        sizes,
        speed,
        [route for method, options in methods.items() for route in routes(method, options)],
        memory=memory,
        disk=disk_budget(rows.disk_budget, rows.folder or rows.scratch),
        retrain_seconds=None if run.recipe is None else retrain.cost(problem(retrain, {}))[0].seconds,
        epochs=None if run.recipe is None else run.recipe.epochs,
        engine={} if engine is None else engine.routes,
        request=_request_digest(task),
        options={method.name: options for method, options in methods.items()},
        outside=outside_report(run),
    )
    return plan, calibrating


def _places(task: Task) -> tuple[Rows, ...]:
    """Where rows may be, in order of preference."""
    if task.linearisation is not None:
        return (task.linearisation.place,)
    row_options = task.row_options
    if row_options.rows != "auto":
        return (row_options.rows,)
    return ("disk",) if row_options.folder is not None else ("memory", "disk", "stream")


def _usable(linearisation: Linearisation | None, run: Run, rows: RowOptions) -> Linearisation | None:
    """The linearisation handed in, if it is of this run and at the point asked for."""
    if linearisation is None or linearisation.at != rows.at:
        return None
    linearisation.check_run(run)
    return linearisation


def _resolve(run: Run, previous: Unlearned | None, classes: Names, ids: Names) -> Split:
    """The request's split, with what earlier requests forgot added."""
    request = ForgetRequest(classes=classes, ids=ids)
    split = request.resolve(run.listed, allow_empty=True)
    if previous is None:
        return split
    earlier = set(previous.split.forget.tolist())
    again = [run.listed.ids[i] for i in split.forget.tolist() if i in earlier]
    if again and classes is None:
        raise InputError(f"Already forgotten by the earlier request: {', '.join(again[:8])}.")
    union = sorted(earlier | set(split.forget.tolist()))
    return ForgetRequest(ids=tuple(run.listed.ids[i] for i in union)).resolve(run.listed, allow_empty=True)
