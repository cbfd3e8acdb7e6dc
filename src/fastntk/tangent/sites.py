"""Where tuned parameters enter a forward pass, and what each such place contributes to the per-sample rows.

Reverse mode sums a parameter's gradient over the batch. Here each operation that uses a tuned parameter is replaced,
while the model runs, by one that computes the same output but on the way back hands the *unsummed* gradient to a
collector. Frozen layers keep their native kernels and compute no weight gradients, so C backward passes over a chunk
of images cost little more than C forward passes: the floor of the method.

The replacement is a ``TorchFunctionMode`` keyed by the parameter tensors themselves, so it works in any module, stock
or hand-written, that calls ``F.batch_norm``, ``F.layer_norm``, ``F.group_norm``, ``F.linear`` or ``F.conv2d``, adds a
parameter to all samples or multiplies them by it (position embeddings, LayerScale), or expands it to all samples (class
tokens). A parameter used in any other way is reported in ``unsupported``; :mod:`fastntk.tangent.rows` takes those by
``vmap(jacrev)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fastntk.tangent.functions import (
    BatchNormSite,
    BroadcastSite,
    Collect,
    Conv,
    ConvSite,
    GroupNormSite,
    LayerNormSite,
    LinearSite,
    Norm,
    Pointwise,
    PrefixSite,
)
from fastntk.tuning.prompts import expand_prefix

POINTWISE = {F.relu, torch.relu, F.relu6, F.gelu, F.silu, F.hardswish, torch.tanh, torch.sigmoid}
RESHAPING = {torch.reshape, Tensor.reshape, Tensor.view, torch.unsqueeze, Tensor.unsqueeze}
"""What these make of a parameter is that parameter, in another shape."""


class SiteMode(TorchFunctionMode):
    """While active, operations on tuned parameters report their per-sample gradients to ``collect(name, rows)``.

    ``head``: a linear layer's weight whose input is kept in ``features`` instead (its rows are in closed form).
    ``pointwise``: replace activations by ones that remember their derivative (out of place, whatever they ask for).
    ``unsupported``: parameters met in operations that are not known here, and the operation. ``met``: those met in known ones.
    ``order``: all of them, in the order in which the pass first met them.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        collect: Callable[[str, Tensor], None],
        *,
        head: Tensor | None = None,
        pointwise: bool = True,
    ) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in parameters.items()}
        self._views: dict[int, tuple[Tensor, torch.Size]] = {}  # kept alive, so that their ids stay theirs
        self._collect = collect
        self._head = head
        self._pointwise = pointwise
        self.handle = torch.zeros((), requires_grad=True)
        self.features: Tensor | None = None
        self.head_output: Tensor | None = None
        self.head_version = 0
        self.met: set[str] = set()
        self.unsupported: dict[str, str] = {}
        self.order: dict[str, None] = {}

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and self._head is not None and len(args) > 1 and args[1] is self._head:
            return self._head_call(*args, **kwargs)
        if func in POINTWISE and self._pointwise:
            # Activations need no site, and before the first one there is nothing to go back to.
            kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
            if args and isinstance(args[0], Tensor) and args[0].requires_grad:
                return Pointwise.apply(args[0], func, args[1:], kwargs)  # type: ignore[no-untyped-call]
            return func(*args, **kwargs)
        names = [self._names[id(a)] for a in (*args, *kwargs.values()) if id(a) in self._names]
        if not names:
            inner = [a for group in args if isinstance(group, list | tuple) for a in group]
            names = [self._names[id(a)] for a in inner if id(a) in self._names]
            if not names:
                return func(*args, **kwargs)
        if func in RESHAPING and args and self.tuned(args[0]):
            return self._view(args[0], func(*args, **kwargs))
        handler = _HANDLERS.get(func)
        out = NotImplemented if handler is None else handler(self, *args, **kwargs)
        if out is NotImplemented:
            out = func(*args, **kwargs)
            outputs = out if isinstance(out, list | tuple) else (out,)
            if any(isinstance(each, Tensor) and id(each) not in self._names for each in outputs):
                self.unsupported.update(dict.fromkeys(names, getattr(func, "__name__", str(func))))
                self.order.update(dict.fromkeys(names))
            return out
        self.met.update(names)
        self.order.update(dict.fromkeys(names))
        return out

    def collector(self, tensor: Tensor | None) -> Collect | None:
        """Who takes this tensor's rows; None if it is not tuned."""
        name = self._names.get(id(tensor)) if tensor is not None else None
        # Not self: a cycle through the graph's nodes is never collected, and with it every chunk's activations.
        collect, view = self._collect, self._views.get(id(tensor))
        if name is None:
            return None
        if view is None:
            return lambda rows: collect(name, rows)
        shape = view[1]
        return lambda rows: collect(name, rows.reshape(len(rows), *shape))

    def tuned(self, value: Any) -> bool:
        """Whether this is a tuned parameter, or one in another shape."""
        return id(value) in self._names

    def _view(self, of: Tensor, made: Tensor) -> Tensor:
        if made is not of:
            self._views[id(made)] = made, self._views[id(of)][1] if id(of) in self._views else of.shape
            self._names[id(made)] = self._names[id(of)]
        return made

    def _head_call(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        # Used twice, the head has no closed form.
        if self.features is not None:
            self.head_output = None
            return F.linear(x, weight, bias)
        self.features = x
        self.head_output = F.linear(x, weight, bias)
        self.head_version = self.head_output._version
        return self.head_output


def _batch_norm(
    mode: SiteMode,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if training or running_mean is None or running_var is None:
        return NotImplemented
    site = Norm(weight, bias, eps, mode.collector(weight), mode.collector(bias), running_mean, running_var)
    return BatchNormSite.apply(x, mode.handle, site)  # type: ignore[no-untyped-call]


def _layer_norm(
    mode: SiteMode,
    x: Tensor,
    normalized_shape: Iterable[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    shape = tuple(normalized_shape)
    site = Norm(weight, bias, eps, mode.collector(weight), mode.collector(bias), shape=shape)
    return LayerNormSite.apply(x, mode.handle, site)  # type: ignore[no-untyped-call]


def _group_norm(
    mode: SiteMode,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    site = Norm(weight, bias, eps, mode.collector(weight), mode.collector(bias), groups=num_groups)
    return GroupNormSite.apply(x, mode.handle, site)  # type: ignore[no-untyped-call]


def _linear(mode: SiteMode, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    collect = (mode.collector(weight), mode.collector(bias))
    return LinearSite.apply(x, mode.handle, weight, bias, collect)  # type: ignore[no-untyped-call]


def _conv2d(
    mode: SiteMode,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if isinstance(padding, str) or x.dim() != 4:
        return NotImplemented
    how = Conv(_pair(stride), _pair(padding), _pair(dilation), groups)
    collect = (mode.collector(weight), mode.collector(bias))
    return ConvSite.apply(x, mode.handle, weight, bias, how, collect)  # type: ignore[no-untyped-call]


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else tuple(value)


def _add(mode: SiteMode, a: Any = None, b: Any = None, **options: Any) -> Any:
    return NotImplemented if options else _broadcast(mode, a, b, multiply=False)


def _multiply(mode: SiteMode, a: Any = None, b: Any = None, **options: Any) -> Any:
    return NotImplemented if options else _broadcast(mode, a, b, multiply=True)


def _broadcast(mode: SiteMode, a: Any, b: Any, *, multiply: bool) -> Any:
    """One of the two is tuned and has no dimension for the samples; the other has the shape of the result."""
    p, x = (a, b) if mode.tuned(a) else (b, a)
    if mode.tuned(x) or not isinstance(x, Tensor) or x.dtype != p.dtype or x.dim() < p.dim():
        return NotImplemented
    if (x.dim() == p.dim() and p.shape[0] != 1) or torch.broadcast_shapes(x.shape, p.shape) != x.shape:
        return NotImplemented
    return BroadcastSite.apply(x, mode.handle, p, multiply, mode.collector(p))  # type: ignore[no-untyped-call]


def _expand(mode: SiteMode, p: Tensor, *sizes: Any, **options: Any) -> Any:
    """A copy of the parameter for every sample."""
    shape = p.expand(*sizes, **options).shape
    rest = p.shape if p.dim() < len(shape) else p.shape[1:] if p.shape[:1] == (1,) else None
    if rest is None or shape[1:] != rest:
        return NotImplemented
    zeros = p.new_zeros(shape[0], *(1,) * len(rest))
    return BroadcastSite.apply(zeros, mode.handle, p, False, mode.collector(p))  # type: ignore[no-untyped-call]


def _expand_prefix(mode: SiteMode, prefix: Tensor, batch: int, heads: int) -> Any:
    return PrefixSite.apply(prefix, mode.handle, batch, heads, mode.collector(prefix))  # type: ignore[no-untyped-call]


_HANDLERS: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.linear: _linear,
    F.conv2d: _conv2d,
    expand_prefix: _expand_prefix,
    Tensor.expand: _expand,
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), _add),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _multiply),
}
