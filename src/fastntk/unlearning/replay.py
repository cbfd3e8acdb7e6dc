"""``tangent-replay``: train the linearised network by the run's own recipe, with and without the forget set.

    Δ = replay(D_r) − replay(D),   θ_r = θ + Δ

Both replays start at the anchor and follow the same batches, schedule, optimiser, loss and weight decay as the real
fine-tuning (:func:`fastntk.recipe.descend`); they see the network only through the stored rows. What the stand-in gets wrong
in both cancels in the difference.

Which model of the path (:mod:`fastntk.unlearning.path`)? The replay of all samples should end at θ. Its miss, relative to
‖θ − w0‖, needs no retrained model: ``auto`` takes ``product`` unless it misses by over 1.25 times what ``tangent`` does (chosen
on development settings: product is nearer to Retrain at equal misses).

Which seed? Two honest Retrains differ by their batch order, and θ carries the noise of its own. Where the replay of everything
gives the network's own answers to within the answers' seed-to-seed noise, the paired difference above reproduces the Retrain of
the same seed, noise and all. Where it misses by more, that noise is not reproduced, only carried along; there

    Δ = mean over k of replay(D_r, seed k) − replay(D, own seed)

aims at the middle of the Retrains instead. ``average="auto"`` does so for requests of whole classes, with ``SEEDS`` seeds.
Requests of samples stay paired: what a few samples change is no larger than the noise, and pairing is what makes it visible.

``polish`` = K follows it with the last K epochs of the recipe on the real network and the retained samples, from θ + Δ and with
the optimiser state of the replay: closer to Retrain, at K epochs of its cost and of every later request's.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

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
SEEDS = 3
STRIDE = 1_000_003
"""Between the seeds of one average: far from the small seeds that people give their runs and Retrains."""
BATCH = 256
Average = int | Literal["auto"]


@dataclass(frozen=True)
class Replay:
    """The update, the model of the path behind it, and how far each replay of everything landed from θ."""

    delta: Tensor
    path: str
    model: Path
    misses: dict[str, float]
    seconds: float
    averaged: dict[str, Any]
    resume: Resume | None = None

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return {"path": self.path, "replay_miss": self.misses[self.path], "replay_misses": self.misses, "average": self.averaged}


def tangent_replay(
    linearisation: Linearisation,
    labels: Tensor,
    split: Split,
    recipe: Recipe,
    *,
    path: PathName = "auto",
    average: Average = "auto",
    polish: int = 0,
) -> Replay:
    """Δ (d,) for forgetting ``split.forget``; ``labels`` (n,) are those of all samples.

    ``average``: seeds of the replay without the forget set. ``polish`` > 0 keeps the optimiser state that :func:`finish` needs.
    """
    if average != "auto" and (not isinstance(average, int) or isinstance(average, bool) or average < 1):
        raise InputError(f"average counts seeds: a whole number from 1, or 'auto'; got {average!r}.")
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
    recipes = [replace(recipe, seed=recipe.seed + STRIDE * k) for k in range(1, _seeds(average, labels, split))]
    title = "replay without, other seed"
    others = [replay(models[name], anchor, labels, other, keep=keep, description=title)[0] for other in recipes]
    averaged: dict[str, Any] = {"seeds": 1}
    if others:
        averaged |= _noise(models[name], linearisation.outputs, full[name], [kept, *others], split)
        if average != "auto" or averaged["miss"] > averaged["noise"]:
            kept, averaged["seeds"] = torch.stack([kept, *others]).mean(0), 1 + len(others)
    return Replay(kept - full[name], name, models[name], misses, time.perf_counter() - started, averaged, resume)


def _seeds(average: Average, labels: Tensor, split: Split) -> int:
    """How many seeds to replay without the forget set: several where nothing but whole classes goes."""
    if average != "auto":
        return average
    whole = torch.isin(labels[split.forget], torch.tensor(split.whole_classes, dtype=labels.dtype))
    return SEEDS if len(whole) and bool(whole.all()) else 1


def _noise(path: Path, outputs: Tensor, full: Tensor, kept: list[Tensor], split: Split) -> dict[str, float]:
    """Mean total variation, on the retained samples, of the replay of all to the network, and between replays of two seeds."""
    retain = split.retain
    with torch.no_grad():
        replayed, *answers = (torch.cat([path(batch, w) for batch in retain.split(BATCH)]).softmax(1) for w in (full, *kept))
    pairs = [_apart(p, q) for i, p in enumerate(answers) for q in answers[:i]]
    return {"miss": _apart(replayed, outputs[retain].softmax(1)), "noise": sum(pairs) / len(pairs)}


def _apart(p: Tensor, q: Tensor) -> float:
    return float(0.5 * (p - q).abs().sum(1).mean())


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
