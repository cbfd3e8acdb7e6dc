"""What can be recorded of a training at all, seen before its first step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from fastntk.base.errors import InputError
from fastntk.training.averages import Average
from fastntk.tuning import Subset


class Failed(InputError):
    """Said already."""


def check_setting(model: nn.Module, subset: Subset, trace: Any, average: Any) -> None:
    """Refuse arguments of ``record`` that fit no training of one process on this model."""
    if subset.model is not model and any(each is subset.model for each in model.modules()):
        raise InputError(
            f"record: the subset belongs to the model inside this {type(model).__name__}. Give record the inner one, as tune was "
            "given (model.module of DataParallel and DistributedDataParallel); the loop may go on calling the outer one."
        )
    if subset.model is not model:
        raise InputError("record: the subset belongs to another model. Use tune(model, spec) on the model that is trained.")
    if trace is not True and not isinstance(trace, str | Path):
        raise InputError(f"trace must be True (in memory) or a new folder; got {trace!r}.")
    if average is not None and average not in get_args(Average):
        raise InputError(f"average must be {', '.join(map(repr, get_args(Average)))} or None; got {average!r}.")
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise InputError(
            "Recording sees one process's share of every batch, and this training runs in several. Record a run of one process."
        )


def clip_limit(max_norm: float | None) -> float | None:
    """The limit of ``clip_grad_norm_`` as it was stated; infinity, as where the norm is only read, is none."""
    if max_norm is None or max_norm == math.inf:
        return None
    if isinstance(max_norm, bool) or not isinstance(max_norm, int | float) or not max_norm > 0:
        raise InputError(f"max_norm is the limit of clip_grad_norm_, a number above 0, or None; got {max_norm!r}.")
    return float(max_norm)
