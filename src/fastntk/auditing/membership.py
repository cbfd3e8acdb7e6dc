"""A population attack: can somebody who sees only the model's predictions tell forgotten samples from unseen ones?

Four features of each prediction:

    loss        −log p_y
    confidence  max_c p_c
    entropy     −Σ_c p_c log p_c
    margin      z_y − max_{c≠y} z_c

A logistic regression on them (standardised, both sides weighted to balance) is fitted to tell **forgotten samples** (members)
from **hold-out samples of the classes that occur among them** (non-members). Every sample is scored by regressions that were
fitted without it, in ``FOLDS`` stratified folds, and its score is the mean over ``REPEATS`` draws of the folds. The scores
give the area under the curve and the true-positive rate at 1 % false positives.

A model that never saw the forgotten samples gets 0.5 give or take the standard error, unless hold-out and forgotten samples
differ by themselves: so compare with Retrain's figure, not with 0.5. Where whole classes were forgotten there is no such
attack: it would see how a model treats a class it should not know, not who was in it.

**Noise**, by drawing folds and fitting anew ``RESAMPLES`` times. The standard error of an area is its scatter where there is
nothing to find: which samples are members is drawn at random. The standard error of the *difference* to Retrain's area is its
scatter where both models are the same to the attack: for every sample it is drawn at random which model's prediction is
whose. So it counts what the two attacks share, samples and folds, and what fitting adds. (Hanley and McNeil's formula, for
scores that were not fitted, promises two thirds of the scatter of one area, and nothing of a difference.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from msgspec import UNSET
from torch import Tensor

from fastntk.auditing.metrics import margins
from fastntk.auditing.record_figures import ByFeature, PopulationAttack
from fastntk.auditing.regressions import fit_regressions, standardised
from fastntk.auditing.roc import Array, auc, on_grid, tpr_at, weighted_auc
from fastntk.base.errors import InputError

FEATURES = ("loss", "confidence", "entropy", "margin")
FOLDS = 5
REPEATS = 3
RESAMPLES = 100
LEAST = 10
"""Fewer members or non-members than this give no figure worth reporting."""
_MEMBERS_LOWER = ("loss", "entropy")
_CHUNK = 4_000_000
"""Entries of a matrix (regressions, samples) that are worked on at once."""


def attack_features(logits: Tensor, labels: Tensor) -> Array:
    """Loss, confidence, entropy and margin of each prediction, (n, 4), from logits (n, C)."""
    log_p = logits.double().log_softmax(1)
    loss = -log_p.gather(1, labels[:, None]).squeeze(1)
    p = log_p.exp()
    columns = (loss, p.amax(1), -torch.xlogy(p, p).sum(1), margins(logits, labels))
    return torch.stack(columns, dim=1).cpu().numpy()


def population_attacks(
    features: Mapping[str, tuple[Array, Array]], *, reference: str | None = None, seed: int = 0
) -> dict[str, PopulationAttack]:
    """The attack on several models that are asked about the same samples, each (m, 4) and (k, 4).

    ``reference``: the model from whose area the others' differences get a standard error.
    """
    for members, others in features.values():
        _check(members, others)
    other = features.get(reference) if reference is not None else None
    attacks = {}
    for name, (members, others) in features.items():
        scores = out_of_fold(members, others, seed=seed)
        mine, theirs = scores[: len(members)], scores[len(members) :]
        apart = None if other is None or name == reference else difference_scatter((members, others), other, seed=seed)
        attacks[name] = PopulationAttack(
            auc=auc(mine, theirs),
            auc_standard_error=null_scatter(members, others, seed=seed),
            tpr_at_1pct_fpr=tpr_at(mine, theirs),
            roc=on_grid(mine, theirs),
            by_feature=_by_feature(members, others),
            difference_standard_error=UNSET if apart is None else apart,
        )
    return attacks


def out_of_fold(members: Array, others: Array, *, seed: int) -> Array:
    """Scores (m + k,), members first: means of regressions fitted on other folds."""
    inputs, truth = _inputs(members, others)
    folds = _folds(truth[None], np.random.default_rng(seed))
    return np.asarray(_scores(inputs, truth[None], np.ones((1, len(truth))), folds)[0])


def null_scatter(members: Array, others: Array, *, seed: int) -> float:
    """Standard deviation of the area where members are drawn at random among all samples."""
    inputs, truth = _inputs(members, others)
    rng = np.random.default_rng([seed, 1])
    areas = []
    for count in _batches(len(truth)):
        draws = rng.permuted(np.tile(truth, (count, 1)), axis=1)
        everyone = np.ones_like(draws)
        areas.append(weighted_auc(_scores(inputs, draws, everyone, _folds(draws, rng)), draws, everyone))
    return float(np.concatenate(areas).std(ddof=1))


def difference_scatter(first: tuple[Array, Array], second: tuple[Array, Array], *, seed: int) -> float:
    """Root mean square of the difference of areas where it is drawn, sample by sample, which model's prediction is whose."""
    (inputs, truth), (others, _) = _inputs(*first), _inputs(*second)
    size, rng = len(truth), np.random.default_rng([seed, 2])
    both = np.concatenate([inputs, others])
    squares = []
    for count in _batches(2 * size):
        swaps = (rng.random((count, size)) < 0.5).astype(np.float64)
        folds = np.tile(_folds(np.tile(truth, (count, 1)), rng), 2)
        twice = np.tile(truth, (count, 2))
        pair = [np.concatenate(parts, axis=1) for parts in ((1 - swaps, swaps), (swaps, 1 - swaps))]
        areas = [weighted_auc(_scores(both, twice, present, folds), twice, present) for present in pair]
        squares.append((areas[0] - areas[1]) ** 2)
    return float(np.sqrt(np.concatenate(squares).mean()))


def _batches(size: int) -> list[int]:
    """How many resamples are worked on at once."""
    batch = max(1, _CHUNK // (size * FOLDS * REPEATS))
    return [min(batch, RESAMPLES - start) for start in range(0, RESAMPLES, batch)]


def _scores(inputs: Array, truth: Array, present: Array, folds: Any) -> Array:
    """Out-of-fold scores (B, n), means over repeats; truth (B, n); ``present`` (B, n): 1 or 0; folds (B, R, n)."""
    resamples, repeats, size = folds.shape
    inside = folds[:, :, None, :] == np.arange(FOLDS)[:, None]
    weights = present[:, None, None, :] * ~inside
    half = weights.sum(3, keepdims=True) / 2
    for side in (truth, 1 - truth):
        total = (weights * side[:, None, None, :]).sum(3, keepdims=True)
        weights = weights * np.where(side[:, None, None, :] == 1, half / np.maximum(total, 1.0), 1.0)
    labels = np.broadcast_to(truth[:, None, None, :], weights.shape).reshape(-1, size)
    beta = fit_regressions(inputs, labels, weights.reshape(-1, size))
    values = (beta[:, :-1] @ inputs.T + beta[:, -1:]).reshape(resamples, repeats, FOLDS, size)
    return np.asarray((values * inside).sum(2).mean(1))


def _folds(truth: Array, rng: np.random.Generator) -> Any:
    """The fold of each sample, (B, R, n), for truth (B, n): as equal as can be on either side."""
    folds = np.empty((len(truth), REPEATS, truth.shape[1]), dtype=np.int64)
    for labels, repeats in zip(truth, folds):
        for row in repeats:
            for side in (labels == 1, labels == 0):
                row[side] = rng.permutation(int(side.sum())) % FOLDS
    return folds


def _inputs(members: Array, others: Array) -> tuple[Array, Array]:
    truth = np.repeat([1.0, 0.0], [len(members), len(others)])
    return standardised(np.concatenate([members, others])), truth


def _by_feature(members: Array, others: Array) -> ByFeature:
    areas = {}
    for column, name in enumerate(FEATURES):
        sign = -1.0 if name in _MEMBERS_LOWER else 1.0
        areas[name] = auc(sign * members[:, column], sign * others[:, column])
    return ByFeature(**areas)


def _check(members: Array, others: Array) -> None:
    if min(len(members), len(others)) < LEAST:
        raise InputError(f"The attack needs at least {LEAST} samples on both sides; got {len(members)} and {len(others)}.")
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        raise InputError("The attack's features are not all numbers: the model's outputs are not.")
