"""U-LiRA: can one prediction tell an unlearned model from a retrained one? A likelihood-ratio test for every sample.

Many unlearned and many retrained models give, for each forgotten sample, two sets of logit-scaled confidences

    φ = log p_y / (1 − p_y) = z_y − log Σ_{c≠y} exp z_c

each described by a normal distribution N_u and N_r. The test's score for a new prediction is log N_u(φ) − log N_r(φ).
For every k, the k-th unlearned model is held against the retrained model of another seed, j; the models of both seeds are left
out of *both* fits and scored with them. So both are new to the test, and for equal ensembles the area is 0.5 in expectation, for
any size. Models of one seed may differ by next to nothing, always in the same direction: one of them would outrank the other.

The area, the curve and the rate at 1 % false positives are those over the forgotten samples of one pair of models, averaged over
the pairs. The standard error of the area is a jackknife over the pairs (in at most ``GROUPS`` groups): the areas of single pairs
share their fits, so their own scatter would promise half the noise there is.

An area near 1 does not say how far apart the ensembles are, nor in which direction. The **median shift** does: the median
over the forgotten samples of

    (mean φ of the unlearned models − mean φ of the Retrains) / standard deviation of φ over the Retrains

0 for equal ensembles, above 0 where the samples are still known too well, below 0 where they were pushed too far.

**What varies.** Where all models are made from the same data, forget set and anchor, only the seed differs: ``seed-only``.
That is less than in the original test, whose models have other data and other forget sets; ``resampled`` ensembles draw the
forget set anew for each model, around fixed samples that are looked at (``python -m lab run attacks``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastntk.auditing.record_figures import Attack, Roc, Shift
from fastntk.auditing.roc import Array, auc, on_grid, rounded, tpr_at
from fastntk.base.errors import InputError

LEAST = 4
"""Fewer models than this on a side give no spread worth fitting."""
FLOOR = 1e-2
"""Least standard deviation, relative to that of all values: two models that agree by chance are not certain."""
GROUPS = 32
SPLITS = 8


def logit_confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """log p_y / (1 − p_y) of each sample (n,), from logits (n, C), without ever rounding p to 0 or 1."""
    values = logits.double()
    own = values.gather(1, labels[:, None]).squeeze(1)
    return own - values.scatter(1, labels[:, None], -torch.inf).logsumexp(1)


def u_lira(unlearned: Any, retrained: Any) -> Attack:
    """The test on φ of K models each, (K, n) and (K, n)."""
    ours, theirs = checked_pair(unlearned, retrained)
    floor = spread_floor(ours, theirs)
    pairs = list(_scored(ours, theirs, floor))
    curves = [on_grid(*pair) for pair in pairs]
    return Attack(
        auc=_area(ours, theirs, floor),
        auc_standard_error=_jackknife(lambda first, second: _area(first, second, floor), ours, theirs),
        tpr_at_1pct_fpr=float(np.mean([tpr_at(*pair) for pair in pairs])),
        roc=_mean_curve(curves),
    )


def _scored(unlearned: Array, retrained: Array, floor: float) -> Iterator[tuple[Array, Array]]:
    """Scores (n,) of the k-th unlearned model and of a retrained one of another seed, by fits without both seeds, for every k."""
    count = len(unlearned)
    for k in range(count):
        other = (k + count // 2) % count
        rest = ~np.isin(np.arange(count), [k, other])
        # Of one model, which a jackknife over four seeds leaves, there is no standard deviation: both sides then have the least.
        least = 1 if rest.sum() > 1 else 0
        fits = [(part[rest].mean(0), np.maximum(part[rest].std(0, ddof=least), floor)) for part in (unlearned, retrained)]
        yield tuple(_log_normal(x, *fits[0]) - _log_normal(x, *fits[1]) for x in (unlearned[k], retrained[other]))  # type: ignore[misc]


def _area(unlearned: Array, retrained: Array, floor: float) -> float:
    return float(np.mean([auc(*pair) for pair in _scored(unlearned, retrained, floor)]))


def _jackknife(figure: Callable[[Array, Array], float], unlearned: Array, retrained: Array) -> float:
    """Standard error of a figure: √[(g − 1)/g Σ (A₋ᵢ − mean)²], A₋ᵢ without the i-th of g groups of pairs of models."""
    groups = np.array_split(np.arange(len(unlearned)), min(len(unlearned), GROUPS))
    values = np.array([figure(np.delete(unlearned, group, 0), np.delete(retrained, group, 0)) for group in groups])
    return math.sqrt((len(groups) - 1) / len(groups) * float(((values - values.mean()) ** 2).sum()))


def spread_floor(unlearned: Array, retrained: Array) -> float:
    """The least standard deviation that a sample's values are given."""
    scale = float(np.concatenate([unlearned, retrained]).std())
    return FLOOR * scale if scale > 0 else 1.0


def median_shift(unlearned: Any, retrained: Any) -> Shift:
    """Median over samples of the difference of mean φ, in standard deviations of the Retrains', from φ (K, n) of both."""
    ours, theirs = checked_pair(unlearned, retrained)
    floor = spread_floor(ours, theirs)

    def shift(first: Array, second: Array) -> float:
        return float(np.median((first.mean(0) - second.mean(0)) / np.maximum(second.std(0, ddof=1), floor)))

    return Shift(median=shift(ours, theirs), standard_error=_jackknife(shift, ours, theirs))


def median_shift_null(retrained: Any) -> Shift:
    """The shift of Retrains (K, n) against Retrains: mean over random halves, and how far one such half strays from the other."""
    values = np.asarray(retrained, dtype=np.float64)
    shifts = []
    for number in range(SPLITS):
        order = np.random.default_rng(number).permutation(len(values))
        first, second = halves(values[order])
        # Both ways round: that one half is the reference is chance.
        shifts += [median_shift(first, second).median, median_shift(second, first).median]
    return Shift(median=float(np.mean(shifts)), standard_error=float(np.sqrt(np.mean(np.square(shifts)))))


def u_lira_null(retrained: Any) -> Attack:
    """The test of Retrains (K, n) against Retrains: the mean over ``SPLITS`` random halves, since one split is mostly chance.

    The standard error is the mean of the splits' own: how far one comparison of that size strays from one half.
    """
    values = np.asarray(retrained, dtype=np.float64)
    splits = []
    for number in range(SPLITS):
        order = np.random.default_rng(number).permutation(len(values))
        splits.append(u_lira(*halves(values[order])))
    return Attack(
        auc=float(np.mean([split.auc for split in splits])),
        auc_standard_error=float(np.mean([split.auc_standard_error for split in splits])),
        tpr_at_1pct_fpr=float(np.mean([split.tpr_at_1pct_fpr for split in splits])),
        roc=_mean_curve([split.roc for split in splits]),
    )


def _mean_curve(curves: Sequence[Roc]) -> Roc:
    """The mean of curves on the same grid."""
    return Roc(fpr=curves[0].fpr, tpr=rounded(np.mean([curve.tpr for curve in curves], axis=0)))


def halves(values: Array) -> tuple[Array, Array]:
    """Models (K, n) in two equal parts, every other one; an odd last one is left out."""
    even = len(values) - len(values) % 2
    return values[0:even:2], values[1:even:2]


def _log_normal(x: Array, mean: Array, std: Array) -> Array:
    return np.asarray(-0.5 * ((x - mean) / std) ** 2 - np.log(std))


def checked_pair(unlearned: Any, retrained: Any) -> tuple[Array, Array]:
    """Two ensembles' values as (K, n) arrays; refused where they do not fit each other or are not numbers."""
    first, second = (np.asarray(part, dtype=np.float64) for part in (unlearned, retrained))
    if first.shape != second.shape or first.ndim != 2 or len(first) < LEAST or first.shape[1] == 0:
        raise InputError(
            f"Two ensembles of the same size, at least {LEAST} models, on the same samples are compared, (K, n) each; got "
            f"{first.shape} and {second.shape}."
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InputError("Some models of the ensembles give logits that are not numbers.")
    return first, second
