"""Where tuned parameters enter a forward pass, and what each such place contributes to the per-sample rows.

Reverse mode sums a parameter's gradient over the batch. Here each operation that uses a tuned parameter is replaced,
while the model runs, by one that computes the same output but on the way back hands the *unsummed* gradient to a
collector. Frozen layers keep their native kernels and compute no weight gradients, so C backward passes over a chunk
of images cost little more than C forward passes: the floor of the method.

The replacement is a ``TorchFunctionMode`` keyed by the parameter tensors themselves, so it works in any module, stock
or hand-written, that calls ``F.batch_norm``, ``F.layer_norm``, ``F.group_norm``, ``F.linear`` or ``F.conv2d``. A
parameter used in any other way is reported in ``unsupported``; :mod:`fastntk.tangent.rows` takes those by
``vmap(jacrev)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fastntk.tuning.prompts import expand_prefix

Collect = Callable[[Tensor], None]
"""Takes one parameter's per-sample gradient, (n, *shape)."""


class _BatchNormSite(torch.autograd.Function):
    """y = γ·x̂ + β with fixed statistics: rows are Σ_space g·x̂ and Σ_space g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, handle: Tensor, site: _Norm) -> Tensor:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        rstd = torch.rsqrt(site.var + site.eps)
        normalised = torch.addcmul((-site.mean * rstd).view(shape), x, rstd.view(shape))
        ctx.site = site
        ctx.normalised = normalised if site.on_weight else None
        scale = rstd if site.weight is None else rstd * site.weight
        ctx.scale = scale.view(shape)
        out = normalised.clone() if site.weight is None else normalised * site.weight.view(shape)
        return out if site.bias is None else out.add_(site.bias.view(shape))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        scratch = _norm_rows(ctx.site, grad, ctx.normalised, tuple(range(2, grad.dim())))
        # The product just summed is warm in cache: the input's gradient takes its place.
        return (torch.mul(grad, ctx.scale, out=scratch) if ctx.needs_input_grad[0] else None), None, None


class _LayerNormSite(torch.autograd.Function):
    """y = γ·x̂ + β over the last dimensions; the native kernel goes both ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, handle: Tensor, site: _Norm) -> Tensor:
        out, mean, rstd = torch.native_layer_norm(x, site.shape, site.weight, site.bias, site.eps)
        ctx.save_for_backward(x)  # saved, not just kept: a later in-place change of x is then an error, not a wrong row
        ctx.site, ctx.mean, ctx.rstd = site, mean, rstd
        ctx.normalised = (x - mean) * rstd if site.on_weight else None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        site = ctx.site
        _norm_rows(site, grad, ctx.normalised, tuple(range(1, grad.dim() - len(site.shape))))
        if not ctx.needs_input_grad[0]:
            return None, None, None
        back = torch.ops.aten.native_layer_norm_backward(
            grad, ctx.saved_tensors[0], site.shape, ctx.mean, ctx.rstd, site.weight, site.bias, [True, False, False]
        )
        return back[0], None, None


class _GroupNormSite(torch.autograd.Function):
    """y = γ·x̂ + β per channel, x̂ normalised per sample and group of channels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, handle: Tensor, site: _Norm) -> Tensor:
        count, channels, space = x.shape[0], x.shape[1], x[0, 0].numel()
        x = x.contiguous()
        out, mean, rstd = torch.native_group_norm(x, site.weight, site.bias, count, channels, space, site.groups, site.eps)
        ctx.save_for_backward(x)
        ctx.site, ctx.mean, ctx.rstd = site, mean, rstd
        grouped = x.view(count, site.groups, -1)
        normalised = (grouped - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
        ctx.normalised = normalised.view(x.shape) if site.on_weight else None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        site, (x,) = ctx.site, ctx.saved_tensors
        grad = grad.contiguous()
        _norm_rows(site, grad, ctx.normalised, tuple(range(2, grad.dim())))
        if not ctx.needs_input_grad[0]:
            return None, None, None
        back = torch.ops.aten.native_group_norm_backward(
            grad,
            x,
            ctx.mean,
            ctx.rstd,
            site.weight,
            x.shape[0],
            x.shape[1],
            x[0, 0].numel(),
            site.groups,
            [True, False, False],
        )
        return back[0], None, None


@dataclass(frozen=True)
class _Norm:
    """One call of a normalisation: its constants, and who collects the rows of γ and β."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    on_weight: Collect | None
    on_bias: Collect | None
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    var: Tensor = field(default_factory=lambda: torch.empty(0))
    shape: tuple[int, ...] = ()
    groups: int = 1


def _norm_rows(site: _Norm, grad: Tensor, normalised: Tensor | None, over: tuple[int, ...]) -> Tensor | None:
    """Hand over the rows of γ and β; return the product buffer, free for reuse where it was summed."""
    product = None
    if site.on_weight is not None and normalised is not None:
        product = normalised * grad
        site.on_weight(product.sum(over) if over else product)
    if site.on_bias is not None:
        site.on_bias(grad.sum(over) if over else grad)
    return product if over else None


class _LinearSite(torch.autograd.Function):
    """y = x Wᵀ + b: rows are Σ_positions g ⊗ x and Σ_positions g."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, handle: Tensor, weight: Tensor, bias: Tensor | None, collect: tuple[Collect | None, ...]
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.collect = weight, collect
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        on_weight, on_bias = ctx.collect
        flat = grad.flatten(1, -2) if grad.dim() > 2 else grad.unsqueeze(1)
        if on_weight is not None:
            (x,) = ctx.saved_tensors
            x = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
            on_weight(flat.transpose(1, 2) @ x)
        if on_bias is not None:
            on_bias(flat.sum(1))
        return (grad @ ctx.weight if ctx.needs_input_grad[0] else None), None, None, None, None


@dataclass(frozen=True)
class _Conv:
    """The constants of one convolution call."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


class _ConvSite(torch.autograd.Function):
    """y = W * x + b: the weight's rows by unfolding x once for all C backward passes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        handle: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        how: _Conv,
        collect: tuple[Collect | None, ...],
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.how, ctx.collect = weight, how, collect
        ctx.columns = None
        if collect[0] is not None:
            columns = F.unfold(x, weight.shape[2:], how.dilation, how.padding, how.stride)
            ctx.columns = columns.view(x.shape[0], how.groups, -1, columns.shape[-1])
        return F.conv2d(x, weight, bias, how.stride, how.padding, how.dilation, how.groups)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        on_weight, on_bias = ctx.collect
        how = ctx.how
        if on_weight is not None:
            grouped = grad.reshape(grad.shape[0], how.groups, -1, grad.shape[2] * grad.shape[3])
            on_weight(grouped @ ctx.columns.transpose(2, 3))
        if on_bias is not None:
            on_bias(grad.sum((2, 3)))
        back = None
        if ctx.needs_input_grad[0]:
            back = torch.ops.aten.convolution_backward(
                grad, ctx.saved_tensors[0], ctx.weight, None, how.stride, how.padding, how.dilation,
                False, [0, 0], how.groups, [True, False, False],
            )[0]  # fmt: skip
        return back, None, None, None, None, None


class _PrefixSite(torch.autograd.Function):
    """A prompt's copy for every sample and head."""

    @staticmethod
    def forward(ctx: Any, prefix: Tensor, handle: Tensor, batch: int, heads: int, collect: Collect) -> Tensor:
        ctx.collect = collect
        return expand_prefix(prefix, batch, heads).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None, None]:
        ctx.collect(grad.transpose(1, 2).flatten(2))
        return None, None, None, None, None


class _Pointwise(torch.autograd.Function):
    """An activation whose derivative is computed once for all C backward passes, which then are products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = func(leaf, *args, **kwargs)
        (ctx.slope,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        return y.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        # The slope first: the product then has the activations' memory layout, which the convolutions want.
        return ctx.slope * grad, None, None, None


POINTWISE = {F.relu, torch.relu, F.relu6, F.gelu, F.silu, F.hardswish, torch.tanh, torch.sigmoid}


class SiteMode(TorchFunctionMode):
    """While active, operations on tuned parameters report their per-sample gradients to ``collect(name, rows)``.

    ``head``: a linear layer's weight whose input is kept in ``features`` instead (its rows are in closed form).
    ``pointwise``: replace activations by ones that remember their derivative (out of place, whatever they ask for).
    ``unsupported``: parameters met in operations that are not known here. ``met``: all parameters met.
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
        self._collect = collect
        self._head = head
        self._pointwise = pointwise
        self.handle = torch.zeros((), requires_grad=True)
        self.features: Tensor | None = None
        self.head_output: Tensor | None = None
        self.met: set[str] = set()
        self.unsupported: dict[str, str] = {}

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
                return _Pointwise.apply(args[0], func, args[1:], kwargs)  # type: ignore[no-untyped-call]
            return func(*args, **kwargs)
        used = [self._names[id(a)] for a in (*args, *kwargs.values()) if id(a) in self._names]
        if not used:
            nested = [a for group in args if isinstance(group, list | tuple) for a in group]
            used = [self._names[id(a)] for a in nested if id(a) in self._names]
            if not used:
                return func(*args, **kwargs)
        handler = _HANDLERS.get(func)
        out = NotImplemented if handler is None else handler(self, *args, **kwargs)
        if out is NotImplemented:
            out = func(*args, **kwargs)
            if isinstance(out, Tensor) and id(out) not in self._names:
                self.unsupported.update(dict.fromkeys(used, getattr(func, "__name__", str(func))))
            return out
        self.met.update(used)
        return out

    def collector(self, tensor: Tensor | None) -> Collect | None:
        """Who takes this tensor's rows; None if it is not tuned."""
        name = self._names.get(id(tensor)) if tensor is not None else None
        # Not self: a cycle through the graph's nodes is never collected, and with it every chunk's activations.
        collect = self._collect
        return None if name is None else lambda rows: collect(name, rows)

    def _head_call(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        # A name in `met` twice would mean two uses of the head: its closed form then does not hold.
        if self.features is not None:
            self.head_output = None
            return F.linear(x, weight, bias)
        self.features = x
        self.head_output = F.linear(x, weight, bias)
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
    site = _Norm(weight, bias, eps, mode.collector(weight), mode.collector(bias), running_mean, running_var)
    return _BatchNormSite.apply(x, mode.handle, site)  # type: ignore[no-untyped-call]


def _layer_norm(
    mode: SiteMode,
    x: Tensor,
    normalized_shape: Iterable[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    shape = tuple(normalized_shape)
    site = _Norm(weight, bias, eps, mode.collector(weight), mode.collector(bias), shape=shape)
    return _LayerNormSite.apply(x, mode.handle, site)  # type: ignore[no-untyped-call]


def _group_norm(
    mode: SiteMode,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    site = _Norm(weight, bias, eps, mode.collector(weight), mode.collector(bias), groups=num_groups)
    return _GroupNormSite.apply(x, mode.handle, site)  # type: ignore[no-untyped-call]


def _linear(mode: SiteMode, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    collect = (mode.collector(weight), mode.collector(bias))
    return _LinearSite.apply(x, mode.handle, weight, bias, collect)  # type: ignore[no-untyped-call]


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
    how = _Conv(_pair(stride), _pair(padding), _pair(dilation), groups)
    collect = (mode.collector(weight), mode.collector(bias))
    return _ConvSite.apply(x, mode.handle, weight, bias, how, collect)  # type: ignore[no-untyped-call]


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else tuple(value)


def _expand_prefix(mode: SiteMode, prefix: Tensor, batch: int, heads: int) -> Any:
    return _PrefixSite.apply(prefix, mode.handle, batch, heads, mode.collector(prefix))  # type: ignore[no-untyped-call]


_HANDLERS: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.linear: _linear,
    F.conv2d: _conv2d,
    expand_prefix: _expand_prefix,
}
