"""What does not depend on a method's options, computed once for all trials on one run.

A run has to be enrolled (:func:`share_between_trials`; ``rehearse`` enrols its own): on any other run every request computes
everything, so that its seconds are those of a request from scratch. A value is kept by a digest of what decides it: every weight
and buffer of the model, its printed structure, the samples, the request, the loss, and the settings. So weights or images that
were changed in place, another request or another batch size find nothing and compute. It is gone with the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from fastntk.base.digest import json_digest, tensor_digest
from fastntk.training.run import Run
from fastntk.unlearning.method import Task


@dataclass(frozen=True, eq=False)
class Shared:
    """A tensor, the seconds that computing it took, and whether that was on an earlier request."""

    value: Tensor
    seconds: float
    reused: bool

    def details(self, name: str) -> dict[str, Any]:
        """What a result says of it."""
        return {f"{name}_reused": self.reused, f"{name}_seconds": self.seconds}


_VALUES: WeakKeyDictionary[Run, dict[str, Shared]] = WeakKeyDictionary()


def share_between_trials(run: Run) -> None:
    """From now on, requests on this run (this object) share what their options do not decide."""
    _VALUES.setdefault(run, {})


def computed_once(task: Task, name: str, compute: Callable[[], Tensor], **settings: Any) -> Shared:
    """``compute()``, or what it gave before for the same run, samples, request and ``settings`` (JSON-able).

    The seconds of computing go to the task's stage ``name``; where nothing was computed there is no such stage.
    """
    memo = _VALUES.get(task.run) if task.linearisation is None else None
    key = "" if memo is None else _key(task, name, settings)
    if memo is not None and key in memo:
        return Shared(memo[key].value.clone(), memo[key].seconds, reused=True)
    started = time.perf_counter()
    value = compute()
    result = Shared(value, time.perf_counter() - started, reused=False)
    task.stages[name] = task.stages.get(name, 0.0) + result.seconds
    if memo is not None:
        memo[key] = Shared(value.clone(), result.seconds, reused=True)
    return result


def _key(task: Task, name: str, settings: dict[str, Any]) -> str:
    run = task.run
    tensors = [*run.model.named_parameters(), *run.model.named_buffers()]
    weights = {tensor_name: [tensor_digest(tensor), str(tensor.device)] for tensor_name, tensor in tensors}
    recipe = None if run.recipe is None else run.recipe.to_dict()
    request = [tensor_digest(task.split.forget), tensor_digest(task.split.retain)]
    return json_digest([name, settings, weights, str(run.model), list(run.subset.names), run.data.digest(), request, recipe])
