"""A named subset of a model's parameters seen as one vector w of length d.

The order is that of ``model.named_parameters()``. Anchors, Jacobian columns and updates all share it.
This file only reads and writes values; :mod:`fastntk.tuning.spec` decides which parameters belong.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError, listing


class Subset:
    """The tuned parameters of one model.

    ``names`` are those of ``model.named_parameters()``, in that order; ``numel`` is d; ``ratio`` is d over the
    number of all parameters of the model (a fraction, prompts included in both).
    """

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        name_set = set(names)
        present = dict(model.named_parameters())
        missing = sorted(name_set - present.keys())
        if missing:
            raise InputError(
                f"The model has no parameters named {listing(missing)}. "
                "Names must be those of model.named_parameters(); prompts exist only after tune(model, 'prompts...')."
            )
        self.model = model
        self.names: tuple[str, ...] = tuple(name for name in present if name in name_set)

    def __repr__(self) -> str:
        return f"Subset({len(self.names)} tensors, {self.numel} numbers, {100 * self.ratio:.2f} % of the model)"

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The live parameters by name, in order."""
        present = dict(self.model.named_parameters())
        return {name: present[name] for name in self.names}

    @property
    def aliases(self) -> dict[str, str]:
        """Every name that a tuned parameter has in the model, and the one it has here: modules may share a parameter."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        present = self.model.named_parameters(remove_duplicate=False)
        return {alias: names[id(parameter)] for alias, parameter in present if id(parameter) in names}

    @property
    def numel(self) -> int:
        """The length d of the vector."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def ratio(self) -> float:
        """Tuned over all parameters, a fraction."""
        return self.numel / sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def slices(self) -> dict[str, slice]:
        """Where each parameter lies in the vector."""
        out, start = {}, 0
        for name, parameter in self.parameters.items():
            out[name] = slice(start, start + parameter.numel())
            start += parameter.numel()
        return out

    def columns(self, names: Iterable[str]) -> Tensor:
        """The positions in the vector of some of its parameters, in the vector's order."""
        name_set = set(names)
        missing = sorted(name_set - set(self.names))
        if missing:
            raise InputError(f"Expected names of tuned parameters, got {listing(missing)}, which this subset does not hold.")
        spans = [torch.arange(part.start, part.stop) for name, part in self.slices.items() if name in name_set]
        return torch.cat([torch.empty(0, dtype=torch.long), *spans])

    def get(self) -> Tensor:
        """A detached copy of the values, (d,)."""
        parts = [parameter.detach().reshape(-1) for parameter in self.parameters.values()]
        return torch.cat(parts) if parts else next(self.model.parameters(), torch.empty(0)).new_empty(0)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a (d,) vector, one in the shape of each parameter."""
        self._check(vector)
        parameters = self.parameters
        return {name: vector[part].view(parameters[name].shape) for name, part in self.slices.items()}

    @torch.no_grad()
    def set(self, vector: Tensor) -> None:
        """Write a (d,) vector into the model."""
        parts = self.split(vector)
        for name, parameter in self.parameters.items():
            parameter.copy_(parts[name])

    def on(self, model: nn.Module) -> Subset:
        """The same names on another model, usually a copy of this one."""
        return Subset(model, self.names)

    def _check(self, vector: Tensor) -> None:
        if not isinstance(vector, Tensor) or vector.shape != (self.numel,):
            kind = tuple(vector.shape) if isinstance(vector, Tensor) else type(vector).__name__
            raise InputError(f"Expected a tensor of shape ({self.numel},), got {kind}.")
