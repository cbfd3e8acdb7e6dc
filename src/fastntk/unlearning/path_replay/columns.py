"""Where the parts of a trace are in the tuned vector: the head's weight and bias, the body, and a depth's share of the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastntk.training.optimizers import Span
from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.unlearning.path_replay.replay import Lanes


@dataclass(frozen=True, eq=False)
class Columns:
    """Positions in the tuned vector (d,) of the head's weight (C·H,), its bias (C,) and the body's moving part (m,); ``inside``:
    positions of that part in the trace's gradients. ``spans``: where each parameter lies in head, bias and body side by side."""

    head: Tensor
    bias: Tensor | None
    body: Tensor
    inside: Tensor
    spans: tuple[Span, ...]

    def anchor(self, run: Run, trace: Trace) -> dict[str, Tensor]:
        """The parts of the run's anchor that a replay starts from."""
        facts, anchor = trace.facts, run.anchor.cpu()
        parts = {"head": anchor[self.head].view(facts.classes, facts.features), "body": anchor[self.body]}
        if self.bias is not None:
            return parts | {"bias": anchor[self.bias]}
        bias = dict(run.model.named_parameters()).get(f"{facts.head_weight.removesuffix('weight')}bias")
        return parts if bias is None else parts | {"constant": bias.detach().cpu().clone()}

    def moved(self, base: Tensor, lanes: Lanes, lane: int) -> Tensor:
        """``base`` (d,) with what a lane has beyond the recorded one."""
        vector = base.clone()
        vector[self.head] += (lanes.head[lane] - lanes.head[0]).reshape(-1).to(base)
        if self.bias is not None and lanes.bias is not None:
            vector[self.bias] += (lanes.bias[lane] - lanes.bias[0]).to(base)
        if lanes.body.shape[1]:
            vector[self.body] += (lanes.body[lane] - lanes.body[0]).to(base)
        return vector


def columns_of(run: Run, trace: Trace, moving: Sequence[str] = ()) -> Columns:
    """For a depth whose parameters are ``moving``, all of them with gradients in the trace."""
    facts, slices, shapes = trace.facts, run.subset.slices, run.subset.parameters
    spans: list[Span] = []
    for name in (facts.head_weight, facts.head_bias, *(name for name in facts.body if name in moving)):
        if name is not None:
            start = spans[-1].stop if spans else 0
            spans.append(Span(name, start, start + shapes[name].numel(), tuple(shapes[name].shape)))

    def span(name: str) -> Tensor:
        return torch.arange(slices[name].start, slices[name].stop)

    empty = torch.empty(0, dtype=torch.long)
    inside, start = [empty], 0
    for name in facts.body:
        size = len(span(name))
        if name in moving:
            inside.append(torch.arange(start, start + size))
        start += size
    return Columns(
        head=span(facts.head_weight),
        bias=None if facts.head_bias is None else span(facts.head_bias),
        body=torch.cat([empty, *(span(name) for name in facts.body if name in moving)]),
        inside=torch.cat(inside),
        spans=tuple(spans),
    )
