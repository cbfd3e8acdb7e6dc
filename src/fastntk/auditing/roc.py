"""Ranking figures of an attack: scores of members and non-members in, area and curve out.

    AUC  = P(score of a member > score of a non-member) + ½ P(equal)        ½ where ranking does not tell them apart
    TPR at an FPR = the largest share of members above a threshold that at most that share of non-members is above

Of k non-members no false-positive rate below 1/k but 0 can be told apart: with k < 100 the rate at 1 % is the rate at no false
positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastntk.auditing.record_figures import Roc
from fastntk.base.errors import InputError

Array = npt.NDArray[np.float64]
GRID = 101
"""Points of a curve in a record."""
FPR = 0.01


def auc(members: Any, others: Any) -> float:
    """Area under the curve of two sets of scores, (m,) and (k,); ties count half."""
    high, low = _scores(members, others)
    ascending = np.sort(low)
    below = np.searchsorted(ascending, high, side="left")
    upto = np.searchsorted(ascending, high, side="right")
    return float((below + upto).sum() / (2 * len(high) * len(low)))


def weighted_auc(scores: Array, truth: Array, weights: Array) -> Array:
    """Areas (B,) of scores (B, n) for truth (B, n), 1 or 0, where the samples have weights (B, n); ties count half."""
    areas = []
    for row, side, weight in zip(scores, truth, weights):
        values, place = np.unique(row, return_inverse=True)
        high, low = (np.bincount(place, weights=weight * part, minlength=len(values)) for part in (side, 1 - side))
        below = np.cumsum(low) - low
        areas.append(float((high * (below + low / 2)).sum() / (high.sum() * low.sum())))
    return np.array(areas)


def curve(members: Any, others: Any) -> tuple[Array, Array]:
    """False- and true-positive rates at every distinct threshold, from (0, 0) to (1, 1), both ascending."""
    high, low = _scores(members, others)
    thresholds = np.unique(np.concatenate([high, low]))[::-1]
    tpr = 1 - np.searchsorted(np.sort(high), thresholds, side="left") / len(high)
    fpr = 1 - np.searchsorted(np.sort(low), thresholds, side="left") / len(low)
    return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr])


def tpr_at(members: Any, others: Any, *, fpr: float = FPR) -> float:
    """Largest true-positive rate of a threshold whose false-positive rate is at most ``fpr``: no interpolation."""
    false, true = curve(members, others)
    return float(true[false <= fpr + 1e-12].max())


def on_grid(members: Any, others: Any) -> Roc:
    """The curve at evenly spaced false-positive rates, for plots: the best rate reached at or before each."""
    false, true = curve(members, others)
    grid = np.linspace(0, 1, GRID)
    rates = np.maximum.accumulate(true)[np.searchsorted(false, grid + 1e-12, side="right") - 1]
    return Roc(fpr=rounded(grid), tpr=rounded(rates))


def rounded(values: Array | Sequence[float]) -> tuple[float, ...]:
    """Rates to five digits, as records have them."""
    return tuple(float(f"{value:.5g}") for value in values)


def _scores(members: Any, others: Any) -> tuple[Array, Array]:
    high, low = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (members, others))
    if len(high) == 0 or len(low) == 0:
        raise InputError(f"An attack needs members and non-members; got {len(high)} and {len(low)}.")
    if np.isnan(high).any() or np.isnan(low).any():
        raise InputError("The scores of an attack hold NaN: the model's outputs are not numbers.")
    return high, low
