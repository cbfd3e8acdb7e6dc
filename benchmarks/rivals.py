"""Other ways to the same rows, each prepared once and then called with a chunk of images.

``prepare(model, subset) -> (images -> rows (n, C, d) or a dict of them)``. :class:`Cannot` says why a package cannot.
The models are copies: hooks of one package must not be in another's way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from fastntk.models import logits
from fastntk.tuning import Subset

Rows = Callable[[Tensor], Tensor]


class Cannot(Exception):
    """This package cannot make these rows, for a reason worth reporting."""


def vmap_jacrev(model: nn.Module, subset: Subset) -> Rows:
    """torch.func, only the tuned parameters differentiated."""
    values = {name: p.detach() for name, p in subset.parameters.items()}

    def forward(part: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, part, (x.unsqueeze(0),))[0]

    rows = vmap(jacrev(forward), (None, 0))

    def make(x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            blocks = rows(values, x)
        return torch.cat([blocks[name].flatten(2) for name in subset.names], 2)

    return make


def sample_loop(model: nn.Module, subset: Subset) -> Rows:
    """The loop of earlier public code: every sample, every class, one autograd.grad."""
    parameters = list(subset.parameters.values())

    def make(x: Tensor) -> Tensor:
        rows = []
        for i in range(len(x)):
            output = logits(model, x[i : i + 1])[0]
            for c in range(len(output)):
                gradients = torch.autograd.grad(output[c], parameters, retain_graph=c + 1 < len(output))
                rows.append(torch.cat([g.reshape(-1) for g in gradients]))
        return torch.stack(rows).view(len(x), -1, subset.numel)

    return make


def opacus_rows(model: nn.Module, subset: Subset) -> Rows:
    """Per-sample gradients of one logit at a time; hooks drop activations, so every class needs its own forward."""
    from opacus.grad_sample import GradSampleModule

    own = _own(model, subset)
    for name in subset.names:
        owner = own.get_submodule(name.rpartition(".")[0])
        owner.training = not isinstance(owner, _BatchNorm)  # it records layers in train mode only
    wrapped = GradSampleModule(own, strict=False, loss_reduction="sum")
    inner: Any = wrapped._module
    parameters = subset.on(inner).parameters

    def make(x: Tensor) -> Tensor:
        parts = []
        classes = 1
        while len(parts) < classes:
            output = wrapped(x)
            classes = output.shape[1]
            output[:, len(parts)].sum().backward()
            missing = [name for name, p in parameters.items() if getattr(p, "grad_sample", None) is None]
            if missing:
                raise Cannot(f"no per-sample gradients of parameters used outside a module's forward ({missing[0]}, …)")
            parts.append(torch.cat([p.grad_sample.flatten(1) for p in parameters.values()], 1))
            for p in parameters.values():
                p.grad_sample = p.grad = None
        return torch.stack(parts, 1)

    return make


def curvlinops_rows(model: nn.Module, subset: Subset) -> Rows:
    """Jᵀ as an operator has no per-sample rows; of one sample at a time, Jᵀ·I has."""
    from curvlinops import TransposedJacobianLinearOperator

    own = _own(model, subset)
    parameters = list(subset.on(own).parameters.values())

    def make(x: Tensor) -> Tensor:
        rows = []
        for i in range(len(x)):
            with torch.no_grad():
                classes = logits(own, x[i : i + 1]).shape[1]
            data = [(x[i : i + 1], torch.zeros(1, classes))]
            with sdpa_kernel(SDPBackend.MATH):
                operator = TransposedJacobianLinearOperator(own, parameters, data, check_deterministic=False)
                rows.append((operator @ torch.eye(classes)).T)
        return torch.stack(rows)

    return make


def nngeometry_rows(model: nn.Module, subset: Subset) -> Rows:
    """Its Jacobian by hooks, for the layers that hold tuned parameters; it knows whole layers only."""
    from nngeometry.backend import TorchHooksJacobianBackend
    from nngeometry.layercollection import LayerCollection

    own = _own(model, subset)
    modules = dict(own.named_modules())
    layers = LayerCollection()
    for owner in dict.fromkeys(name.rpartition(".")[0] for name in subset.names):
        if type(modules[owner]).__name__ not in LayerCollection._known_modules:
            raise Cannot(f"knows no layer {type(modules[owner]).__name__}")
        layers.add_layer_from_model(own, modules[owner])

    def make(x: Tensor) -> Tensor:
        backend = TorchHooksJacobianBackend(model=own, function=lambda *d: own(d[0]), layer_collection=layers)
        dataset = torch.utils.data.TensorDataset(x.detach().clone(), torch.zeros(len(x)))
        return backend.get_jacobian(torch.utils.data.DataLoader(dataset, batch_size=len(x))).transpose(0, 1)

    return make


def _own(model: nn.Module, subset: Subset) -> nn.Module:
    own = copy.deepcopy(model).eval()
    wanted = set(subset.names)
    for name, parameter in own.named_parameters():
        parameter.requires_grad_(name in wanted)
    return own


RIVALS: dict[str, Callable[[nn.Module, Subset], Rows]] = {
    "vmap(jacrev)": vmap_jacrev,
    "per-sample loop": sample_loop,
    "opacus": opacus_rows,
    "curvlinops": curvlinops_rows,
    "nngeometry": nngeometry_rows,
}
ONE_BY_ONE = ("per-sample loop", "curvlinops")
"""These go sample by sample whatever the chunk: they are timed on fewer images."""
