"""``tangent-replay``: train the linearised network by the run's own recipe, with and without the forget set.

    Δ = replay(D_r) − replay(D),   θ_r = θ + Δ

Both replays start at the anchor and follow the same batches, schedule, optimiser, loss and weight decay as the real
fine-tuning (``training.loop.descend``); they see the network only through the stored rows. What the stand-in gets wrong
in both cancels in the difference.

Which model of the path (``tangent_replay.path_models``)? The replay of all samples should end at θ. Its miss, relative to
‖θ − w0‖, needs no retrained model. ``auto`` tries ``product``; where that does not give the network's answers to within
``QUIET``, the others as well, and takes the one that misses least, ``tangent`` only where the rest miss by over 1.25 times as
much (chosen on development settings: the others are nearer to Retrain at equal misses).

Which seed? Two honest Retrains differ by their batch order, and θ carries the noise of its own. Where the replay of everything
gives the network's own answers to within the answers' seed-to-seed noise, the paired difference above reproduces the Retrain of
the same seed, noise and all. Where it misses by more, that noise is not reproduced, only carried along; there

    Δ = mean over k of replay(D_r, seed k) − replay(D, own seed)

aims at the middle of the Retrains instead. ``average="auto"`` does so for requests of whole classes, with ``SEEDS`` seeds.
Requests of samples stay paired: what a few samples change is no larger than the noise, and pairing is what makes it visible.

Two stand-ins err differently. The softmax regression of ``fast-ntk`` (``fast_ntk.softmax``) sees the same rows,
but no path and no noise. Where the replay misses the network's answers, the two updates are averaged,

    Δ = (1 − b)·Δ_replay + b·Δ_regression,   b = m² / (m² + m'²)

each by the inverse square of its miss, as for any two estimates whose errors are unrelated (on development settings they
correlate by 0.05 to 0.1): m and m' are the distances between the network's answers on *all* samples and those of the replay
and of the regression of all (``blend="auto"``). No retrained model is needed for that, and an exact replay keeps b = 0.

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

from fastntk.base.errors import DivergedError, InputError
from fastntk.data import Samples, Split
from fastntk.models import logits
from fastntk.tangent.linearisation import Linearisation
from fastntk.training.loop import Resume, batch_loss, descend
from fastntk.training.network import fast_layout, training_mode
from fastntk.training.recipe import Recipe
from fastntk.tuning import Subset
from fastntk.unlearning.fast_ntk.softmax import softmax_form
from fastntk.unlearning.tangent_replay.path_models import Path, PathName, path_models

PREFERENCE = 1.25
SEEDS = 3
STRIDE = 1_000_003
"""Between the seeds of one average: far from the small seeds that people give their runs and Retrains."""
BATCH = 256
QUIET = 0.01
"""Mean total variation to the network's answers below which a replay needs no second opinion."""
Average = int | Literal["auto"]
Blend = float | Literal["auto"]


@dataclass(frozen=True)
class Chosen:
    """A model of the path; where its replay of all samples ends (d,) and what it answers there (n, C); how far from θ the
    replays of all that were tried ended, and which diverged."""

    name: str
    model: Path
    end: Tensor
    answers: Tensor
    misses: dict[str, float]
    diverged: list[str]

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        found = {"path": self.name, "replay_miss": self.misses[self.name], "replay_misses": self.misses}
        return found | ({"replay_diverged": self.diverged} if self.diverged else {})


@dataclass(frozen=True)
class Replay:
    """The update, and the model of the path behind it."""

    delta: Tensor
    path: Chosen
    seconds: float
    averaged: dict[str, Any]
    blended: dict[str, Any]
    resume: Resume | None = None

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return self.path.details() | {"average": self.averaged, "blend": self.blended}


def tangent_replay(
    linearisation: Linearisation,
    labels: Tensor,
    split: Split,
    recipe: Recipe,
    *,
    path: PathName = "auto",
    average: Average = "auto",
    blend: Blend = "auto",
    polish: int = 0,
) -> Replay:
    """Δ (d,) for forgetting ``split.forget``; ``labels`` (n,) are those of all samples.

    ``average``: seeds of the replay without the forget set. ``blend``: share of the softmax regression in the update.
    ``polish`` > 0 keeps the optimiser state that :func:`finish` needs.
    """
    if average != "auto" and (not isinstance(average, int) or isinstance(average, bool) or average < 1):
        raise InputError(f"average counts seeds: a whole number from 1, or 'auto'; got {average!r}.")
    if blend != "auto" and (isinstance(blend, bool) or not isinstance(blend, int | float) or not 0 <= blend <= 1):
        raise InputError(f"blend is the share of the softmax regression: a number from 0 to 1, or 'auto'; got {blend!r}.")
    if not 0 <= polish <= recipe.epochs:
        raise InputError(f"polish counts epochs of the recipe: 0 to {recipe.epochs}, got {polish}.")
    started = time.perf_counter()
    chosen = choose_path(linearisation, labels, recipe, path=path)
    model, answers, anchor = chosen.model, chosen.answers, linearisation.anchor
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[split.forget] = False
    kept, resume = replay(
        model, anchor, labels, recipe, keep=keep, resume_at=recipe.epochs - polish, description="replay without"
    )
    recipes = [replace(recipe, seed=recipe.seed + STRIDE * k) for k in range(1, _seeds(average, labels, split))]
    title = "replay without, other seed"
    others = [replay(model, anchor, labels, other, keep=keep, description=title)[0] for other in recipes]
    retain, truth = split.retain, linearisation.outputs.softmax(1)
    averaged: dict[str, Any] = {"seeds": 1, "miss": _apart(answers[retain], truth[retain])}
    if others:
        averaged["noise"] = _noise(model, [kept, *others], split, len(labels))
        if average != "auto" or averaged["miss"] > averaged["noise"]:
            kept, averaged["seeds"] = torch.stack([kept, *others]).mean(0), 1 + len(others)
    delta = kept - chosen.end
    blended: dict[str, Any] = {"weight": 0.0}
    if blend != 0 and (blend != "auto" or (recipe.loss == "cross-entropy" and averaged["miss"] > QUIET)):
        form = softmax_form(linearisation, labels, split)
        weight = _weight(answers, form.probabilities, truth) if blend == "auto" else float(blend)
        delta = (1 - weight) * delta + weight * form.delta.to(delta)
        blended = {"weight": weight, "regression": form.details()}
    return Replay(delta, chosen, time.perf_counter() - started, averaged, blended, resume)


def _seeds(average: Average, labels: Tensor, split: Split) -> int:
    """How many seeds to replay without the forget set: several where nothing but whole classes goes."""
    if average != "auto":
        return average
    whole = torch.isin(labels[split.forget], torch.tensor(split.whole_classes, dtype=labels.dtype))
    return SEEDS if len(whole) and bool(whole.all()) else 1


def _answers(path: Path, w: Tensor, count: int) -> Tensor:
    """Class probabilities (n, C) of the path model at ``w``."""
    with torch.no_grad():
        return torch.cat([path(batch, w) for batch in torch.arange(count).split(BATCH)]).softmax(1)


def _noise(path: Path, kept: list[Tensor], split: Split, count: int) -> float:
    """Mean total variation, on the retained samples, between replays of two seeds."""
    answers = [_answers(path, w, count)[split.retain] for w in kept]
    pairs = [_apart(p, q) for i, p in enumerate(answers) for q in answers[:i]]
    return sum(pairs) / len(pairs)


def _weight(replayed: Tensor, regressed: Tensor, truth: Tensor) -> float:
    """The regression's share where each counts by the inverse square of its distance to the truth; probabilities (n, C)."""
    miss, other = (float((answers - truth).double().square().sum()) for answers in (replayed, regressed))
    return miss / (miss + other) if miss > 0 else 0.0


def _apart(p: Tensor, q: Tensor) -> float:
    return float(0.5 * (p - q).abs().sum(1).mean())


def choose_path(linearisation: Linearisation, labels: Tensor, recipe: Recipe, *, path: PathName = "auto") -> Chosen:
    """The first path whose replay of all samples is exact, or the one whose replay ends nearest to θ."""
    theta, truth = linearisation.theta, linearisation.outputs.softmax(1)
    reach = (theta - linearisation.anchor).norm().clamp_min(1e-30)
    models = path_models(linearisation, path)
    misses: dict[str, float] = {}
    diverged: list[str] = []
    exact: str | None = None
    for name, model in models.items():
        try:
            end, answers = _of_all(linearisation, name, model, labels, recipe)
        except DivergedError:
            diverged.append(name)
            if len(diverged) == len(models):
                raise
            continue
        misses[name] = float((end - theta).norm() / reach)
        if _apart(answers, truth) <= QUIET:
            exact = name
            break
    name = exact or _chosen(misses)
    return Chosen(name, models[name], *_of_all(linearisation, name, models[name], labels, recipe), misses, diverged)


def _chosen(misses: dict[str, float]) -> str:
    """The path whose replay of everything ends nearest to θ, the tangent's handicapped."""
    return min(misses, key=lambda name: misses[name] * (PREFERENCE if name == "tangent" else 1))


def _of_all(linearisation: Linearisation, name: str, path: Path, labels: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Where the replay of all samples ends (d,) and its answers (n, C) there: the same for every request, so kept."""
    key = f"replay of all, {name}, {recipe}"
    if key not in linearisation.memo:
        end = replay(path, linearisation.anchor, labels, recipe, description=f"replay of all ({name})")[0]
        linearisation.memo[key] = end, _answers(path, end, len(labels))
    end, answers = linearisation.memo[key]
    return end, answers


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

    def loss(batch: Tensor) -> tuple[Tensor, int]:
        outputs = path(batch, w)
        return batch_loss(outputs, labels[batch], recipe), int((outputs.argmax(1) == labels[batch]).sum())

    def watch(epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == resume_at:
            states.append(Resume(epoch, copy.deepcopy(optimizer.state_dict())))

    descend([w], loss, recipe, count=len(labels), keep=keep, description=description, watch=watch)
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

    def loss(batch: Tensor) -> tuple[Tensor, int]:
        subset.set(w.detach())
        outputs = logits(model, inputs[batch])
        return batch_loss(outputs, labels[batch], recipe), int((outputs.argmax(1) == labels[batch]).sum())

    def gradient(loss: Tensor) -> list[Tensor]:
        return [torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)])]

    with training_mode(model, recipe):
        descend(
            [w],
            loss,
            recipe,
            count=len(samples),
            keep=keep,
            anchor=[anchor],
            resume=resume,
            gradient=gradient,
            description="polish",
        )
    return w.detach()
