"""One way to ask any classifier for its logits.

Hugging Face models return an output object, everybody else with a tensor; the rest of the package calls
:func:`logits` and never looks at the difference. It neither changes the train/eval mode nor disables gradients. Inputs that are
on another device than the model are moved to it, a batch at a time.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError


def device_of(model: nn.Module) -> torch.device:
    """Where a model is: the device of its first parameter or buffer; the CPU where it has none."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits (n, C) of a classifier on a batch of inputs (n, …), on the model's device."""
    first = next(chain(model.parameters(), model.buffers()), None)
    output = model(inputs if first is None else inputs.to(first.device))
    if not isinstance(output, Tensor):
        output = getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise InputError(
            f"{type(model).__name__} returned a {type(output).__name__}: expected a tensor of logits (n, classes), "
            "or an output with a tensor .logits; wrap the model so that it returns one"
        )
    if output.ndim != 2 or output.shape[0] != inputs.shape[0]:
        raise InputError(
            f"{type(model).__name__} returned a tensor of shape {tuple(output.shape)} for {inputs.shape[0]} inputs: "
            f"expected logits of shape ({inputs.shape[0]}, classes); use a classifier with a pooled head"
        )
    return output
