"""Gradients where they are needed, whatever the caller switched off around the call.

Code that serves models runs under ``torch.no_grad()``, ``torch.inference_mode()`` or ``torch.set_grad_enabled(False)``. What
trains, or makes rows, is decorated with :data:`with_gradients`; the caller's mode is back after it.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fastntk.base.errors import InputError, listing

with_gradients = torch.inference_mode(mode=False)
"""Decorator: leaving inference mode switches gradients on, and ends ``no_grad`` as well."""


def check_differentiable(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse parameters made in inference mode: torch records nothing on them, in any mode."""
    names = [name for name, parameter in parameters if parameter.is_inference()]
    if names:
        raise InputError(
            f"Expected weights that gradients can be taken of, got {len(names)} that were made under torch.inference_mode() "
            f"({listing(names, most=4)}). Build or load the model outside of it, or take copy.deepcopy(model) there."
        )


def recordable(tensor: Tensor) -> Tensor:
    """The tensor; a copy of one that was made in inference mode, which no backward pass could go through."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(mode=False):
        return tensor.clone()


def write_count(tensor: Tensor) -> int:
    """How often torch saw the tensor written to; 0 of one made in inference mode, where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


def gradients_of(
    output: Tensor, leaves: Sequence[Tensor], weights: Tensor | None = None, *, retain_graph: bool = False
) -> tuple[Tensor, ...]:
    """The gradients of an output (of its sum by ``weights``), zeros for leaves it does not depend on: maybe on none of them."""
    if not output.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(output, leaves, weights, retain_graph=retain_graph, materialize_grads=True)
