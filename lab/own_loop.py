"""A fine-tuning in a loop of one's own, as users write them, recorded by ``fastntk.record``.

    images     random crops (zeros around the edge) and horizontal flips, drawn anew for every sample and epoch
    head       dropout of its inputs, drawn anew for every sample and epoch
    loss       cross-entropy with smoothed labels
    step       AdamW on the gradient clipped to a norm, at a rate that rises linearly, then falls to 0 along a cosine

The draws follow from (seed, epoch) and the sample's position, the batches from (seed, epoch): without some of the samples, the
others are seen in the same batches, cropped and flipped the same way. Retrain is this loop with ``keep``; it clips by the norms
of its own gradients. The network stays in eval mode, so BatchNorm's statistics are frozen, as in ``fastntk.fit``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastntk.base.errors import DivergedError
from fastntk.base.progress import track
from fastntk.data import Samples
from fastntk.training.network import eval_mode, fast_layout
from fastntk.training.recorder import record
from fastntk.training.run import Run
from fastntk.tuning import Subset, find_head

AUGMENT, ORDER, DROPPED = 1, 2, 3
"""Third number of the seeds, so that batches, augmentations and dropout are drawn apart."""


@dataclass(frozen=True)
class LoopOptions:
    """What the loop does, the seed aside. ``pad``: how far a crop may be off, in pixels; ``warm_up``: share of all steps on which
    the rate rises; ``clip``: the largest norm of a step's gradient, None for any; ``dropout``: of the head's inputs."""

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
    dropout: float = 0.0

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


def own_fit(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    options: LoopOptions,
    *,
    seed: int,
    keep: Tensor | None = None,
    trace: bool | Path | None = None,
    epochs: int | None = None,
) -> Run | None:
    """Fine-tune the subset from its present values, in place; the run where it is recorded (``trace``: True, or a new folder).

    ``keep`` (n,): who takes part; ``epochs``: only so many first ones of the whole schedule.
    """
    parameters = list(subset.parameters.values())
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, weight_decay=options.weight_decay, betas=options.betas)
    images, labels = fast_layout(model, samples.inputs), samples.labels
    steps, step = options.epochs * math.ceil(len(samples) / options.batch_size), 0
    loss = nn.CrossEntropyLoss(label_smoothing=options.smoothing)
    with eval_mode(model), contextlib.ExitStack() as stack:
        recorder = None
        masks = stack.enter_context(_dropped(model, options.dropout))
        if trace is not None:
            recorder = stack.enter_context(record(model, subset, optimizer, loss=loss, trace=trace, steps=steps))
        for epoch in track(range(options.epochs if epochs is None else epochs), "own loop"):
            draws = Draws.of(options, len(samples), seed=seed, epoch=epoch)
            for batch in batches_of(len(samples), options.batch_size, keep, seed=seed, epoch=epoch):
                rate, step = options.rate(step, steps), step + 1
                if len(batch) == 0:
                    continue
                optimizer.param_groups[0]["lr"] = rate
                masks.draw(seed, epoch, batch, len(samples))
                ids = [samples.ids[position] for position in batch.tolist()]
                with contextlib.nullcontext() if recorder is None else recorder.batch(ids, labels[batch]):
                    optimizer.zero_grad()
                    value = loss(model(draws.apply(images[batch], batch)), labels[batch])
                    if not math.isfinite(value.item()):
                        raise DivergedError(
                            f"The loss became {value.item()} in epoch {epoch + 1}: lower the rate ({options.lr})."
                        )
                    value.backward()
                    if options.clip is not None:
                        nn.utils.clip_grad_norm_(parameters, options.clip)
                    optimizer.step()
        optimizer.zero_grad()
        return None if recorder is None else recorder.finish(samples)


class _Masks:
    """Dropout of the head's inputs by draws that follow from (seed, epoch) and the sample's position."""

    def __init__(self, head: nn.Linear, share: float) -> None:
        self._width, self._share, self._mask = head.weight.shape[1], share, torch.empty(0)

    def draw(self, seed: int, epoch: int, batch: Tensor, count: int) -> None:
        """For the samples of a batch."""
        if self._share:
            kept = np.random.default_rng([seed, epoch, DROPPED]).random((count, self._width), dtype=np.float32) >= self._share
            self._mask = torch.from_numpy(kept)[batch] / (1 - self._share)

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0] * self._mask.to(args[0]), *args[1:])


@contextlib.contextmanager
def _dropped(model: nn.Module, share: float) -> Iterator[_Masks]:
    _, head = find_head(model)
    masks = _Masks(head, share)
    hook = head.register_forward_pre_hook(masks) if share else None
    try:
        yield masks
    finally:
        if hook is not None:
            hook.remove()


def batches_of(count: int, size: int, keep: Tensor | None, *, seed: int, epoch: int) -> Iterator[Tensor]:
    """The batches of an epoch; who is not kept drops out of its batch."""
    order = torch.from_numpy(np.random.default_rng([seed, epoch, ORDER]).permutation(count))
    for batch in order.split(size):
        yield batch if keep is None else batch[keep[batch]]
