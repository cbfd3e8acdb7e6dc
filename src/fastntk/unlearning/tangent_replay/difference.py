"""``tangent-replay``: train the linearised network by the run's own recipe, with and without the forget set.

    Δ = replay(D_r) − replay(D),   θ_r = θ + Δ

Both replays (``replay``) follow the run's recipe from the anchor; what the path model gets wrong in both cancels in the
difference. Which model stands in for the network, with how many seeds, and with which share of the softmax regression:
``selection``, ``averaging`` and ``blending``, all three decided from the run alone. ``polish`` follows it with epochs on the real
network.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.tangent.linearisation import Linearisation
from fastntk.training.loop import Resume, WalkedBatches
from fastntk.training.recipe import Recipe
from fastntk.unlearning.tangent_replay.averaging import Average, RetainedReplay, check_average, replay_retained
from fastntk.unlearning.tangent_replay.blending import Blend, BlendedUpdate, blend_update, check_blend
from fastntk.unlearning.tangent_replay.path_models import PathName
from fastntk.unlearning.tangent_replay.selection import SelectedPath, choose_path
from fastntk.unlearning.update import total_variation


@dataclass(frozen=True)
class ReplayUpdate:
    """The update and what it rests on."""

    path: SelectedPath
    retained: RetainedReplay
    blended: BlendedUpdate
    seconds: float

    @property
    def delta(self) -> Tensor:
        """Δ (d,)."""
        return self.blended.delta

    @property
    def resume(self) -> Resume | None:
        """The optimiser's state that polishing starts from; None without ``polish``."""
        return self.retained.resume

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return self.path.details() | {"average": self.retained.details(), "blend": self.blended.details()}


def tangent_replay_update(
    linearisation: Linearisation,
    labels: Tensor,
    split: Split,
    recipe: Recipe,
    *,
    path: PathName = "auto",
    average: Average = "auto",
    blend: Blend = "auto",
    polish: int = 0,
    walked: WalkedBatches | None = None,
) -> ReplayUpdate:
    """Δ (d,) for forgetting ``split.forget``; ``labels`` (n,) are those of all samples.

    ``average``: seeds of the replay without the forget set. ``blend``: share of the softmax regression in the update.
    ``walked``: the run's own batches, where samples were forgotten since. ``polish`` > 0 stores the optimiser state that
    :func:`fastntk.unlearning.tangent_replay.polish.finish` needs.
    """
    check_average(average)
    check_blend(blend)
    if isinstance(polish, bool) or not isinstance(polish, int) or not 0 <= polish <= recipe.epochs:
        raise InputError(f"polish counts epochs of the recipe: 0 to {recipe.epochs}, got {polish!r}.")
    started = time.perf_counter()
    selection = choose_path(linearisation, labels, recipe, path=path, walked=walked)
    network = linearisation.outputs.softmax(1)
    miss = total_variation(selection.probabilities[split.retain], network[split.retain])
    resume_at = recipe.epochs - polish if polish else None
    retained = replay_retained(
        selection.model,
        linearisation.anchor,
        labels,
        split,
        recipe,
        average=average,
        miss=miss,
        resume_at=resume_at,
        walked=walked,
    )
    delta = retained.end - selection.end
    update = blend_update(
        delta, linearisation, labels, split, recipe, blend=blend, probabilities=selection.probabilities, miss=miss
    )
    return ReplayUpdate(selection, retained, update, time.perf_counter() - started)
