"""What the gradients of one step tell of it, and its way from the device to the host.

With m_b the gradient of the head's weight that the loss gives for batch b, g_b the one that its backward pass made, and g the one
that the optimiser is given (in the error with the bias's beside it, where that is tuned):

    g_b = s_b·m_b       s_b: what the loop multiplied the loss with (1, or 1/n of n batches), times a loss scaler's power
    g = c·Σ g_b         c: gradient clipping, over the scaler's power

What of g is no multiple of Σ s_b·m_b is an error: the loss of the record is not that of the loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.training.live_optimizer import Numbers
from fastntk.training.losses import PathLoss
from fastntk.training.passes import Part
from fastntk.training.tuned_head import TunedHead

SCALER = 64
"""A loss that was multiplied with more than this was so by a loss scaler, with a power of 2."""

FIT = 2e-2
"""How far the head's gradient may be from what the loss gives, over its own length; ten times that in low precision."""
ROUGH, ROUGH_IN_LOW = 2e-3, 1e-1
"""The same, from which on a replay follows the training only roughly. Rounding is a thousandth at most, but for low precision."""


@dataclass(frozen=True, eq=False)
class Measure:
    """Of one step, on the device: what its gradient was clipped by, the share of each batch in it, how much of the gradient is
    something else, the head's gradient as the optimiser takes it, and the shares' mean for a step that does not tell them."""

    clip: Tensor
    shares: Tensor
    error: Tensor
    live: Tensor
    usual: Tensor


def measured(
    parts: Sequence[Part], head: nn.Linear, loss: PathLoss, *, usual: Tensor, scaled: Any, bias: Tensor | None = None
) -> Measure:
    """From the gradients as they are before the step. ``scaled``: what a fused optimiser divides them by itself, or None;
    ``bias``: the gradient of the head's bias, where it is tuned.

    Where the loss is so low that m_b is rounding, nothing is told: the share is then the ``usual`` one, and nothing was clipped.
    """
    weight = head.weight
    if weight.grad is None:
        raise InputError("the gradients were thrown away between the backward pass and the step: zero_grad() before it")
    live = weight.grad if scaled is None else weight.grad / scaled
    products, sums, gradients, tells = [], [], [], []
    for part in parts:
        assert part.features is not None
        assert part.gradient is not None
        features = part.features.to(weight.dtype)
        outputs = nn.functional.linear(features, weight, head.bias)
        residual = loss.gradient(outputs, part.targets.to(outputs.device))
        product = residual.T @ features
        products.append(product)
        sums.append(residual.sum(0))
        gradients.append(part.gradient)
        tells.append(product.norm() > 8 * torch.finfo(weight.dtype).eps * features.norm())
    plain, raw = torch.stack(tells), torch.stack(gradients).sum(0)
    scales = torch.stack([_factor(gradient, product) for gradient, product in zip(gradients, products)])
    total = torch.where(plain, scales, 0).sum()
    power = _scaler(total, _factor(live, raw), size=sum(len(part.positions) for part in parts))
    shares = torch.where(plain, scales / power, usual.to(scales))
    certain = plain.any() & (raw.norm() > 0)
    clip = torch.where(certain, power * _factor(live, raw), 1.0)
    pairs = [(live, products)] if bias is None else [(live, products), (bias if scaled is None else bias / scaled, sums)]
    misses = [gradient - clip * sum(share * each for share, each in zip(shares, predicted)) for gradient, predicted in pairs]
    error = torch.where(certain, _length(misses) / _length([gradient for gradient, _ in pairs]).clamp_min(1e-30), 0.0)
    mean = torch.where(plain, shares, 0).sum() / plain.sum().clamp_min(1)
    return Measure(clip, shares, error, live, torch.where(plain.any(), mean, usual.to(mean)))


def check_first(seen: Measure, *, low: bool) -> None:
    """Refuse, at the first step, a loss that is not that of the loop. ``low``: some of it is in half precision."""
    error = float(seen.error)
    if error > FIT * (10 if low else 1) and float(seen.live.norm()) > 0:
        raise InputError(
            f"the gradient that reached the head is not that of loss(logits, targets): {100 * error:.0f} % of it is something "
            "else. loss must be the mean loss that the loop uses, its targets those given to batch(), its logits the head's own "
            "outputs (where the model goes on from there, by log_softmax or a temperature, loss has to do the same); nothing may "
            "be added to it (a second head, a penalty on the head's weight), every batch needs a backward pass of its own, and "
            "gradients may be clipped all together, not one by one"
        )


def check_all(middle: float, mean: float, *, low: bool) -> None:
    """The same at the end, by the middle one of all steps' errors, and by their mean: some steps may be clipped by value."""
    middle = max(middle, mean)
    if middle > FIT * (10 if low else 1):
        raise InputError(
            f"The gradients that reached the head are not those of the loss given: {100 * middle:.0f} % of them is something "
            "else (as where they are clipped by value or one by one, or the loss changes on the way). A replay by this record "
            "would not follow the training."
        )
    if middle > (ROUGH_IN_LOW if low else ROUGH):
        warnings.warn(
            f"{100 * middle:.1f} % of the gradients that reached the head is something else than the loss given, as where some "
            "are clipped by value or a penalty is added: a replay will follow the training only roughly",
            stacklevel=3,
        )


def step_tensors(
    parts: Sequence[Part],
    seen: Measure,
    head: TunedHead,
    parameters: Mapping[str, nn.Parameter],
    *,
    kept: Sequence[str] | None,
    scaled: Any,
) -> dict[str, Tensor]:
    """The numbers of a :class:`Step`. ``kept``: the parameters whose gradient is kept, before clipping; None: no gradient."""
    factor = seen.clip if scaled is None else seen.clip * scaled

    def norm(names: Sequence[str]) -> Tensor:
        norms = [gradient.norm() for gradient in (parameters[name].grad for name in names) if gradient is not None]
        return torch.stack(norms).norm() / factor if norms else torch.zeros_like(factor)

    own = [head.weight] if head.bias is None else [head.weight, head.bias]
    tensors = {
        "measures": torch.stack([seen.clip, seen.error, norm(head.body), norm(own)]).double(),
        "shares": seen.shares.double(),
        "features": torch.cat([part.features for part in parts if part.features is not None]),
    }
    if kept is not None:
        gradients = [_gradient(parameters[name]) for name in kept]
        tensors["gradient"] = torch.cat([seen.live.new_empty(0), *gradients]) / factor
    if head.bias is not None:
        tensors["bias"] = _gradient(parameters[head.bias]) / factor
    return tensors


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Flat; zeros for one that took no part, where that is the same to the optimiser."""
    return torch.zeros_like(parameter).reshape(-1) if parameter.grad is None else parameter.grad.detach().reshape(-1)


def _length(gradients: Sequence[Tensor]) -> Tensor:
    """Of all of them side by side."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    length: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return length


def _scaler(total: Tensor, factor: Tensor, *, size: int) -> Tensor:
    """The power of 2 that a loss scaler multiplied the loss with; 1 where there is none, as where the loss is a sum.

    ``total``: the loss over the mean loss, of a step of ``size`` samples. ``factor``: what is left of the gradient at the step,
    when the power was taken out again: its inverse; less than that where gradients were clipped, so that only ``total`` tells of
    it, about.
    """
    inverse, near = (each.clamp_min(1e-30).log2().round().exp2() for each in (factor, total))
    fallback = torch.where(near * factor < 4, near, torch.ones_like(near))
    power = torch.where((factor / inverse - 1).abs() < 1e-5, 1 / inverse, fallback)
    has_scaler = (total > SCALER) & ((total / size - 1).abs() > 1e-3)
    return torch.where(has_scaler, power, torch.ones_like(power))


def _factor(seen: Tensor, product: Tensor) -> Tensor:
    """The c for which c·product is nearest to what was seen."""
    return (seen * product).sum() / product.square().sum().clamp_min(1e-30)


@dataclass(eq=False)
class Step:
    """One step: its samples, how many each of its batches had, soft targets, the optimiser's numbers; and ``tensors`` that may
    still be on their way from the device: ``measures`` (clip, error, norm of the body's gradient, of the head's), ``shares``,
    ``features`` and, where they are kept, the gradients of the body (``gradient``) and of the head's ``bias``."""

    positions: Tensor
    counts: list[int]
    targets: Tensor | None
    numbers: Numbers
    tensors: dict[str, Tensor]
    _ready: Any = None

    def leave(self) -> None:
        """Start the way from a GPU to the host; the loop does not wait for it."""
        if not any(tensor.is_cuda for tensor in self.tensors.values()):
            return
        for name, tensor in self.tensors.items():
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.tensors[name] = host.copy_(tensor, non_blocking=True)
        self._ready = torch.cuda.Event()
        self._ready.record()

    @property
    def arrived(self) -> bool:
        """Whether all of it is on the host."""
        return self._ready is None or bool(self._ready.query())

    def wait(self) -> None:
        """Until it is."""
        if self._ready is not None:
            self._ready.synchronize()


def clipping(measures: Tensor, stated: float | None = None) -> tuple[Tensor, float | None]:
    """From the measures (S, 4) of all steps what each was clipped by, exactly 1 where it is so but for rounding; and the norm
    that gradients were clipped to, where all clipped steps agree on one that no other step exceeds.

    It is the one that was ``stated``, if any, unless the steps contradict it: then a warning says so.
    """
    clips, most, largest = _clipping(measures)
    if stated is None:
        return clips, most
    if most is not None:
        if abs(most - stated) <= 1e-2 * stated:
            return clips, stated
        evidence = f"gradients clipped to a norm of {most:.4g}"
    elif not bool((clips == 1).all()):
        evidence = "factors that are not those of one norm"
    elif largest <= 1.01 * stated:
        return clips, stated
    else:
        evidence = f"no clipping, with norms up to {largest:.4g}"
    warnings.warn(f"max_norm={stated:g} was stated, and the recorded steps show {evidence}: these count", stacklevel=4)
    return clips, most


def _clipping(measures: Tensor) -> tuple[Tensor, float | None, float]:
    """As :func:`clipping`, from the steps alone; and the largest norm that a step was taken with, whatever it was before."""
    clips, errors, norms, head = measures.unbind(1)
    whole = (norms.square() + head.square()).sqrt() + 1e-6  # clip_grad_norm_ adds as much to the norm that it divides by
    steps = clips * whole  # known exactly; what of it is clipping is known but for the error, much in low precision
    largest = float(steps.max()) if len(steps) else 0.0
    plain = (clips - 1).abs() <= errors.clamp_min(1e-6)
    clips = torch.where(plain, torch.ones_like(clips), clips)
    if bool(plain.all()) or bool((clips > 1).any()):
        return clips, None, largest
    most = float(steps[~plain].median())
    same = float(steps[~plain].std(correction=0)) <= 1e-2 * most and not bool((steps[plain] > 1.01 * most).any())
    return clips, most if same else None, largest


def unexplained(clips: Tensor, max_norm: float | None) -> bool:
    """Whether gradients were multiplied with different factors (S,) by no rule that is known: without some samples others would
    have been."""
    return max_norm is None and len(clips) > 0 and bool(clips.max() - clips.min() > 1e-4 * clips.abs().max())


def tell_unexplained(clips: Tensor, max_norm: float | None) -> None:
    """Warn of such factors."""
    if unexplained(clips, max_norm):
        warnings.warn(
            "gradients were multiplied with a factor that changes from step to step, as by clipping, but not by one norm of all "
            "of them (clip_grad_norm_ with norm_type=2 and one max_norm): a replay keeps the recorded factors, an approximation",
            stacklevel=3,
        )
