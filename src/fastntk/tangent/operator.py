"""Products with J and Jᵀ that never form a row: jvp and vjp, chunk by chunk.

The same interface as stored rows (:class:`fastntk.linalg.RowOperator`). A product costs two to three forward passes
over the data, so stored rows win as soon as a solve needs more than about C/2 iterations; this is for when they do not
fit. The network's passes run on its device and products come back on the vector's; sums are in float64, on the device where it
has that, else on the CPU (:func:`fastntk.base.device.with_float64`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from fastntk.base.device import with_float64
from fastntk.base.gradients import gradients_of
from fastntk.linalg import HeadRows
from fastntk.models import device_of, logits
from fastntk.tangent.attention import plain_attention
from fastntk.tangent.guards import checked_engine
from fastntk.tangent.in_memory import accumulate, exact_rows
from fastntk.tangent.rows import RowEngine, iter_rows
from fastntk.training.network import fast_layout
from fastntk.tuning import Subset


class TangentOperator:
    """J of a model at its present weights, on given inputs, as a linear operator."""

    def __init__(
        self, model: nn.Module, subset: Subset, inputs: Tensor, *, chunk: int = 64, engine: RowEngine | None = None
    ) -> None:
        self.engine: RowEngine = engine or checked_engine(model, subset, inputs)
        self.inputs = fast_layout(model, inputs)
        self.chunk = chunk
        self.device = device_of(model)
        self._only_rows = False

    def subset(self, indices: Tensor | slice) -> TangentOperator:
        """The same map on some of the samples."""
        engine = self.engine
        return TangentOperator(engine.model, engine.subset, self.inputs[indices], chunk=self.chunk, engine=engine)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, C, d)."""
        return len(self.inputs), self.engine.classes, self.engine.subset.numel

    def matvec(self, v: Tensor) -> Tensor:
        """J v: (d,) → (n, C), or (d, k) → (n, C, k)."""
        if v.dim() == 2:
            return torch.stack([self.matvec(column) for column in v.unbind(1)], -1)
        subset = self.engine.subset
        direction = {name: part.to(self.engine.dtype).to(self.device) for name, part in subset.split(v).items()}
        values = {name: p.detach() for name, p in subset.parameters.items()}

        def outputs(part: dict[str, Tensor], x: Tensor) -> Tensor:
            return logits(_Bound(self.engine.model, part), x)

        if not self._only_rows:
            try:
                with plain_attention():
                    parts = [jvp(lambda part, x=x: outputs(part, x), (values,), (direction,))[1] for x in self._batches()]
                return torch.cat(parts).to(v.device).to(v.dtype)
            except RuntimeError as error:
                if "allocate" in str(error):  # the memory's fault, not the model's
                    raise
                self._only_rows = True
                warnings.warn(
                    f"an operation of the model has no forward-mode derivative ({str(error).splitlines()[0]}): products with its "
                    "Jacobian are made from rows, which takes longer",
                    stacklevel=2,
                )
        return torch.cat([rows.matvec(v) for _, rows in self.iter_rows()]).to(v.device).to(v.dtype)

    def rmatvec(self, u: Tensor) -> Tensor:
        """Jᵀ u: (n, C) → (d,), or (n, C, k) → (d, k)."""
        if u.dim() == 3:
            return torch.stack([self.rmatvec(part) for part in u.unbind(2)], -1)
        subset = self.engine.subset
        leaves = {name: p.detach().requires_grad_() for name, p in subset.parameters.items()}
        sums = with_float64(self.device)
        total = torch.zeros(subset.numel, dtype=torch.float64, device=sums)
        for x, weights in zip(self._batches(), u.to(self.engine.dtype).to(self.device).split(self.chunk)):
            with torch.enable_grad():
                output = logits(_Bound(self.engine.model, leaves), x)
                gradients = gradients_of(output, list(leaves.values()), weights)
            total += torch.cat([g.reshape(-1) for g in gradients]).to(sums).double()
        return total.to(u)

    def _batches(self) -> Iterator[Tensor]:
        """The inputs on the model's device, chunk by chunk."""
        return (x.to(self.device) for x in self.inputs.split(self.chunk))

    def iter_rows(self, chunk: int | None = None) -> Iterator[tuple[slice, HeadRows]]:
        """The rows themselves, chunk by chunk, made anew."""
        return ((part, exact_rows(self.engine, rows)) for part, rows in iter_rows(self.engine, self.inputs, chunk=chunk))

    def gram(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """A = JᵀJ, (d, d), summed from rows that are made chunk by chunk and dropped."""
        return accumulate(self.engine, self.inputs, dtype=dtype).take_matrix(dtype)

    def column_norms2(self) -> Tensor:
        """The diagonal of A, (d,)."""
        total = torch.zeros(self.shape[2], dtype=torch.float64)  # on the CPU, as each chunk's
        for _, rows in self.iter_rows():
            total += rows.column_norms2()
        return total

    def kernel(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Θ = JJᵀ, (n·C, n·C)."""
        n, classes, _ = self.shape
        dense = torch.cat([rows.dense().to(dtype) for _, rows in self.iter_rows()]).view(n * classes, -1)
        return dense @ dense.T


class _Bound(nn.Module):
    """A model with some parameters replaced, callable like a model."""

    def __init__(self, model: nn.Module, part: dict[str, Tensor]) -> None:
        super().__init__()

        def call(x: Tensor) -> object:
            return functional_call(model, part, (x,))

        # In a closure: as attributes of this module, model and part would become its sub-modules.
        self._call = call

    def forward(self, x: Tensor) -> object:
        """The model's output under the replaced parameters."""
        return self._call(x)
