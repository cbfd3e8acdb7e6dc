"""Gradients where they are needed, whatever the caller switched off around the call.

Code that serves models runs under ``torch.no_grad()``, ``torch.inference_mode()`` or ``torch.set_grad_enabled(False)``. What
trains, or makes rows, is decorated with :data:`with_gradients`; the caller's mode is back after it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

with_gradients = torch.inference_mode(mode=False)
"""Decorator: leaving inference mode switches gradients on, and ends ``no_grad`` as well."""


def gradients_of(
    output: Tensor, leaves: Sequence[Tensor], weights: Tensor | None = None, *, retain_graph: bool = False
) -> tuple[Tensor, ...]:
    """The gradients of an output (of its sum by ``weights``), zeros for leaves it does not depend on: maybe on none of them."""
    if not output.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(output, leaves, weights, retain_graph=retain_graph, materialize_grads=True)
