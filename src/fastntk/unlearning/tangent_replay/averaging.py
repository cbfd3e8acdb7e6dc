"""Which seed the replay without the forget set has: the run's own, or the mean over several.

Two retrained models differ by their batch order, and θ carries the noise of its own. Where the replay of everything gives the
network's own predictions to within the predictions' seed-to-seed noise, the replay of the same seed reproduces that seed's
Retrain, noise and all. Where it misses by more, that noise is not reproduced, only carried along; there

    replay(D_r) = mean over k of replay(D_r, seed k)

aims at the middle of the retrained models instead. ``average="auto"`` does so for requests of whole classes, with ``SEEDS``
seeds. Requests of samples stay paired: what a few samples change is no larger than the noise, and pairing is what makes it
visible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.training.loop import Resume, WalkedBatches
from fastntk.training.recipe import Recipe
from fastntk.unlearning.tangent_replay.path_models import PathModel, probabilities
from fastntk.unlearning.tangent_replay.replay import replay
from fastntk.unlearning.update import total_variation

SEEDS = 3
STRIDE = 1_000_003
"""Between the seeds of one average: far from the small seeds that people give their runs and Retrains."""
Average = int | Literal["auto"]


@dataclass(frozen=True)
class RetainedReplay:
    """Where the replay without the forget set ends (d,), of one seed or in the mean; the own seed's optimiser state, if wanted.

    ``miss``: mean total variation between the network's predictions and those of the replay of all, on the retained samples;
    ``noise``: between replays of two seeds, None where there was one.
    """

    end: Tensor
    seeds: int
    miss: float
    noise: float | None
    resume: Resume | None

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return {"seeds": self.seeds, "miss": self.miss} | ({} if self.noise is None else {"noise": self.noise})


def check_average(average: Average) -> None:
    """Refuse what is no number of seeds."""
    if average != "auto" and (not isinstance(average, int) or isinstance(average, bool) or average < 1):
        raise InputError(f"average counts seeds: a whole number from 1, or 'auto'; got {average!r}.")


def replay_retained(
    model: PathModel,
    anchor: Tensor,
    labels: Tensor,
    split: Split,
    recipe: Recipe,
    *,
    average: Average,
    miss: float,
    resume_at: int | None = None,
    walked: WalkedBatches | None = None,
) -> RetainedReplay:
    """Replay without the forget set, with as many seeds as ``average`` says or, for ``auto``, as ``miss`` asks for.

    ``labels`` (n,) are those of all samples. ``resume_at``: the epoch whose optimiser state is wanted.
    """
    keep = split.keep
    own, resume = replay(
        model, anchor, labels, recipe, keep=keep, resume_at=resume_at, description="replay without", walked=walked
    )
    ends = [own]
    for k in range(1, _seeds(average, labels, split)):
        other = replace(recipe, seed=recipe.seed + STRIDE * k)
        ends.append(replay(model, anchor, labels, other, keep=keep, description="replay without, other seed")[0])
    if len(ends) == 1:
        return RetainedReplay(own, 1, miss, None, resume)
    noise = _noise(model, ends, split.retain, len(labels))
    if average == "auto" and not miss > noise:
        return RetainedReplay(own, 1, miss, noise, resume)
    return RetainedReplay(torch.stack(ends).mean(0), len(ends), miss, noise, resume)


def _seeds(average: Average, labels: Tensor, split: Split) -> int:
    """How many seeds to replay without the forget set: several where nothing but whole classes goes."""
    if average != "auto":
        return average
    whole = split.of_whole_classes(labels)
    return SEEDS if len(whole) and bool(whole.all()) else 1


def _noise(model: PathModel, ends: list[Tensor], retain: Tensor, count: int) -> float:
    """Mean total variation, on the retained samples, between replays of two seeds."""
    predictions = [probabilities(model, w, count)[retain] for w in ends]
    pairs = [total_variation(p, q) for i, p in enumerate(predictions) for q in predictions[:i]]
    return sum(pairs) / len(pairs)
