"""Where a classifier's head is: the linear layer that makes the logits.

Looked for, in this order: timm's ``get_classifier()``; the attributes that timm, Hugging Face and torchvision use;
the last ``nn.Linear`` of the model.
"""

from __future__ import annotations

from torch import nn

from fastntk.base.errors import InputError

CONVENTIONS = ("classifier", "fc", "head", "heads")


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return the head's name in ``model.named_modules()`` and the layer itself."""
    for candidate in (_from_timm(model), *(getattr(model, name, None) for name in CONVENTIONS), model):
        if isinstance(candidate, nn.Module):
            layer = _last_linear(candidate)
            if layer is not None:
                return _name_of(model, layer), layer
    raise InputError(
        f"No classification head found in {type(model).__name__}: it has no nn.Linear. Name the head's parameters "
        "yourself with a glob, for example tune(model, 'norm+my_head.*'); "
        "model.named_parameters() lists the names."
    )


def _from_timm(model: nn.Module) -> object:
    getter = getattr(model, "get_classifier", None)
    return getter() if callable(getter) else None


def _last_linear(module: nn.Module) -> nn.Linear | None:
    layers = [child for child in module.modules() if isinstance(child, nn.Linear)]
    return layers[-1] if layers else None


def _name_of(model: nn.Module, layer: nn.Module) -> str:
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    return names[layer]
