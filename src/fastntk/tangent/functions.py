"""Operations that compute what the native ones do, and on the way back hand over per-sample gradients.

One ``autograd.Function`` per kind of layer. Inputs that are needed again are saved by autograd, so that a later in-place change
is an error and not a wrong row; each returns a gradient for its input only where one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastntk.tuning.prompts import expand_prefix

Collect = Callable[[Tensor], None]
"""Takes one parameter's per-sample gradient, (n, *shape)."""


class BatchNormSite(torch.autograd.Function):
    """y = γ·x̂ + β with fixed statistics: rows are Σ_space g·x̂ and Σ_space g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, handle: Tensor, site: Norm) -> Tensor:
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


class LayerNormSite(torch.autograd.Function):
    """y = γ·x̂ + β over the last dimensions; the native kernel goes both ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, handle: Tensor, site: Norm) -> Tensor:
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


class GroupNormSite(torch.autograd.Function):
    """y = γ·x̂ + β per channel, x̂ normalised per sample and group of channels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, handle: Tensor, site: Norm) -> Tensor:
        count, channels, space = x.shape[0], x.shape[1], x[0, 0].numel()
        x = x.contiguous()
        out, mean, rstd = torch.native_group_norm(x, site.weight, site.bias, count, channels, space, site.groups, site.eps)
        ctx.save_for_backward(x)
        ctx.site, ctx.mean, ctx.rstd = site, mean, rstd
        groups = x.view(count, site.groups, -1)
        normalised = (groups - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
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
class Norm:
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


def _norm_rows(site: Norm, grad: Tensor, normalised: Tensor | None, over: tuple[int, ...]) -> Tensor | None:
    """Hand over the rows of γ and β; return the product buffer, free for reuse where it was summed."""
    product = None
    if site.on_weight is not None and normalised is not None:
        product = normalised * grad
        site.on_weight(product.sum(over) if over else product)
    if site.on_bias is not None:
        site.on_bias(grad.sum(over) if over else grad)
    return product if over else None


class LinearSite(torch.autograd.Function):
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
class Conv:
    """The constants of one convolution call."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


class ConvSite(torch.autograd.Function):
    """y = W * x + b: the weight's rows by unfolding x once for all C backward passes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        handle: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        how: Conv,
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
            groups = grad.reshape(grad.shape[0], how.groups, -1, grad.shape[2] * grad.shape[3])
            on_weight(groups @ ctx.columns.transpose(2, 3))
        if on_bias is not None:
            on_bias(grad.sum((2, 3)))
        back = None
        if ctx.needs_input_grad[0]:
            back = torch.ops.aten.convolution_backward(
                grad, ctx.saved_tensors[0], ctx.weight, None, how.stride, how.padding, how.dilation,
                False, [0, 0], how.groups, [True, False, False],
            )[0]  # fmt: skip
        return back, None, None, None, None, None


class BroadcastSite(torch.autograd.Function):
    """y = x + p or y = x · p, with p the same for every sample: rows are g or g·x, summed where p was broadcast."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, handle: Tensor, p: Tensor, multiply: bool, collect: Collect) -> Tensor:
        ctx.save_for_backward(*((x,) if multiply else ()))
        ctx.p, ctx.multiply, ctx.collect = p, multiply, collect
        return x * p if multiply else x + p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        p = ctx.p
        shape = (*(1,) * (grad.dim() - p.dim()), *p.shape)
        rows = grad * ctx.saved_tensors[0] if ctx.multiply else grad
        over = [k for k in range(1, grad.dim()) if shape[k] == 1 and grad.shape[k] > 1]
        ctx.collect((rows.sum(over) if over else rows).reshape(len(grad), *p.shape))
        back = (grad * p if ctx.multiply else grad) if ctx.needs_input_grad[0] else None
        return back, None, None, None, None


class PrefixSite(torch.autograd.Function):
    """A prompt's copy for every sample and head."""

    @staticmethod
    def forward(ctx: Any, prefix: Tensor, handle: Tensor, batch: int, heads: int, collect: Collect) -> Tensor:
        ctx.collect = collect
        return expand_prefix(prefix, batch, heads).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None, None]:
        ctx.collect(grad.transpose(1, 2).flatten(2))
        return None, None, None, None, None


class Pointwise(torch.autograd.Function):
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
