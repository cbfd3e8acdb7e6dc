"""``tangent-replay``: train the linearised network by the run's own recipe, with and without the forget set.

    Δ = replay(D_r) − replay(D),   θ_r = θ + Δ

Both replays start at the anchor and follow the same batches, schedule, optimiser, loss and weight decay as the real
fine-tuning (:func:`fastntk.recipe.descend`); they see the network only through the stored rows. What the stand-in gets wrong
in both cancels in the difference.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastntk.data import Split
from fastntk.recipe import Recipe, batch_loss, descend
from fastntk.unlearn.linearisation import Linearisation
from fastntk.unlearn.path import Path, PathName, path_model


@dataclass(frozen=True)
class Replay:
    """The update, and how far the replay of everything landed from the real θ (relative to ‖θ − w0‖)."""

    delta: Tensor
    path: str
    miss: float
    seconds: float

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return {"path": self.path, "replay_miss": self.miss}


def tangent_replay(
    linearisation: Linearisation, labels: Tensor, split: Split, recipe: Recipe, *, path: PathName = "auto"
) -> Replay:
    """Δ (d,) for forgetting ``split.forget``; ``labels`` (n,) are those of all samples."""
    started = time.perf_counter()
    name, model = path_model(linearisation, path)
    full = replay(model, linearisation.anchor, labels, recipe, description="replay of all")
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[split.forget] = False
    kept = full if bool(keep.all()) else replay(
        model, linearisation.anchor, labels, recipe, keep=keep, description="replay without"
    )  # fmt: skip
    reach = (linearisation.theta - linearisation.anchor).norm().clamp_min(1e-30)
    miss = float((full - linearisation.theta).norm() / reach)
    return Replay(kept - full, name, miss, time.perf_counter() - started)


def replay(
    path: Path,
    anchor: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    keep: Tensor | None = None,
    description: str = "replay",
) -> Tensor:
    """The tuned vector (d,) that the recipe reaches in a model of the path."""
    w = anchor.clone().requires_grad_()

    def gradient(batch: Tensor) -> tuple[float, int]:
        outputs = path(batch, w)
        loss = batch_loss(outputs, labels[batch], recipe)
        (w.grad,) = torch.autograd.grad(loss, w)
        return loss.item(), int((outputs.argmax(1) == labels[batch]).sum())

    descend([w], gradient, recipe, count=len(labels), keep=keep, description=description)
    return w.detach()
