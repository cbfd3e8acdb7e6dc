"""The recorded path and new ones beside it, step by step.

With B_t the batch of step t, R_t its retained part, x the tuned parameters of the body, (W, b) the head, primes for a new path:

    features   h'_i = h_i(t) + M_i(t) (x'_t − x_t)
    logits     f'_i = W'_t h'_i + b'_t
    gradient   g'_t = ∇ L(R_t; w'_t) + [ g_t − ∇ L(B_t; w_t) ]       both ∇ of this model; the bracket is what it misses on the
    path step       the optimiser's own, with the recorded rate and clipping factor

All paths are lanes of one stack: lane 0 is the recorded one (all samples, x = x_t), the others leave samples out. A lane that
leaves nothing out ends where lane 0 does, to the last bit, so what a request changes is the difference of its lane and lane 0. M
is :mod:`fastntk.unlearning.path_replay.motion`; without one (depth ``head``) the body stays on its recorded path and h' = h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fastntk.base.errors import DivergedError, InputError
from fastntk.base.progress import track
from fastntk.training.losses import loss_residual
from fastntk.training.optimizers import rebuild
from fastntk.training.trace import Trace


class Motion(Protocol):
    """How the features of a batch move when the body leaves its recorded path."""

    columns: Tensor
    """Positions of the parameters that may move in the trace's gradient (b,)."""

    def at(self, step: int, samples: Tensor) -> Local:
        """The motion of these samples at one step."""
        ...


class Local(Protocol):
    """M at one step for the samples of its batch."""

    def forward(self, moved: Tensor) -> Tensor:
        """Changes of the features (L, B, H) for the body's departures (L, m); lane 0 is the recorded path."""
        ...

    def backward(self, features: Tensor) -> Tensor:
        """From the loss's gradients by the features (L, B, H) to those by the body (L, m)."""
        ...


@dataclass(eq=False)
class Lanes:
    """The tuned parameters of all lanes: ``head`` (L, C, H), ``bias`` (L, C) and ``body`` (L, m); views of ``values`` (L, p)."""

    values: Tensor
    head: Tensor
    bias: Tensor | None
    body: Tensor


@dataclass(eq=False)
class Replayed:
    """Where the lanes ended, less the recorded one: ``head`` (G, C, H), ``bias`` (G, C), ``body`` (G, m). ``points``: the lanes'
    parameters (L, p) before the steps asked for."""

    lanes: Lanes
    points: dict[int, Lanes] = field(default_factory=dict)

    def difference(self, part: str) -> Tensor | None:
        """Lanes 1 … less lane 0, of ``head``, ``bias`` or ``body``."""
        values: Tensor | None = getattr(self.lanes, part)
        return None if values is None else values[1:] - values[:1]


Observer = Callable[[int, Tensor, Tensor, Tensor | None, Lanes], None]
"""(step, samples (B,), features (L, B, H), body gradients (L, m) or None, lanes before the step)."""


Exact = Callable[[int, Tensor, Lanes], "tuple[Tensor, Tensor] | None"]
"""(step, retained samples (k,), lanes before the step) → the network's own gradient (p,) at lane 1 and its features (k, H); None
where the step is not taken by the network."""


def replay(
    trace: Trace,
    anchor: dict[str, Tensor],
    keep: Tensor,
    *,
    motion: Motion | None = None,
    points: Sequence[int] = (),
    observe: Observer | None = None,
    order: Callable[[int, int], Tensor] | None = None,
    exact: Exact | None = None,
    description: str = "replay",
) -> Replayed:
    """Walk the path with one lane for each row of ``keep`` (G, n), True for samples that stay.

    ``anchor``: ``head`` (C, H), ``bias`` (C,) where it is tuned, ``constant`` (C,) where it is not, ``body`` (m,) of the motion's
    columns. ``points``: steps before which the lanes are copied. ``order(epoch, visits)``: another order of the visits of an
    epoch; batches are then others, and the body has no recorded gradient to lean on. ``exact``: steps that the one lane takes by
    the network's own gradient. With several lanes every step has to retain something in each: see :func:`has_gaps`.
    """
    facts = trace.facts
    if len(keep) > 1 and bool(has_gaps(trace, keep).any()):
        raise InputError("several lanes need a retained sample in every batch: replay the others alone")
    recorded, lanes = _start(trace, anchor, 1, motion), _start(trace, anchor, len(keep), motion)
    origin = recorded.values.clone()
    optimizers = [rebuild(facts.optimizer, facts.options, [each.values]) for each in (recorded, lanes)]
    mask = torch.cat([torch.ones(1, keep.shape[1], dtype=torch.bool), keep]).to(origin.dtype)
    labels = trace.listed.labels
    both = _joined(recorded, lanes)
    copies: dict[int, Lanes] = {}
    epochs = trace.epoch_steps.tolist()
    bounds = trace.bounds.tolist()
    rates, clips = trace.rates.tolist(), trace.clips.tolist()
    constant = anchor.get("constant")
    grads = torch.zeros_like(both.values)
    shaped = _views(grads, facts.classes, facts.features, both.bias is not None)
    for epoch in track(range(trace.epochs), description):
        first, last = epochs[epoch], epochs[epoch + 1]
        other: tuple[Tensor, Tensor] | None = None
        if order is not None:
            turn = order(epoch, bounds[last] - bounds[first])
            other = trace.visited[bounds[first] : bounds[last]][turn], trace.features.read(bounds[first], bounds[last])[turn]
        for step in range(first, last):
            if step in points:
                copies[step] = _copied(both)
            start, stop = bounds[step], bounds[step + 1]
            if other is None:
                samples, h = trace.visited[start:stop], trace.features.read(start, stop)
            else:
                samples, h = (part[start - bounds[first] : stop - bounds[first]] for part in other)
            weight = mask[:, samples]
            count = weight.sum(1, keepdim=True)
            skipped = bool((count[1:] == 0).any())
            weight = weight / count.clamp_min(1)
            h = h.to(origin.dtype)
            local = None if motion is None else motion.at(step, samples)
            features = h.expand(len(both.values), *h.shape)
            if local is not None:
                features = features + local.forward(both.body - both.body[:1])
            logits = torch.baddbmm(_offset(both, constant), features, both.head.transpose(1, 2))
            residual = loss_residual(logits, labels[samples], facts.loss, smoothing=facts.smoothing) * weight.unsqueeze(2)
            torch.bmm(residual.transpose(1, 2), features, out=shaped.head)
            if shaped.bias is not None:
                torch.sum(residual, 1, out=shaped.bias)
            body = None
            if local is not None:
                body = local.backward(residual @ both.head)
                if order is None:
                    assert trace.gradients is not None
                    assert motion is not None
                    body = body + (trace.gradients[step][motion.columns] - body[:1])
                shaped.body.copy_(body)
            if exact is not None and not skipped:
                kept = keep[0][samples]
                true = exact(step, samples[kept], both)
                if true is not None:
                    grads[1], seen = true
                    features = features.clone()
                    features[1][kept] = seen
                    body = None if body is None else torch.stack([body[0], shaped.body[1]])
            if observe is not None:
                observe(step, samples, features, body, both)
            total = grads * clips[step] if clips[step] != 1 else grads
            if facts.penalty:
                total = total + facts.penalty * (both.values - origin)
            for optimizer, values, part in zip(optimizers, (recorded.values, lanes.values), (total[:1], total[1:])):
                if values is lanes.values and skipped:
                    continue
                values.grad = part
                optimizer.param_groups[0]["lr"] = rates[step]
                optimizer.step()
            both = _joined(recorded, lanes, into=both)
    if trace.steps in points:
        copies[trace.steps] = _copied(both)
    if not bool(torch.isfinite(both.values).all()):
        raise DivergedError(
            "The replay along the recorded path diverged. A shallower depth moves fewer parameters: try depth='head'."
        )
    return Replayed(both, copies)


def has_gaps(trace: Trace, keep: Tensor) -> Tensor:
    """Which lanes (G,) leave some batch with no sample at all."""
    starts = trace.bounds[:-1]
    gaps = torch.zeros(len(keep), dtype=torch.bool)
    for lane, row in enumerate(keep):
        counts = torch.cat([torch.zeros(1, dtype=torch.long), row[trace.visited].long().cumsum(0)])
        gaps[lane] = bool((counts[trace.bounds[1:]] == counts[starts]).any())
    return gaps


def _offset(lanes: Lanes, constant: Tensor | None) -> Tensor:
    if lanes.bias is not None:
        return lanes.bias.unsqueeze(1)
    zero = torch.zeros(lanes.head.shape[1]).to(lanes.values) if constant is None else constant
    return zero.expand(len(lanes.values), 1, -1)


def _start(trace: Trace, anchor: dict[str, Tensor], count: int, motion: Motion | None) -> Lanes:
    parts = [anchor["head"].reshape(-1)]
    if "bias" in anchor:
        parts.append(anchor["bias"])
    if motion is not None:
        parts.append(anchor["body"])
    values = torch.cat(parts).expand(count, -1).clone()
    return _views(values, trace.facts.classes, trace.facts.features, "bias" in anchor)


def _views(values: Tensor, classes: int, features: int, bias: bool) -> Lanes:
    size = classes * features
    rest = size + (classes if bias else 0)
    head = values[:, :size].view(-1, classes, features)
    return Lanes(values, head, values[:, size:rest] if bias else None, values[:, rest:])


def _joined(recorded: Lanes, lanes: Lanes, *, into: Lanes | None = None) -> Lanes:
    if into is not None:
        torch.cat([recorded.values, lanes.values], out=into.values)
        return into
    classes, features = recorded.head.shape[1:]
    return _views(torch.cat([recorded.values, lanes.values]), classes, features, recorded.bias is not None)


def _copied(lanes: Lanes) -> Lanes:
    classes, features = lanes.head.shape[1:]
    return _views(lanes.values.clone(), classes, features, lanes.bias is not None)
