"""The whole recorded path from a trace: at every step the tuned parameters, the gradient of the batch, and where the step led.

    body   g_t as it was recorded
    head   Σ_i r_i h_iᵀ,    r_i = ∂ of the step's loss by f_i = W_t h_i + b_t, h_i as recorded
    bias   as it was recorded, where it was, else Σ_i r_i
    step   w_{t+1} = optimiser( clip_t · g_t + penalty · (w_t − w_0) ) at the recorded rate

Every epoch begins at the parameters that were recorded there, so rounding (and features in half precision) adds up over one epoch
only. Not for paths without some of the samples: what approximates those is a method's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fastntk.base.errors import InputError, listing
from fastntk.training.optimizers import Span, StackOptimizer
from fastntk.training.trace import Trace
from fastntk.tuning import Subset


@dataclass(frozen=True, eq=False)
class PathStep:
    """One step: its ``number``, the positions of its ``samples`` (B,), the tuned parameters ``weights`` (d,) before it and
    ``after`` it, and the ``gradient`` (d,) of the batch's mean loss at ``weights``, without clipping and penalty.
    """

    number: int
    samples: Tensor
    weights: Tensor
    gradient: Tensor
    after: Tensor


class PathOptimizer:
    """The trace's optimiser on one vector of tuned parameters, ``values`` (d,), in the subset's order, from the anchor."""

    def __init__(self, trace: Trace, subset: Subset, anchor: Tensor) -> None:
        self._trace, facts = trace, trace.facts
        self._stack = anchor.detach().clone().unsqueeze(0)
        self.values = self._stack[0]
        self._anchor, self._penalty = anchor, facts.penalty
        self._rates, self._clips = trace.rates.tolist(), trace.clips.tolist()
        shapes = {name: tuple(parameter.shape) for name, parameter in subset.parameters.items()}
        spans = [Span(name, part.start, part.stop, shapes[name]) for name, part in subset.slices.items()]
        self._optimizer = StackOptimizer(facts.optimizer, facts.groups, self._stack, spans)

    def step(self, number: int, gradient: Tensor) -> None:
        """Step ``number`` of the path with this gradient (d,) of the step's loss; its rates, clipping factor and penalty."""
        total = gradient * self._clips[number] + self._penalty * (self.values - self._anchor)
        self._optimizer.step(total.unsqueeze(0), self._rates[number], self._trace.options_at(number))


def part_weights(trace: Trace, parts: Sequence[tuple[int, int, float]], kept: Tensor) -> Tensor:
    """What each visit of a step counts for in its loss, (L, B).

    ``kept`` (L, B): 1 for those that take part. The others count for nothing, and their batch is the mean of the rest; of a sum
    the rest counts as before.
    """
    if trace.facts.average == "sum":
        return torch.cat([share * kept[:, a:b] / (b - a) for a, b, share in parts], dim=1)
    if len(parts) == 1 or trace.facts.average == "step":
        total = sum(share for _, _, share in parts)
        return total * kept / kept.sum(1, keepdim=True).clamp_min(1)
    return torch.cat([share * kept[:, a:b] / kept[:, a:b].sum(1, keepdim=True).clamp_min(1) for a, b, share in parts], dim=1)


def recorded_path(trace: Trace, subset: Subset, anchor: Tensor) -> Iterator[PathStep]:
    """Step by step from the anchor (d,) to the trained parameters. ``subset``: the run's, in whose order vectors are."""
    facts = trace.facts
    if trace.gradients is None or trace.weights is None or facts.left:
        raise InputError(
            f"This trace has no gradients of {listing(facts.left)}, so their path is not known. "
            "Use method='path-replay' with depth='head', which needs the head's path alone."
        )
    slices = subset.slices
    positions = torch.arange(subset.numel)
    body = torch.cat([positions[:0], *(positions[slices[name]] for name in facts.body)])
    fixed_bias = None if facts.head_bias is not None else _fixed_bias(subset, facts.head_weight)
    path = PathOptimizer(trace, subset, anchor)
    bounds, epochs = trace.bounds.tolist(), trace.epoch_steps.tolist()
    for epoch in range(trace.epochs):
        path.values.copy_(trace.weights[epoch])
        for number in range(epochs[epoch], epochs[epoch + 1]):
            samples = trace.visited[bounds[number] : bounds[number + 1]]
            features = trace.features.read(bounds[number], bounds[number + 1]).to(anchor)
            weights = path.values.clone()
            head = weights[slices[facts.head_weight]].view(facts.classes, facts.features)
            bias = fixed_bias if facts.head_bias is None else weights[slices[facts.head_bias]]
            parts = trace.parts_of(number)
            weights_of = part_weights(trace, parts, features.new_ones(1, len(samples)))
            outputs = F.linear(features, head, bias).unsqueeze(0)
            targets = trace.targets_of(samples, bounds[number], bounds[number + 1]).to(outputs.device)
            residual = trace.loss.mean_residual(outputs, targets, weights_of, parts)[0]
            gradient = torch.zeros_like(weights)
            gradient[body] = trace.gradients[number].to(weights)
            gradient[slices[facts.head_weight]] = (residual.T @ features).reshape(-1)
            if facts.head_bias is not None:
                gradient[slices[facts.head_bias]] = residual.sum(0) if trace.bias is None else trace.bias[number].to(weights)
            path.step(number, gradient)
            yield PathStep(number, samples, weights, gradient, path.values.clone())


def _fixed_bias(subset: Subset, head_weight: str) -> Tensor | None:
    """The head's bias where it is there and not tuned."""
    prefix, _, _ = head_weight.rpartition("weight")
    bias = dict(subset.model.named_parameters()).get(f"{prefix}bias")
    return None if bias is None else bias.detach()
