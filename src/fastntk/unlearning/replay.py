"""``tangent-replay``: train the linearised network by the run's own recipe, with and without the forget set.

    Δ = replay(D_r) − replay(D),   θ_r = θ + Δ

Both replays start at the anchor and follow the same batches, schedule, optimiser, loss and weight decay as the real
fine-tuning (:func:`fastntk.recipe.descend`); they see the network only through the stored rows. What the stand-in gets wrong
in both cancels in the difference.

Which model of the path (:mod:`fastntk.unlearning.path`)? The replay of all samples should end at θ. Its miss, relative to
‖θ − w0‖, needs no retrained model: ``auto`` takes ``product`` unless it misses by over 1.25 times what ``tangent`` does (chosen
on development settings: product is nearer to Retrain at equal misses).

``polish`` = K follows it with the last K epochs of the recipe on the real network and the retained samples, from θ + Δ and with
the optimiser state of the replay: closer to Retrain, at K epochs of its cost and of every later request's.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.data import Samples, Split
from fastntk.errors import InputError
from fastntk.models import logits
from fastntk.recipe import Recipe, Resume, batch_loss, descend
from fastntk.training import fast_layout, training_mode
from fastntk.tuning import Subset
from fastntk.unlearning.linearisation import Linearisation
from fastntk.unlearning.path import Path, PathName, path_models

PREFERENCE = 1.25


@dataclass(frozen=True)
class Replay:
    """The update, the model of the path behind it, and how far each replay of everything landed from θ."""

    delta: Tensor
    path: str
    model: Path
    misses: dict[str, float]
    seconds: float
    resume: Resume | None = None

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return {"path": self.path, "replay_miss": self.misses[self.path], "replay_misses": self.misses}


def tangent_replay(
    linearisation: Linearisation,
    labels: Tensor,
    split: Split,
    recipe: Recipe,
    *,
    path: PathName = "auto",
    polish: int = 0,
) -> Replay:
    """Δ (d,) for forgetting ``split.forget``; ``labels`` (n,) are those of all samples.

    ``polish`` > 0 keeps the optimiser state that :func:`finish` needs.
    """
    if not 0 <= polish <= recipe.epochs:
        raise InputError(f"polish counts epochs of the recipe: 0 to {recipe.epochs}, got {polish}.")
    started = time.perf_counter()
    models = path_models(linearisation, path)
    anchor, theta = linearisation.anchor, linearisation.theta
    reach = (theta - anchor).norm().clamp_min(1e-30)
    full = {
        name: replay(model, anchor, labels, recipe, description=f"replay of all ({name})")[0] for name, model in models.items()
    }
    misses = {name: float((end - theta).norm() / reach) for name, end in full.items()}
    name = _chosen(misses)
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[split.forget] = False
    kept, resume = replay(
        models[name], anchor, labels, recipe, keep=keep, resume_at=recipe.epochs - polish, description="replay without"
    )
    return Replay(kept - full[name], name, models[name], misses, time.perf_counter() - started, resume)


def _chosen(misses: dict[str, float]) -> str:
    """The preferred path unless another's replay ends clearly nearer to θ."""
    preferred = next(iter(misses))
    best = min(misses, key=lambda name: misses[name])
    return preferred if misses[preferred] <= PREFERENCE * misses[best] else best


def replay(
    path: Path,
    anchor: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    keep: Tensor | None = None,
    resume_at: int | None = None,
    description: str = "replay",
) -> tuple[Tensor, Resume | None]:
    """The tuned vector (d,) that the recipe reaches in a model of the path, and the optimiser's state at one epoch."""
    w = anchor.clone().requires_grad_()
    states: list[Resume] = []

    def gradient(batch: Tensor) -> tuple[float, int]:
        outputs = path(batch, w)
        loss = batch_loss(outputs, labels[batch], recipe)
        (w.grad,) = torch.autograd.grad(loss, w)
        return loss.item(), int((outputs.argmax(1) == labels[batch]).sum())

    def watch(epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == resume_at:
            states.append(Resume(epoch, copy.deepcopy(optimizer.state_dict())))

    descend([w], gradient, recipe, count=len(labels), keep=keep, description=description, watch=watch)
    return w.detach(), states[0] if states else None


def finish(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    recipe: Recipe,
    *,
    start: Tensor,
    anchor: Tensor,
    keep: Tensor,
    resume: Resume,
) -> Tensor:
    """The real network's last epochs from ``start`` (d,), in place; returns the tuned vector (d,)."""
    w = start.clone().requires_grad_()
    parameters = list(subset.parameters.values())
    inputs, labels = fast_layout(model, samples.inputs), samples.labels

    def gradient(batch: Tensor) -> tuple[float, int]:
        subset.set(w.detach())
        outputs = logits(model, inputs[batch])
        loss = batch_loss(outputs, labels[batch], recipe)
        w.grad = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])
        return loss.item(), int((outputs.argmax(1) == labels[batch]).sum())

    with training_mode(model, recipe):
        descend([w], gradient, recipe, count=len(samples), keep=keep, anchor=[anchor], resume=resume, description="polish")
    return w.detach()
