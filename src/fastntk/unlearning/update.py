"""What the linearised methods do with their update Δ: check it on the network, shorten it where that disagrees, and report."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.tangent.linearisation import Linearisation
from fastntk.unlearning.method import Outcome
from fastntk.unlearning.task import Task
from fastntk.unlearning.validity import check_step


def checked_update(
    task: Task,
    lin: Linearisation,
    delta: Tensor,
    details: dict[str, Any],
    predicted: Callable[[Tensor], Tensor] | None,
    *,
    validate: bool,
    miss: float = 0.0,
) -> Outcome:
    """Check the step, shorten it where the network disagrees, and report."""
    if not torch.isfinite(delta).all():
        raise InputError("The update is not finite: raise the damping, or check the inputs and weights for NaN.")
    length = 1.0
    details["rows"] = lin.routes | {"at": lin.at, "kept": lin.place}
    if validate and bool((delta != 0).any()):
        started = time.perf_counter()
        length, details["validity"] = check_step(task.run, lin, task.split, delta, predicted, miss=miss)
        task.stages["validity"] = time.perf_counter() - started
    else:
        details["validity"] = {"verdict": "ok" if not bool((delta != 0).any()) else "not checked", "step_length": 1.0}
    return Outcome(lin.theta + length * delta, details)
