"""Which path model stands in for the network: the one whose replay of all samples ends nearest to θ.

    miss = ‖replay(D) − θ‖ / ‖θ − w0‖

needs no retrained model. ``auto`` tries ``product``; where that does not give the network's predictions to within
:data:`fastntk.unlearning.tangent_replay.path_models.EXACT`, the others as well, and takes the one that misses least, ``tangent``
only where the rest miss by over ``PREFERENCE`` times as much (chosen on development settings: the others are nearer to Retrain at
equal misses).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fastntk.base.errors import DivergedError
from fastntk.tangent.linearisation import Linearisation
from fastntk.training.loop import WalkedBatches
from fastntk.training.recipe import Recipe
from fastntk.unlearning.tangent_replay.path_models import EXACT, PathModel, PathName, path_models, probabilities
from fastntk.unlearning.tangent_replay.replay import replay
from fastntk.unlearning.update import total_variation

PREFERENCE = 1.25


@dataclass(frozen=True)
class SelectedPath:
    """A path model; where its replay of all samples ends (d,) and the class probabilities there (n, C); how far from θ the
    replays of all that were tried ended, and which diverged."""

    name: str
    model: PathModel
    end: Tensor
    probabilities: Tensor
    misses: dict[str, float]
    diverged: list[str]

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        details = {"path": self.name, "replay_miss": self.misses[self.name], "replay_misses": self.misses}
        return details | ({"replay_diverged": self.diverged} if self.diverged else {})


def choose_path(
    linearisation: Linearisation,
    labels: Tensor,
    recipe: Recipe,
    *,
    path: PathName = "auto",
    walked: WalkedBatches | None = None,
) -> SelectedPath:
    """The first path model whose replay of all samples is exact, or the one whose replay ends nearest to θ."""
    theta, network = linearisation.theta, linearisation.outputs.softmax(1)
    reach = (theta - linearisation.anchor).norm().clamp_min(1e-30)
    models = path_models(linearisation, path)
    misses: dict[str, float] = {}
    failures: list[str] = []
    exact: str | None = None
    for name, model in models.items():
        try:
            end, predictions = _replay_of_all(linearisation, name, model, labels, recipe, walked)
        except DivergedError:
            failures.append(name)
            if len(failures) == len(models):
                raise
            continue
        misses[name] = float((end - theta).norm() / reach)
        if total_variation(predictions, network) <= EXACT:
            exact = name
            break
    name = exact or nearest(misses)
    end, predictions = _replay_of_all(linearisation, name, models[name], labels, recipe, walked)
    return SelectedPath(name, models[name], end, predictions, misses, failures)


def nearest(misses: dict[str, float]) -> str:
    """The path model whose replay of everything ends nearest to θ, the tangent's handicapped."""
    return min(misses, key=lambda name: misses[name] * (PREFERENCE if name == "tangent" else 1))


def _replay_of_all(
    linearisation: Linearisation,
    name: str,
    model: PathModel,
    labels: Tensor,
    recipe: Recipe,
    walked: WalkedBatches | None,
) -> tuple[Tensor, Tensor]:
    """Where the replay of all samples ends (d,) and the probabilities (n, C) there: the same for every request, so stored."""
    key = f"replay of all, {name}, {recipe}, {walked is not None}"
    if key not in linearisation.memo:
        words = f"replay of all ({name})"
        end = replay(model, linearisation.anchor, labels, recipe, description=words, walked=walked)[0]
        linearisation.memo[key] = end, probabilities(model, end, len(labels))
    end, predictions = linearisation.memo[key]
    return end, predictions
