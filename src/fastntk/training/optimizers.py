"""Optimisers that can be rebuilt from their name and options, for parameters of any shape.

Only those that treat every number by itself: a vector of all parameters, or a stack of several such vectors, then takes the very
steps that the parameters would take one by one. One that looks at a whole tensor (a norm, a low-rank moment, a line search)
cannot be rebuilt this way and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import InputError

ELEMENTWISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop")


def rebuild(name: str, options: Mapping[str, Any], parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """The optimiser of this class of ``torch.optim`` with these options; its rate is set at every step."""
    if name not in ELEMENTWISE:
        raise InputError(
            f"The optimiser {name!r} cannot be rebuilt from a trace: it does not treat every number by itself, or is not one of "
            f"torch.optim. Known: {', '.join(ELEMENTWISE)}."
        )
    try:
        optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=1.0, foreach=False, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"torch.optim.{name} refuses the options of this trace ({dict(options)}): {error}") from error
    return optimizer
