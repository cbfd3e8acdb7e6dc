"""Where a classifier's head is: the linear layer that makes the logits.

Looked for, in this order: timm's ``get_classifier()``; the attributes that timm, Hugging Face and torchvision use;
the last ``nn.Linear`` of the model. Where peft wrapped the head (``modules_to_save``), it is the active adapter's copy.
"""

from __future__ import annotations

from torch import nn

from fastntk.base.errors import InputError
from fastntk.tuning.adapters import adapters_of, inside

CONVENTIONS = ("classifier", "fc", "head", "heads")


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return the head's name in ``model.named_modules()`` and the layer itself."""
    adapters = adapters_of(model)
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    for candidate in (_from_timm(model), *(getattr(model, name, None) for name in CONVENTIONS), model):
        if isinstance(candidate, nn.Module):
            layers = [child for child in candidate.modules() if isinstance(child, nn.Linear)]
            layers = [layer for layer in layers if not inside(names[layer], (*adapters.trained, *adapters.idle))]
            if not layers:
                continue
            name = names[layers[-1]]
            if inside(name, adapters.layers):
                raise InputError(
                    f"The head ({name.rpartition('.')[0]}) carries an adapter, so no single linear layer makes the logits. "
                    "List it in modules_to_save of the peft config and not in target_modules; or tune 'lora' without 'head'."
                )
            return name, layers[-1]
    raise InputError(
        f"No classification head found in {type(model).__name__}: it has no nn.Linear. Name the head's parameters "
        "yourself with a glob, for example tune(model, 'norm+my_head.*'); "
        "model.named_parameters() lists the names."
    )


def _from_timm(model: nn.Module) -> object:
    getter = getattr(model, "get_classifier", None)
    return getter() if callable(getter) else None
