"""A fine-tuning in a loop of one's own, as users write them, with its path recorded by a few lines around the step.

    images     random crops (zeros around the edge) and horizontal flips, drawn anew for every sample and epoch
    loss       cross-entropy with smoothed labels
    step       AdamW on the gradient clipped to a norm, at a rate that rises linearly, then falls to 0 along a cosine

The draws follow from (seed, epoch) and the sample's position, the batches from (seed, epoch): without some of the samples, the
others are seen in the same batches, cropped and flipped the same way. Retrain is this loop with ``keep``; it clips by the norms
of its own gradients. The network stays in eval mode, so BatchNorm's statistics are frozen, as in ``fastntk.fit``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import DivergedError
from fastntk.base.progress import track
from fastntk.data import Samples
from fastntk.training.network import eval_mode, fast_layout
from fastntk.training.optimizers import Group
from fastntk.training.trace import TraceFacts, TraceWriter
from fastntk.tuning import Subset, find_head

AUGMENT, ORDER = 1, 2
"""Third number of the seeds, so that batches and augmentations are drawn apart."""


@dataclass(frozen=True)
class LoopOptions:
    """What the loop does, the seed aside. ``pad``: how far a crop may be off, in pixels; ``warm_up``: share of all steps on which
    the rate rises; ``clip``: the largest norm of a step's gradient, None for any."""

    epochs: int = 20
    batch_size: int = 64
    lr: float = 2e-3
    weight_decay: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    warm_up: float = 0.1
    smoothing: float = 0.1
    pad: int = 4
    flip: bool = True
    clip: float | None = 1.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = round(self.warm_up * steps)
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


@dataclass(frozen=True, eq=False)
class Draws:
    """Of one epoch, for all n samples: shifts of the crops (n, 2) from 0 to 2·pad, and who is flipped (n,)."""

    shifts: Tensor
    flips: Tensor
    pad: int

    @classmethod
    def of(cls, options: LoopOptions, count: int, *, seed: int, epoch: int) -> Draws:
        """Those of an epoch; a sample's draw does not depend on who else takes part."""
        generator = np.random.default_rng([seed, epoch, AUGMENT])
        shifts = generator.integers(0, 2 * options.pad + 1, (count, 2))
        flips = generator.integers(0, 2, count) * int(options.flip)
        return cls(torch.from_numpy(shifts), torch.from_numpy(flips).bool(), options.pad)

    def apply(self, images: Tensor, samples: Tensor) -> Tensor:
        """The images (b, c, h, w) of these samples (b,), cropped and flipped."""
        height, width = images.shape[2:]
        padded = F.pad(images, (self.pad,) * 4)
        rows = self.shifts[samples, :1] + torch.arange(height)
        columns = self.shifts[samples, 1:] + torch.arange(width)
        columns = torch.where(self.flips[samples].unsqueeze(1), columns.flip(1), columns)
        place = torch.arange(len(samples))[:, None, None]
        return padded[place, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class LoopRecorder:
    """Writes the loop's path: the head's inputs by a hook, the body's gradients before they are clipped."""

    def __init__(self, model: nn.Module, subset: Subset, writer: TraceWriter) -> None:
        name, self._head = find_head(model)
        prefix = f"{name}." if name else ""
        self.head = [each for each in (f"{prefix}weight", f"{prefix}bias") if each in subset.names]
        self.body = tuple(each for each in subset.names if each not in self.head)
        self.writer, self._subset, self._anchor = writer, subset, subset.get()
        self._features = torch.empty(0)
        self._hook = self._head.register_forward_pre_hook(self._see)

    def _see(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._features = args[0].detach()

    def epoch(self) -> None:
        """An epoch begins, or the last one is over."""
        self.writer.epoch(self._subset.get())

    def gradient(self) -> Tensor:
        """The body's gradient (b,), as it is now."""
        parts = [parameter.grad for name, parameter in self._subset.parameters.items() if name in self.body]
        return torch.cat([self._anchor[:0], *(part.detach().reshape(-1) for part in parts if part is not None)])

    def step(self, batch: Tensor, gradient: Tensor, *, rate: float, clip: float) -> None:
        """A step is about to be taken."""
        self.writer.step(batch, self._features, gradient, rate=rate, clip=clip)

    def close(self) -> None:
        """Let go of the head."""
        self._hook.remove()

    def facts(self, options: LoopOptions) -> TraceFacts:
        """What is known once the loop is over."""
        return TraceFacts(
            classes=self._head.weight.shape[0],
            features=self._head.weight.shape[1],
            head_weight=self.head[0],
            head_bias=self.head[1] if len(self.head) > 1 else None,
            body=self.body,
            left=(),
            optimizer="AdamW",
            groups=(Group(self._subset.names, {"weight_decay": options.weight_decay, "betas": list(options.betas)}),),
            penalty=0.0,
            loss="cross-entropy",
            smoothing=options.smoothing,
            anchor=tensor_digest(self._anchor),
            trained=tensor_digest(self._subset.get()),
        )


def trace_writer(model: nn.Module, subset: Subset, *, folder: Path | None = None) -> TraceWriter:
    """For these tuned parameters, features and gradients in their own precision; in memory or into a folder."""
    name, head = find_head(model)
    own = sum(parameter.numel() for each, parameter in subset.parameters.items() if each.rpartition(".")[0] == name)
    return TraceWriter(
        features=head.weight.shape[1],
        body=subset.numel - own,
        width=subset.numel,
        dtype=subset.get().dtype,
        half=False,
        gradients=True,
        folder=folder,
    )


def own_fit(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    options: LoopOptions,
    *,
    seed: int,
    keep: Tensor | None = None,
    recorder: LoopRecorder | None = None,
    epochs: int | None = None,
) -> None:
    """Fine-tune the subset from its present values, in place. ``keep`` (n,): who takes part; ``epochs``: only so many first ones
    of the whole schedule."""
    parameters = list(subset.parameters.values())
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, weight_decay=options.weight_decay, betas=options.betas)
    images, labels = fast_layout(model, samples.inputs), samples.labels
    steps, step = options.epochs * math.ceil(len(samples) / options.batch_size), 0
    with eval_mode(model):
        for epoch in track(range(options.epochs if epochs is None else epochs), "own loop"):
            if recorder is not None:
                recorder.epoch()
            draws = Draws.of(options, len(samples), seed=seed, epoch=epoch)
            for batch in _batches(len(samples), options.batch_size, keep, seed=seed, epoch=epoch):
                rate, step = options.rate(step, steps), step + 1
                if len(batch) == 0:
                    continue
                optimizer.zero_grad()
                outputs = model(draws.apply(images[batch], batch))
                loss = F.cross_entropy(outputs, labels[batch], label_smoothing=options.smoothing)
                if not math.isfinite(loss.item()):
                    raise DivergedError(f"The loss became {loss.item()} in epoch {epoch + 1}: lower the rate ({options.lr}).")
                loss.backward()
                gradient = None if recorder is None else recorder.gradient()
                clip = _clipped(parameters, options.clip)
                if recorder is not None and gradient is not None:
                    recorder.step(batch, gradient, rate=rate, clip=clip)
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step()
    if recorder is not None:
        recorder.epoch()
    optimizer.zero_grad()


def _batches(count: int, size: int, keep: Tensor | None, *, seed: int, epoch: int) -> Iterator[Tensor]:
    """The batches of an epoch; who is not kept drops out of its batch."""
    order = torch.from_numpy(np.random.default_rng([seed, epoch, ORDER]).permutation(count))
    for batch in order.split(size):
        yield batch if keep is None else batch[keep[batch]]


def _clipped(parameters: list[nn.Parameter], most: float | None) -> float:
    """Clip the gradients to this norm; returns the factor that they were multiplied with."""
    if most is None:
        return 1.0
    norm = nn.utils.clip_grad_norm_(parameters, most)
    return float((most / (norm + 1e-6)).clamp(max=1.0))
