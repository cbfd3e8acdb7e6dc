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
from pathlib import Path
from typing import Any

from fastntk.base.errors import InputError
from fastntk.data import ForgetRequest, Split
from fastntk.tangent.linearisation import Linearisation
from fastntk.training.network import working_copy
from fastntk.training.run import Run
from fastntk.unlearning.registry import METHODS
from fastntk.unlearning.residue import outside_report, renew_statistics
from fastntk.unlearning.result import Unlearned
from fastntk.unlearning.task import Outcome, Task


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
    ``linearise_run``, to serve several requests. ``options`` are those of the method: an unknown one is refused with
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
    task = Task(origin, split, linearisation or (previous.linearisation if previous else None))
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


def _check_options(method: str, call: Callable[..., Outcome], options: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(call).parameters if name != "task"]
    unknown = [name for name in options if name not in known]
    if unknown:
        accepted = ", ".join(known) or "none"
        raise InputError(f"Method {method!r} has no option {', '.join(unknown)}; it takes: {accepted}.")


def _peak_memory() -> int:
    """Peak resident bytes of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
