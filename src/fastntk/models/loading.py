"""Put named tensors into a model: everything but the head must fit, by name and by shape; the head becomes zero.

Nothing is skipped in silence: what is missing, superfluous or of another shape is named in the error. The one
exception is the old head, which a new task replaces and whose values are always dropped, even where it would fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError, listing

# What other packages call their classifier; a file's head may be named unlike the model's.
HEAD_NAMES = ("fc", "linear", "classifier", "cls_classifier", "distillation_classifier", "head", "head_dist")


def head_names(model: nn.Module, heads: Iterable[nn.Module]) -> tuple[str, ...]:
    """Names, within the model, of the given modules."""
    head_ids = {id(head) for head in heads}
    return tuple(name for name, module in model.named_modules() if id(module) in head_ids)


def output_layers(modules: Iterable[nn.Module], *, num_classes: int) -> list[nn.Module]:
    """Linear and convolution layers with one output a class."""
    layers: list[nn.Module] = []
    for module in modules:
        outputs = getattr(module, "out_features", getattr(module, "out_channels", None))
        if isinstance(module, nn.Linear | nn.Conv2d) and outputs == num_classes:
            layers.append(module)
    return layers


@torch.no_grad()
def zero_head(model: nn.Module, *, heads: Sequence[str]) -> None:
    """Set weight and bias of the head to zero, so that the anchor's outputs are zero."""
    for name in heads:
        for parameter in model.get_submodule(name).parameters():
            parameter.zero_()


def _within(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def load_backbone(model: nn.Module, tensors: Mapping[str, Tensor], *, heads: Sequence[str], source: str) -> None:
    """Load everything but the head into the model, strictly; values are cast to the model's dtype."""
    expected = {name: value for name, value in model.state_dict().items() if not _within(name, heads)}
    values = {name: value for name, value in tensors.items() if name in expected or not _within(name, (*heads, *HEAD_NAMES))}
    # Counters that old files lack; BatchNorm reads them only when its momentum is None.
    optional = [name for name in expected if name.endswith(".num_batches_tracked")]
    missing = [name for name in expected if name not in values and name not in optional]
    unexpected = [name for name in values if name not in expected]
    shapes = [
        f"{name} {tuple(value.shape)} (expected {tuple(expected[name].shape)})"
        for name, value in values.items()
        if name in expected and value.shape != expected[name].shape
    ]
    problems = [
        f"{label}: {listing(sorted(names))}"
        for label, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", shapes))
        if names
    ]
    if problems:
        raise InputError(
            f"{source} does not fit the model; {'; '.join(problems)}. Give weights of this very architecture and size"
        )
    model.load_state_dict({**model.state_dict(), **values})
