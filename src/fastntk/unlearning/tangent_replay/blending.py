"""The replay's update averaged with the softmax regression's: two models of one network that err differently.

The softmax regression of ``fast-ntk`` (:mod:`fastntk.unlearning.fast_ntk.softmax`) sees the same rows, but no path and no noise.
Where the replay misses the network's predictions, the two updates are averaged,

    Δ = (1 − b)·Δ_replay + b·Δ_regression,   b = m² / (m² + m'²)

each by the inverse square of its miss, as for any two estimates whose errors are unrelated (on development settings they
correlate by 0.05 to 0.1): m and m' are the distances between the network's predictions on *all* samples and those of the replay
and of the regression of all (``blend="auto"``). No retrained model is needed for that, and an exact replay has b = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.tangent.linearisation import Linearisation
from fastntk.training.recipe import Recipe
from fastntk.unlearning.fast_ntk.softmax import SoftmaxForm, softmax_form
from fastntk.unlearning.tangent_replay.path_models import EXACT

Blend = float | Literal["auto"]


@dataclass(frozen=True)
class BlendedUpdate:
    """Δ (d,), and the regression's weight in it; ``regression`` is None where there was no need for one."""

    delta: Tensor
    weight: float
    regression: SoftmaxForm | None

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return {"weight": self.weight} | ({} if self.regression is None else {"regression": self.regression.details()})


def check_blend(blend: Blend) -> None:
    """Refuse what is no share."""
    if blend != "auto" and (isinstance(blend, bool) or not isinstance(blend, int | float) or not 0 <= blend <= 1):
        raise InputError(f"blend is the share of the softmax regression: a number from 0 to 1, or 'auto'; got {blend!r}.")


def blend_update(
    delta: Tensor,
    linearisation: Linearisation,
    labels: Tensor,
    split: Split,
    recipe: Recipe,
    *,
    blend: Blend,
    probabilities: Tensor,
    miss: float,
) -> BlendedUpdate:
    """Average the replay's Δ (d,) with the regression's, by a weight that is given or follows from how well each predicts.

    ``probabilities`` (n, C): the replay of all samples'; ``miss``: its distance to the network's on the retained ones.
    """
    applies = recipe.loss == "cross-entropy" and miss > EXACT if blend == "auto" else blend != 0
    if not applies:
        return BlendedUpdate(delta, 0.0, None)
    regression = softmax_form(linearisation, labels, split)
    network = linearisation.outputs.softmax(1)
    weight = regression_weight(probabilities, regression.probabilities, network) if blend == "auto" else float(blend)
    return BlendedUpdate((1 - weight) * delta + weight * regression.delta.to(delta), weight, regression)


def regression_weight(replayed: Tensor, regressed: Tensor, network: Tensor) -> float:
    """The regression's weight where each counts by the inverse square of its distance to the network; probabilities (n, C)."""
    miss, other = (float((predictions - network).double().square().sum()) for predictions in (replayed, regressed))
    return miss / (miss + other) if miss > 0 else 0.0
