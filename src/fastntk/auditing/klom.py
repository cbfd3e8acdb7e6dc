"""KLoM: the KL divergence between margins under unlearned and under retrained models, sample by sample.

As in the reference evaluation (Georgiev et al. 2024): the margins φ = log p_y/(1 − p_y) of both ensembles, clipped to
±``CLIP``, are put in ``BINS`` common bins of equal width from the least to the largest of them, a share of Retrains below
``EPSILON`` counts as that much, and

    KLoM = Σ_b p_b log(p_b / q_b)        p: unlearned, q: retrained        in nats, 0 for the same histogram

on forgotten, retained and held-out samples: mean, 95th and 99th percentile of each. The reference has 100 models a side.

**What few models can tell.** A bin with unlearned models and no Retrain counts log(p_b/``EPSILON``). Where *no* bin has both
(``disjoint``), the value is log(1/``EPSILON``) less the entropy of p: it says "apart", and nothing of how far;
:func:`ceiling` is the most that can come out. And equal ensembles do not get 0: with few models many bins are empty by
chance. So beside every figure stands the share of disjoint samples, and that of Retrains against Retrains at the same size,
its floor.

Beside it stands the divergence of the two normal distributions with the ensembles' means and variances,

    Gaussian KL = log(σ_r/σ_u) + (σ_u² + (μ_u − μ_r)²)/(2σ_r²) − ½

which has no ceiling, and whose floor is known (:func:`gaussian_floor`). It presumes margins that are about normal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastntk.auditing.record_figures import GaussianKl, KlomFigures
from fastntk.auditing.roc import Array
from fastntk.auditing.ulira import checked_pair, halves, spread_floor

BINS = 20
CLIP = 100.0
EPSILON = 1e-5
REFERENCE_MODELS = 100
"""Models a side in the reference evaluation."""
ENOUGH = 50
"""With fewer models a side equal ensembles get about 1 nat or more, what a true shift of 1.4 standard deviations gives."""
SATURATED = 0.5
"""From this share of disjoint samples on, a figure is mostly ``EPSILON``'s and not shown as a distance."""


def klom(unlearned: Any, retrained: Any, *, bins: int = BINS) -> Array:
    """KLoM of each sample (n,), from margins (K, n) of both ensembles."""
    p, q = _shares(unlearned, retrained, bins)
    q = np.maximum(q, EPSILON)
    q = q / q.sum(0)
    return np.asarray((np.where(p > 0, p, 0.0) * np.log(np.where(p > 0, p, 1.0) / q)).sum(0))


def disjoint(unlearned: Any, retrained: Any, *, bins: int = BINS) -> Array:
    """Whether no bin holds models of both ensembles, for each sample (n,)."""
    p, q = _shares(unlearned, retrained, bins)
    return np.asarray(((p > 0) & (q > 0)).sum(0) == 0)


def ceiling(*, bins: int = BINS) -> float:
    """The most that can come out: all unlearned models in one bin, no Retrain in it."""
    return math.log((1 + (bins - 1) * EPSILON) / EPSILON)


def gaussian_kl(unlearned: Any, retrained: Any) -> Array:
    """KL divergence of the normal distributions with the ensembles' means and variances, for each sample (n,)."""
    ours, theirs = checked_pair(unlearned, retrained)
    floor = spread_floor(ours, theirs)
    first, second = (np.maximum(part.std(0, ddof=1), floor) for part in (ours, theirs))
    squares = first**2 + (ours.mean(0) - theirs.mean(0)) ** 2
    return np.asarray(np.log(second / first) + squares / (2 * second**2) - 0.5)


def gaussian_floor(size: int) -> float:
    """Mean of the Gaussian KL between two ensembles of ``size`` from one normal distribution.

    With ν = K − 1: E[σ_u²/σ_r²] = ν/(ν − 2), E[(μ_u − μ_r)²/σ_r²] = 2ν/(K(ν − 2)), and the logarithm is 0 in the mean.
    """
    free = size - 1
    return 0.5 * (free / (free - 2) * (1 + 2 / size) - 1) if free > 2 else math.inf


def klom_figures(unlearned: Array, retrained: Array) -> KlomFigures:
    """Figures over samples of one ensemble against another of the same size."""
    return _figures([(unlearned, retrained)])


def klom_by_halves(models: Array, retrained: Array) -> KlomFigures:
    """The same with one half of the models against the other half of the Retrains, and the halves swapped.

    So that Retrain against Retrain, one half against the other, has the size of the others and is their floor.
    """
    (first, second), (third, fourth) = halves(models), halves(retrained)
    return _figures([(first, fourth), (second, third)])


def klom_note(size: int, floor: KlomFigures | None) -> str:
    """What a histogram of so many models a side can tell, in a sentence."""
    if size >= ENOUGH:
        return f"{size} models a side; the reference evaluation has {REFERENCE_MODELS}."
    least = "" if floor is None else f": Retrain against Retrain gets {floor.mean:.1f} of at most {ceiling():.1f} nats"
    return (
        f"{size} models a side in {BINS} bins are too few for the histogram to tell small differences{least}. Read the Gaussian "
        f"divergence beside it; the reference evaluation has {REFERENCE_MODELS} models a side."
    )


def _figures(pairs: list[tuple[Array, Array]]) -> KlomFigures:
    each = np.concatenate([klom(*pair) for pair in pairs])
    normal = np.concatenate([gaussian_kl(*pair) for pair in pairs])
    return KlomFigures(
        mean=float(each.mean()),
        p95=float(np.quantile(each, 0.95)),
        p99=float(np.quantile(each, 0.99)),
        disjoint=float(np.concatenate([disjoint(*pair) for pair in pairs]).mean()),
        gaussian=GaussianKl(mean=float(normal.mean()), median=float(np.median(normal)), p95=float(np.quantile(normal, 0.95))),
    )


def _shares(unlearned: Any, retrained: Any, count: int) -> tuple[Array, Array]:
    """Shares of the models in each bin, (count, n), unlearned and retrained."""
    ours, theirs = (np.clip(part, -CLIP, CLIP) for part in checked_pair(unlearned, retrained))
    low = np.minimum(ours.min(0), theirs.min(0))
    width = np.maximum(np.maximum(ours.max(0), theirs.max(0)) - low, 1e-12) / count
    shares = []
    for values in (ours, theirs):
        place = np.clip(np.floor((values - low) / width).astype(int), 0, count - 1)
        shares.append(np.stack([(place == number).mean(0) for number in range(count)]))
    return shares[0], shares[1]
