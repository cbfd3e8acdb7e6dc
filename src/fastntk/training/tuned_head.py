"""The head of a model whose training is recorded."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fastntk.base.errors import InputError
from fastntk.tuning import Subset, find_head


@dataclass(frozen=True, eq=False)
class TunedHead:
    """The layer, the name of its weight, that of its bias where it is tuned, and the names of what is tuned outside it."""

    layer: nn.Linear
    weight: str
    bias: str | None
    body: tuple[str, ...]


def tuned_head(model: nn.Module, subset: Subset) -> TunedHead:
    """Find it; refused where its weight is not tuned, for a trace follows the head."""
    try:
        name, layer = find_head(model)
    except InputError as error:
        raise InputError(
            f"A trace follows a head that is an nn.Linear, and none was found in {type(model).__name__}. Train without a trace."
        ) from error
    prefix = f"{name}." if name else ""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in subset.names or not layer.weight.requires_grad:
        raise InputError(
            f"A trace follows the head while the rest moves little, and the head ({weight}) is not tuned. Tune it as well "
            "(tune(model, '…+head')), or train without a trace."
        )
    if len([module for module in model.modules() if any(each is layer.weight for each in module.parameters(recurse=False))]) > 1:
        raise InputError(
            f"A trace needs a head with a weight of its own: another module uses {weight} as well. Train without a trace."
        )
    body = tuple(each for each in subset.names if each not in (weight, bias))
    return TunedHead(layer, weight, bias if bias in subset.names else None, body)
