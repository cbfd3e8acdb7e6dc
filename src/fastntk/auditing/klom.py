"""KLoM: the KL divergence between margins under unlearned and under retrained models, sample by sample.

For each forgotten sample the margins φ = log p_y/(1 − p_y) of both ensembles, clipped to ±``CLIP``, are put in common bins of
equal width from the least to the largest of them, half a count is added to every bin, and

    KLoM = Σ_b p_b log(p_b / q_b)        p: unlearned, q: retrained        in nats, 0 for the same histogram

reported as mean and 95th percentile over samples. Two ensembles of the same kind do not get 0, since histograms of few models
differ by chance: every figure of a record is made from halves of equal size (one half of the models against the other half of
the Retrains, and the halves swapped), so that Retrain against Retrain is the floor of the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastntk.auditing.record_figures import KlomFigures
from fastntk.auditing.roc import Array
from fastntk.auditing.ulira import checked_pair, halves

CLIP = 30.0
"""Margins beyond this (odds of 1e13) are the same to anybody."""
ADDED = 0.5
FEWEST, MOST = 4, 20


def bins_for(size: int) -> int:
    """About the square root of the number of models, between 4 and 20."""
    return int(np.clip(round(float(size) ** 0.5), FEWEST, MOST))


def klom(unlearned: Any, retrained: Any, *, bins: int | None = None) -> Array:
    """KLoM of each sample (n,), from margins (K, n) of both ensembles."""
    ours, theirs = (np.clip(part, -CLIP, CLIP) for part in checked_pair(unlearned, retrained))
    count = bins_for(len(ours)) if bins is None else bins
    low = np.minimum(ours.min(0), theirs.min(0))
    width = np.maximum(np.maximum(ours.max(0), theirs.max(0)) - low, 1e-12) / count
    p, q = (_shares(part, low, width, count) for part in (ours, theirs))
    return np.asarray((p * np.log(p / q)).sum(0))


def klom_by_halves(models: Array, retrained: Array) -> KlomFigures:
    """Mean and 95th percentile of one half of the models against the other half of the Retrains."""
    (first, second), (third, fourth) = halves(models), halves(retrained)
    each = np.concatenate([klom(first, fourth), klom(second, third)])
    return KlomFigures(mean=float(each.mean()), p95=float(np.quantile(each, 0.95)))


def _shares(values: Array, low: Array, width: Array, count: int) -> Array:
    """Smoothed share of the models in each bin, (count, n)."""
    place = np.clip(np.floor((values - low) / width).astype(int), 0, count - 1)
    counts = np.stack([(place == number).sum(0) for number in range(count)]).astype(np.float64)
    return np.asarray((counts + ADDED) / (len(values) + ADDED * count))
