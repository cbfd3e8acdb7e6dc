"""Exact per-sample Jacobian rows of the logits with respect to the tuned parameters.

For a chunk of images: one forward pass, then one backward pass per class over activations only. The floor is
(C + 1)·t_forward. The head's rows are in closed form: for class c, the features h at W_c and 1 at b_c; they are kept
as features (:class:`fastntk.linalg.HeadRows`), never as block-diagonal zeros. Where the logits are W·h + b and C
exceeds the number H of features, J = W·J_h: H backward passes and a product.

Parameters that enter by operations unknown to :mod:`fastntk.tangent.sites` are taken by ``vmap(jacrev)``: slower, still
exact, and said in :attr:`RowEngine.routes`. So are those that some samples do not pass through (routing, masks, mixtures of
experts), from the first chunk on that shows it.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from fastntk.base.errors import InputError, listing
from fastntk.base.gradients import gradients_of, recordable, with_gradients
from fastntk.linalg import HeadRows
from fastntk.models import device_of, logits
from fastntk.tangent.attention import plain_attention
from fastntk.tangent.sites import SiteMode
from fastntk.training.network import fast_layout
from fastntk.training.speed import seconds_an_image
from fastntk.tuning import Subset, find_head

DEFAULT_CHUNK = 32
"""Small enough to stay near the cache of a CPU, large enough to hide the cost of dispatching operations (docs/engine.md)."""


class RowEngine:
    """Knows, after one trial forward pass, by which route each tuned parameter's rows are made.

    A later chunk may show that the trial was not all: its rows then are made again by another route, in the same columns.
    """

    def __init__(self, model: nn.Module, subset: Subset, example: Tensor) -> None:
        self.model = model
        self.subset = subset
        self.slices = subset.slices
        parameters: dict[str, Tensor] = {name: p for name, p in subset.parameters.items() if p.numel()}
        with _frozen(model), torch.no_grad():
            candidate = self._head_candidate()
            plain = logits(model, example)
            mode = SiteMode(parameters, lambda name, rows: None, head=candidate[1] if candidate else None)
            with mode:
                output = logits(model, example)
        # Code that calls an in-place activation and drops what it returns would go wrong under the replacement.
        self.pointwise = bool(torch.allclose(plain, output, rtol=1e-3, atol=1e-4 * float(plain.abs().max() + 1)))
        self.classes = int(output.shape[1])
        self.head = candidate if candidate and _closes(mode, output) else None
        if candidate and not self.head:
            mode = self._trial(parameters, example)
        head_names = set(self.head_names)
        rest = {name: tensor for name, tensor in parameters.items() if name not in head_names}
        self.generic = tuple(name for name in rest if name in mode.unsupported)
        self.unused = tuple(name for name in rest if name not in mode.met and name not in mode.unsupported)
        self.direct = tuple(name for name in rest if name in mode.met and name not in mode.unsupported)
        self.order = tuple(name for name in mode.order if name in rest)
        """Parameters outside the head in the order in which a forward pass first meets them, whatever their route."""
        self.reasons = dict(mode.unsupported)
        self.lock = threading.RLock()
        """Held by whoever moves the model's weights, so that one linearisation serves requests of several threads."""
        self.unmapped = False
        """Whether torch cannot map over samples what the model does with the generic ones: rows are then made one by one."""
        self._layout((*self.direct, *self.generic, *self.unused))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.RLock())

    @property
    def dtype(self) -> torch.dtype:
        """Of the tuned parameters, and so of the rows; inputs may be whole numbers."""
        return next(iter(self.subset.parameters.values())).dtype

    @property
    def head_names(self) -> tuple[str, ...]:
        """Tuned parameters of the head whose rows are in closed form."""
        if self.head is None:
            return ()
        prefix = f"{self.head[0]}." if self.head[0] else ""  # the head may be the whole model
        return tuple(name for name in (f"{prefix}weight", f"{prefix}bias") if name in self.slices)

    @property
    def features(self) -> int | None:
        """The number H of head features, where the logits are W·h + b."""
        return None if self.head is None else int(self.head[1].shape[1])

    @property
    def via_features(self) -> bool:
        """Whether rows go through the features because there are more classes than features."""
        return self.features is not None and self.classes > self.features and bool(self.direct)

    @property
    def backwards(self) -> int:
        """Backward passes per chunk."""
        if not self.direct:
            return 0
        return int(self.features or 0) if self.via_features else self.classes

    @property
    def routes(self) -> dict[str, object]:
        """JSON-able: which parameters go by which route."""
        return {
            "closed form": list(self.head_names),
            "direct": len(self.direct),
            "vmap(jacrev)": {name: self.reasons[name] for name in self.generic},
            "unused": list(self.unused),
            "via features": self.via_features,
            "backward passes": self.backwards,
        }

    def demote(self, names: Iterable[str], *, reason: str = "rows disagreed with autograd") -> None:
        """Send these parameters by ``vmap(jacrev)`` from now on. The columns stay where they are: rows may be stored by now."""
        reasons = dict.fromkeys(sorted(set(names)), reason)
        self.direct, self.unused = (tuple(name for name in group if name not in reasons) for group in (self.direct, self.unused))
        self.generic = (*self.generic, *reasons)
        self.reasons |= reasons

    def truncated(self, names: Iterable[str]) -> RowEngine:
        """An engine on the same model for some of the tuned parameters; its backward passes stop where the first of them is met.

        Routes are those found here, demotions included, so no guard and no trial pass runs again. The lock is shared, as the
        model is.
        """
        name_set = set(names)
        unknown = sorted(name_set - set(self.subset.names))
        if unknown:
            raise InputError(f"Expected names of the engine's tuned parameters, got {listing(unknown)} besides.")
        if not name_set:
            raise InputError("Expected at least one tuned parameter, got none: there is nothing to differentiate.")
        part = copy.copy(self)
        part.subset = Subset(self.model, name_set)
        part.slices = part.subset.slices
        part.direct, part.generic, part.unused, part.order = (
            tuple(name for name in group if name in name_set) for group in (self.direct, self.generic, self.unused, self.order)
        )
        part.reasons = {name: reason for name, reason in self.reasons.items() if name in name_set}
        part.lock = self.lock
        part._layout(tuple(name for name in self.places if name in name_set))
        return part

    def rows(self, inputs: Tensor) -> HeadRows:
        """The rows of one chunk of inputs (n, …), on the model's device."""
        inputs = inputs.to(device_of(self.model))
        body, features = self._direct_rows(inputs)
        if self.generic:
            self._generic_rows(inputs, body)
        return self.assemble(body, features if self.weight_columns is not None else None)

    def assemble(self, body: Tensor, features: Tensor | None) -> HeadRows:
        """Rows from a body (n, C, b) in this engine's column order and the head's features (n, H)."""
        return HeadRows(
            body=body,
            features=features,
            bias=self.bias_columns is not None,
            body_columns=self.body_columns,
            weight_columns=self.weight_columns,
            bias_columns=self.bias_columns,
        )

    @torch.no_grad()
    def outputs(self, inputs: Tensor, *, chunk: int = 128) -> tuple[Tensor, Tensor | None]:
        """Logits (n, C) and, where the head closes the model, its features (n, H), on the CPU; no derivatives."""
        outputs, features = [], []
        for part in fast_layout(self.model, inputs).split(chunk):
            with SiteMode({}, lambda name, rows: None, head=self.head[1] if self.head else None) as mode:
                outputs.append(logits(self.model, part))
            if mode.features is not None:
                features.append(mode.features)
        return torch.cat(outputs).cpu(), torch.cat(features).cpu() if features else None

    def probed_rows(self, inputs: Tensor, probes: Tensor) -> Tensor:
        """Σ_c probes[i, c, k] · J[i, c]: m = probes.shape[2] backward passes instead of C. Returns (n, m, d) on its device.

        With probes from :func:`fastntk.linalg.output_probes`, E[RᵀR] = JᵀJ.
        """
        inputs = inputs.to(device_of(self.model))
        probes = probes.to(inputs.device, self.dtype)
        products, mode = (None, None) if self.generic else self._sweep(inputs, probes)
        if products is None or mode is None or self.generic:  # the sweep may have shown that some are
            return torch.einsum("ncd,ncm->nmd", self.rows(inputs).dense(), probes)
        out = torch.zeros(len(inputs), probes.shape[2], self.subset.numel, dtype=self.dtype, device=inputs.device)
        out[:, :, self.body_columns] = products
        for name in self.head_names:
            part = probes.transpose(1, 2)
            if name.endswith("weight"):
                assert mode.features is not None
                part = torch.einsum("nmc,nh->nmch", part, mode.features.detach()).flatten(2)
            out[:, :, self.slices[name]] = part
        return out

    def _direct_rows(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The body (n, C, b), zero where parameters do not go this way, and the head's features."""
        if not (self.direct or self.unused or self.head):
            return torch.zeros(len(inputs), self.classes, len(self.body_columns), dtype=self.dtype, device=inputs.device), None
        rows, mode = self._sweep(inputs, None)
        if self.via_features and self.head is not None:
            rows = torch.matmul(self.head[1].detach(), rows)
        elif not self.direct:
            rows = rows.new_zeros(len(inputs), self.classes, rows.shape[2])
        return rows, None if mode.features is None else mode.features.detach()

    def _sweep(self, inputs: Tensor, probes: Tensor | None) -> tuple[Tensor, SiteMode]:
        """One forward pass and a backward pass per output (or per probe (n, C, m)): (n, m, b), and again where that showed that
        some parameters have to go by another route."""
        while True:
            products, mode, reasons = self._pass(inputs, probes)
            if not reasons:
                return products, mode
            for name, reason in sorted(reasons.items()):
                self.demote([name], reason=reason)

    def _pass(self, inputs: Tensor, probes: Tensor | None) -> tuple[Tensor, SiteMode, dict[str, str]]:
        """What :meth:`_sweep` returns, and parameters that entered in another way than they did so far, with what was seen."""
        pieces: dict[str, Tensor] = {}
        reasons: dict[str, str] = {}

        def collect(name: str, rows: Tensor) -> None:
            if len(rows) != len(inputs):
                reasons[name] = f"met with {len(rows)} rows for {len(inputs)} samples"
            elif name in pieces:
                pieces[name] = pieces[name] + rows
            else:
                pieces[name] = rows

        present = self.subset.parameters
        mode = SiteMode(
            {name: present[name] for name in (*self.direct, *self.unused)},
            collect,
            head=self.head[1] if self.head else None,
            pointwise=self.pointwise,
        )
        with _frozen(self.model):
            with torch.enable_grad() if self.direct else torch.no_grad(), mode:
                output = logits(self.model, inputs)
            reasons |= {name: "not met by the first samples" for name in self.unused if name in mode.met}
            reasons |= mode.unsupported
            if self.head and not _closes(mode, output):
                raise InputError(
                    f"Expected the head {self.head[0]!r} to make the logits of all samples, as of the first ones; those of "
                    "later ones are made in another way and have other rows. Give the model one head, or use method='retrain'."
                )
            source = mode.features if self.via_features and probes is None else output
            assert source is not None
            count = self.backwards if probes is None else probes.shape[2]
            products = torch.zeros(len(inputs), count, len(self.body_columns), dtype=self.dtype, device=inputs.device)
            # Without a graph none of these samples passes through a parameter: zero is right.
            for k in range(count if self.direct and source.requires_grad else 0):
                pieces.clear()
                seed = torch.zeros_like(source) if probes is None else probes[:, :, k]
                if probes is None:
                    seed[:, k] = 1
                torch.autograd.grad(source, mode.handle, seed, retain_graph=k + 1 < count, allow_unused=True)
                if len(pieces) == len(self.places):
                    torch.cat([pieces[name].reshape(len(inputs), -1) for name in self.places], 1, out=products[:, k])
                else:
                    for name, rows in pieces.items():
                        products[:, k, self.places[name]] = rows.reshape(len(inputs), -1)
        return products, mode, reasons

    def _generic_rows(self, inputs: Tensor, body: Tensor) -> None:
        present = self.subset.parameters
        values = {name: present[name].detach() for name in self.generic}

        def one(part: dict[str, Tensor], x: Tensor) -> Tensor:
            model = self.model
            output = functional_call(model, part, (x.unsqueeze(0),))
            output = output if isinstance(output, Tensor) else output.logits
            return output.squeeze(0)

        # Frozen: tuned parameters of other routes would be recorded as well, and the rows would hold that graph.
        with _frozen(self.model), plain_attention():
            try:
                jacobians = (_one_by_one if self.unmapped else _mapped)(one, values, inputs)
            except RuntimeError as error:
                if self.unmapped or "allocate" in str(error):  # the memory's fault, not the model's
                    raise
                self.unmapped = True
                warnings.warn(
                    f"torch cannot map over samples what the model does with {listing(self.generic)} "
                    f"({str(error).splitlines()[0]}): their rows are made one by one, which is slow.",
                    stacklevel=2,
                )
                jacobians = _one_by_one(one, values, inputs)
        for name, rows in jacobians.items():
            body[:, :, self.places[name]] = rows.reshape(*rows.shape[:2], -1)

    def _head_candidate(self) -> tuple[str, Tensor, Tensor | None] | None:
        try:
            name, layer = find_head(self.model)
        except InputError:
            return None
        return name, layer.weight, layer.bias

    def _trial(self, parameters: dict[str, Tensor], example: Tensor) -> SiteMode:
        with _frozen(self.model), torch.no_grad():
            mode = SiteMode(parameters, lambda name, rows: None)
            with mode:
                logits(self.model, example)
        return mode

    def _layout(self, order: tuple[str, ...]) -> None:
        """Body columns in this order of the parameters; the head's apart."""

        def span(name: str) -> Tensor:
            return torch.arange(self.slices[name].start, self.slices[name].stop)

        self.places: dict[str, slice] = {}
        start = 0
        for name in order:
            stop = start + len(span(name))
            self.places[name] = slice(start, stop)
            start = stop
        empty = torch.empty(0, dtype=torch.long)
        self.body_columns = torch.cat([empty, *(span(name) for name in order)])
        self.weight_columns: Tensor | None = None
        self.bias_columns: Tensor | None = None
        for name in self.head_names:
            if name.endswith("weight"):
                self.weight_columns = span(name).view(self.classes, -1)
            else:
                self.bias_columns = span(name)


def chunk_size(chunk: int | None) -> int:
    """How many samples are taken at once: those asked for, or the default."""
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise InputError(f"chunk must be ≥ 1, got {chunk!r}: it is a whole number of samples that are taken at once.")
    return DEFAULT_CHUNK if chunk is None else chunk


def iter_rows(engine: RowEngine, inputs: Tensor, *, chunk: int | None = None) -> Iterator[tuple[slice, HeadRows]]:
    """Yield (which samples, their rows), chunk by chunk."""
    inputs = fast_layout(engine.model, inputs)
    size = chunk_size(chunk)
    for start in range(0, len(inputs), size):
        part = slice(start, min(start + size, len(inputs)))
        yield part, engine.rows(inputs[part])


def seconds_of_rows(engine: RowEngine, inputs: Tensor) -> float:
    """Seconds an image that rows take on this machine, timed on one chunk of inputs; of a truncated engine: what its depth costs.

    That is one forward pass and the backward passes to the first parameter of the engine. Nothing is changed or kept.
    """
    inputs = fast_layout(engine.model, inputs)
    return seconds_an_image(lambda size: engine.rows(inputs[:size]), len(inputs))


@with_gradients
def jacobian(model: nn.Module, subset: Subset, inputs: Tensor, *, chunk: int | None = None) -> Tensor:
    """Exact rows (n, C, d) of the logits with respect to the subset, in the parameters' dtype and on their device.

    The model must be in eval mode. For large n·C·d use ``fastntk.tangent.linearise``, which keeps the head's block
    as features and can write to disk.
    """
    from fastntk.tangent.guards import checked_engine

    inputs = recordable(inputs) if isinstance(inputs, Tensor) else inputs
    engine = checked_engine(model, subset, inputs)
    out = torch.zeros(len(inputs), engine.classes, subset.numel, dtype=engine.dtype, device=device_of(model))
    for part, rows in iter_rows(engine, inputs, chunk=chunk):
        out[part] = rows.dense()
    return out


One = Callable[[dict[str, Tensor], Tensor], Tensor]
"""From parameters and one image to its logits (C,)."""


def _mapped(one: One, values: dict[str, Tensor], inputs: Tensor) -> dict[str, Tensor]:
    """Rows (n, C, …) by name, all samples at once."""
    rows: dict[str, Tensor] = vmap(jacrev(one), (None, 0))(values, inputs)
    return rows


def _one_by_one(one: One, values: dict[str, Tensor], inputs: Tensor) -> dict[str, Tensor]:
    """A backward pass for every sample and class: rows (n, C, …) by name."""
    gradients: dict[str, list[Tensor]] = {name: [] for name in values}
    for x in inputs:
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        with torch.enable_grad():
            outputs = one(leaves, x).unbind()
        for k, output in enumerate(outputs):
            keep = k + 1 < len(outputs)
            for name, grad in zip(leaves, gradients_of(output, list(leaves.values()), retain_graph=keep)):
                gradients[name].append(grad)
    return {name: torch.stack(rows).view(len(inputs), -1, *values[name].shape) for name, rows in gradients.items()}


def _closes(mode: SiteMode, output: Tensor) -> bool:
    """Whether the head was called once, on flat features, and its output is the model's."""
    head_output, features = mode.head_output, mode.features
    return (
        head_output is not None
        and features is not None
        and features.dim() == 2
        and head_output._version == mode.head_version  # not written to since
        and head_output.data_ptr() == output.data_ptr()
        and (head_output.shape, head_output.stride()) == (output.shape, output.stride())
    )


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for gradients inside: only the sites record anything."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
