"""The head of a model that is trained: whether the layer taken for it is the one, and what a trace needs of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.models import logits
from fastntk.training.network import eval_mode, fast_layout
from fastntk.tuning import Subset, find_head
from fastntk.tuning.head import CONVENTIONS


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
    if nn.utils.parametrize.is_parametrized(layer):
        raise InputError(
            f"A trace follows a head with a weight of its own, and that of {name or type(model).__name__} is computed from "
            "others (weight_norm, spectral_norm or another parametrization). Train without a trace, or take the parametrization "
            "away (torch.nn.utils.parametrize.remove_parametrizations) before the training."
        )
    if weight not in subset.names or not layer.weight.requires_grad:
        raise InputError(
            f"A trace follows the head while the rest moves little, and the head ({weight}) is not tuned. Tune it as well "
            "(tune(model, '…+head')), or train without a trace. Where another layer makes the logits, let the model register it "
            f"after all its other linear layers, or as its attribute {' or '.join(CONVENTIONS)}."
        )
    if len([module for module in model.modules() if any(each is layer.weight for each in module.parameters(recurse=False))]) > 1:
        raise InputError(
            f"A trace needs a head with a weight of its own: another module uses {weight} as well. Train without a trace."
        )
    body = tuple(each for each in subset.names if each not in (weight, bias))
    return TunedHead(layer, weight, bias if bias in subset.names else None, body)


def check_head(subset: Subset, samples: Samples) -> None:
    """Refuse to train where a layer was taken for the head and the one that makes the logits is not tuned, or where a new head is
    left at zero: then nothing could be learnt, and nobody would be told. One forward pass of two samples."""
    try:
        name, layer = find_head(subset.model)
    except InputError:
        return
    maker, constant = _maker_of_logits(subset.model, samples)
    head = layer if maker is None else subset.model.get_submodule(maker)
    if any(parameter is each for parameter in head.parameters() for each in subset.parameters.values()):
        return
    if maker not in (None, name) and f"{name}.weight" in subset.names:
        raise InputError(
            f"tune took {name} for the head, but {maker} makes the logits. Name what should be tuned (tune(model, "
            f"'norm+{maker}.*')), or register the head of {type(subset.model).__name__} after all its other linear layers."
        )
    if constant and not any(bool(parameter.any()) for parameter in head.parameters()):
        raise InputError(
            f"The head ({maker or name}) is all zero and not tuned: the logits stay zero, and nothing can learn. Tune it as "
            "well: tune(model, '…+head'), --tune …+head."
        )


@torch.no_grad()
def _maker_of_logits(model: nn.Module, samples: Samples) -> tuple[str | None, bool]:
    """The linear layer whose output is the model's, if there is one (models may also go on from there), and whether all samples
    have the same."""
    output_by_name: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, arguments, output: output_by_name.update({name: output})

    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    hooks = [module.register_forward_hook(keep(name)) for name, module in layers.items()]
    try:
        with eval_mode(model):
            outputs = logits(model, fast_layout(model, samples.inputs[:2]))
    finally:
        for hook in hooks:
            hook.remove()
    maker = next((name for name, output in output_by_name.items() if output is outputs), None)
    return maker, bool((outputs == outputs[:1]).all())
