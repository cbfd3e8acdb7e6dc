"""The recorded path and new ones beside it, step by step.

With B_t the batch of step t, R_t its retained part, x the tuned parameters of the body, (W, b) the head, primes for a new path:

    features   h'_i = h_i(t) + M_i(t) (x'_t − x_t)
    logits     f'_i = W'_t h'_i + b'_t
    gradient   g'_t = g_t + [ ∇ L(R_t; w'_t) − ∇ L(B_t; w_t) ]       both ∇ of this model, of body and b; of W, whose gradient is
                                                                   not recorded, ∇ L(R_t; w'_t)
    path step       the optimiser's own, with the recorded rates; clipped to the recorded norm where that is known, else by the
                    recorded factor

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
from fastntk.training.optimizers import Span, StackOptimizer
from fastntk.training.trace import Trace
from fastntk.training.trace_path import part_weights

FEW = 8
"""Up to so many lanes each has products of its own: those of one call for all round differently from lane to lane."""


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
    """Where the lanes ended. ``points``: the lanes before the steps asked for."""

    lanes: Lanes
    points: dict[int, Lanes] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Seen:
    """One step of a replay: its number, samples (B,) and targets, features (L, B, H), the gradients of the body (L, m) and of the
    head's ``bias`` (L, C) or None, the lanes before the step, and what their gradients are multiplied with (L,)."""

    step: int
    samples: Tensor
    targets: Tensor
    features: Tensor
    body: Tensor | None
    lanes: Lanes
    clips: Tensor
    bias: Tensor | None = None


Observer = Callable[[Seen], None]


Exact = Callable[[int, Tensor, Tensor, "Sequence[tuple[slice, float]]", Lanes], "tuple[Tensor, Tensor] | None"]
"""(step, retained samples (k,), their targets, their batches and what each counts for, lanes before the step) → the network's own
gradient (p,) at lane 1 and its features (k, H); None where the step is not taken by the network."""


def replay(
    trace: Trace,
    anchor: dict[str, Tensor],
    keep: Tensor,
    *,
    spans: Sequence[Span],
    motion: Motion | None = None,
    points: Sequence[int] = (),
    observe: Observer | None = None,
    order: Callable[[int, int], Tensor] | None = None,
    exact: Exact | None = None,
    description: str = "replay",
) -> Replayed:
    """Walk the path with one lane for each row of ``keep`` (G, n), True for samples that stay.

    ``anchor``: ``head`` (C, H), ``bias`` (C,) where it is tuned, ``constant`` (C,) where it is not, ``body`` (m,) of the motion's
    columns. ``spans``: where parameters lie in head, bias and body side by side. ``points``: steps before which the lanes are
    copied. ``order(epoch, visits)``: another order of the visits of an epoch; batches are then others, and the body has no
    recorded gradient to lean on. ``exact``: steps that the one lane takes by the network's own gradient. With several lanes every
    step has to retain something in each.
    """
    stack = _Stack(trace, anchor, keep, motion, spans)
    copies: dict[int, Lanes] = {}
    epochs, bounds = trace.epoch_steps.tolist(), trace.bounds.tolist()
    for epoch in track(range(trace.epochs), description):
        first, last = epochs[epoch], epochs[epoch + 1]
        other: tuple[Tensor, ...] | None = None
        if order is not None:
            visits = bounds[first], bounds[last]
            turn, everyone = order(epoch, visits[1] - visits[0]), trace.visited[slice(*visits)]
            other = everyone[turn], trace.features.read(*visits)[turn], trace.targets_of(everyone, *visits)[turn]
        for step in range(first, last):
            if step in points:
                copies[step] = _copied(stack.lanes)
            start, stop = bounds[step], bounds[step + 1]
            if other is None:
                samples, h = trace.visited[start:stop], trace.features.read(start, stop)
                targets = trace.targets_of(samples, start, stop)
            else:
                samples, h, targets = (part[start - bounds[first] : stop - bounds[first]] for part in other)
            features, body = stack.look(step, samples, h, targets, recorded=order is None)
            if exact is not None and not stack.empty:
                features, body = stack.look_exactly(step, samples, targets, features, body, exact)
            clips = stack.clips(step, body)
            if observe is not None:
                observe(Seen(step, samples, targets, features, body, stack.lanes, clips, stack.bias))
            stack.advance(step, clips)
    if trace.steps in points:
        copies[trace.steps] = _copied(stack.lanes)
    if not bool(torch.isfinite(stack.lanes.values).all()):
        raise DivergedError(
            "The replay along the recorded path diverged. A shallower depth moves fewer parameters: try depth='head'."
        )
    return Replayed(stack.lanes, copies)


class _Stack:
    """All lanes, their gradients at the step at hand, their optimisers. ``empty``: whether that step leaves the lanes nothing."""

    def __init__(
        self, trace: Trace, anchor: dict[str, Tensor], keep: Tensor, motion: Motion | None, spans: Sequence[Span]
    ) -> None:
        self._trace, self._keep, self._motion = trace, keep, motion
        facts = trace.facts
        self._parts = _start(trace, anchor, 1, motion), _start(trace, anchor, len(keep), motion)
        self._optimizers = [StackOptimizer(facts.optimizer, facts.groups, part.values, spans) for part in self._parts]
        self.lanes = _joined(*self._parts)
        self._origin = self._parts[0].values.clone()
        self._mask = torch.cat([torch.ones(1, keep.shape[1], dtype=torch.bool), keep]).to(self._origin.dtype)
        self._grads = torch.zeros_like(self.lanes.values)
        self._shaped = _views(self._grads, facts.classes, facts.features, self.lanes.bias is not None)
        self._constant = anchor.get("constant")
        self._rates, self._clips = trace.rates.tolist(), trace.clips.tolist()
        self.empty = False

    def look(self, step: int, samples: Tensor, h: Tensor, targets: Tensor, *, recorded: bool) -> tuple[Tensor, Tensor | None]:
        """The model's gradients at a batch; returns features (L, B, H) and the body's gradients (L, m).

        ``recorded``: the batch is that of the step, so its gradients on the recorded path are known.
        """
        lanes, gradients, loss, parts = self.lanes, self._shaped, self._trace.loss, self._trace.parts_of(step)
        mask = self._mask[:, samples]
        self.empty = bool((mask[1:].sum(1) == 0).any())
        if self.empty and len(mask) > 2:
            raise InputError("several lanes need a retained sample in every step: replay the others alone")
        weight = part_weights(self._trace, parts, mask)
        h = h.to(self._origin.dtype)
        features = h.expand(len(lanes.values), *h.shape)
        body: Tensor | None = None
        if self._motion is None and len(lanes.values) > FEW:
            # The features are the same in all lanes: one product for all heads.
            classes, width = lanes.head.shape[1:]
            outputs = (h @ lanes.head.reshape(-1, width).T).view(len(h), -1, classes).transpose(0, 1)
            residual = loss.mean_residual(outputs + self._offset, targets, weight, parts)
            gradients.head.copy_((residual.transpose(0, 1).reshape(len(h), -1).T @ h).view_as(lanes.head))
        else:
            local = None if self._motion is None else self._motion.at(step, samples)
            if local is not None:
                features = features + local.forward(lanes.body - lanes.body[:1])
            outputs = _products(features, lanes.head.transpose(1, 2)) + self._offset
            residual = loss.mean_residual(outputs, targets, weight, parts)
            gradients.head.copy_(_products(residual.transpose(1, 2), features))
            if local is not None:
                body_gradient = self._recorded_body(step) if recorded else None
                body = _beside(body_gradient, _products(residual, lanes.head), local.backward)
                gradients.body.copy_(body)
        if gradients.bias is not None:
            bias = self._trace.bias if recorded else None
            gradients.bias.copy_(_beside(None if bias is None else bias[step], residual, lambda each: each.sum(1)))
        return features, body

    def _recorded_body(self, step: int) -> Tensor:
        """The recorded gradient of what may move, (m,)."""
        assert self._trace.gradients is not None
        assert self._motion is not None
        return self._trace.gradients[step][self._motion.columns]

    @property
    def bias(self) -> Tensor | None:
        """The gradients of the head's bias at the step at hand, (L, C)."""
        return self._shaped.bias

    def look_exactly(
        self, step: int, samples: Tensor, targets: Tensor, features: Tensor, body: Tensor | None, exact: Exact
    ) -> tuple[Tensor, Tensor | None]:
        """The network's own gradient at lane 1 instead of the model's, where it has one for this step."""
        keep = self._keep[0][samples]
        weights = part_weights(self._trace, self._trace.parts_of(step), self._mask[1:2, samples])[0, keep]
        true = exact(step, samples[keep], targets[keep], self._trace.split_parts(step, keep, weights), self.lanes)
        if true is None:
            return features, body
        self._grads[1], true_features = true
        features = features.clone()
        features[1][keep] = true_features
        return features, None if body is None else torch.stack([body[0], self._shaped.body[1]])

    def clips(self, step: int, body: Tensor | None) -> Tensor:
        """What each lane's gradient is multiplied with before the step, (L,): as recorded, times what its norm says beyond lane
        0's. The body that stays on its path counts with its recorded norm."""
        trace, recorded = self._trace, self._clips[step]
        clips = torch.full((len(self.lanes.values),), recorded, dtype=self._origin.dtype)
        most = trace.facts.max_norm
        if most is None or trace.norms is None:
            return clips
        squares = self._grads.square().sum(1)  # of the head, and of the body where it moves
        rest = float(trace.norms[step]) ** 2
        if body is not None:
            rest -= float(self._recorded_body(step).square().sum())
        factors = (most / ((squares + max(rest, 0.0)).sqrt() + 1e-6)).clamp(max=1.0)
        return clips * factors / factors[0]

    def advance(self, step: int, clips: Tensor) -> None:
        """One step of the optimisers; lanes that have nothing in the batch stay where they are, as a training would."""
        facts, lanes = self._trace.facts, self.lanes
        total = self._grads * clips.unsqueeze(1) if bool((clips != 1).any()) else self._grads
        if facts.penalty:
            total = total + facts.penalty * (lanes.values - self._origin)
        varying = self._trace.options_at(step)
        for optimizer, part, gradient in zip(self._optimizers, self._parts, (total[:1], total[1:])):
            if part is self._parts[1] and self.empty:
                continue
            optimizer.step(gradient, self._rates[step], varying)
        torch.cat([part.values for part in self._parts], out=lanes.values)

    @property
    def _offset(self) -> Tensor:
        lanes = self.lanes
        if lanes.bias is not None:
            return lanes.bias.unsqueeze(1)
        zero = torch.zeros(lanes.head.shape[1]).to(lanes.values) if self._constant is None else self._constant
        return zero.expand(len(lanes.values), 1, -1)


def _products(first: Tensor, second: Tensor) -> Tensor:
    """(L, a, k) times (L, k, b), lane by lane where they are few."""
    if len(first) > FEW:
        return torch.bmm(first, second)
    return torch.stack([a.contiguous() @ b.contiguous() for a, b in zip(first, second)])


def _beside(recorded: Tensor | None, seeds: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradients (L, …) of all lanes by a linear map of their ``seeds`` (L, …).

    Where lane 0's gradient is ``recorded``, the others add to it what they have beyond lane 0: seeds that do not differ then make
    gradients that do not, to the last bit.
    """
    if recorded is None:
        return gradient(seeds)
    first = recorded.to(seeds).unsqueeze(0)
    return torch.cat([first, first + gradient(seeds[1:] - seeds[:1])])


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


def _joined(recorded: Lanes, lanes: Lanes) -> Lanes:
    classes, features = recorded.head.shape[1:]
    return _views(torch.cat([recorded.values, lanes.values]), classes, features, recorded.bias is not None)


def _copied(lanes: Lanes) -> Lanes:
    classes, features = lanes.head.shape[1:]
    return _views(lanes.values.clone(), classes, features, lanes.bias is not None)
