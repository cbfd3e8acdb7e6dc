"""A population attack: can somebody who sees only the model's predictions tell forgotten samples from unseen ones?

Four features of each prediction:

    loss        −log p_y
    confidence  max_c p_c
    entropy     −Σ_c p_c log p_c
    margin      z_y − max_{c≠y} z_c

A logistic regression on them (standardised, classes weighted to balance) is fitted to tell **forgotten samples** (members) from
**hold-out samples of the classes that occur among them** (non-members). Every sample is scored by a regression that was fitted
without it (stratified folds), and the scores give the area under the curve and the true-positive rate at 1 % false positives.

A model that never saw the forgotten samples gets 0.5 give or take the standard error, unless hold-out and forgotten samples
differ by themselves: so compare with Retrain's figure, not with 0.5. Where a whole class was forgotten, the attack sees only how
the model treats that class.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastntk.auditing.metrics import margins
from fastntk.auditing.record_figures import ByFeature, PopulationAttack
from fastntk.auditing.roc import Array, auc, summary
from fastntk.base.errors import InputError

FEATURES = ("loss", "confidence", "entropy", "margin")
FOLDS = 5
LEAST = 10
"""Fewer members or non-members than this give no figure worth reporting."""
_MEMBERS_LOWER = ("loss", "entropy")


def attack_features(logits: Tensor, labels: Tensor) -> Array:
    """Loss, confidence, entropy and margin of each prediction, (n, 4), from logits (n, C)."""
    log_p = logits.double().log_softmax(1)
    loss = -log_p.gather(1, labels[:, None]).squeeze(1)
    p = log_p.exp()
    columns = (loss, p.amax(1), -torch.xlogy(p, p).sum(1), margins(logits, labels))
    return torch.stack(columns, dim=1).cpu().numpy()


def population_attack(members: Array, others: Array, *, seed: int = 0) -> PopulationAttack:
    """The attack on features (m, 4) of forgotten and (k, 4) of unseen samples."""
    if min(len(members), len(others)) < LEAST:
        raise InputError(f"The attack needs at least {LEAST} samples on both sides; got {len(members)} and {len(others)}.")
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        raise InputError("The attack's features are not all numbers: the model's outputs are not.")
    scores = out_of_fold(members, others, seed=seed)
    by_feature = {}
    for column, name in enumerate(FEATURES):
        sign = -1.0 if name in _MEMBERS_LOWER else 1.0
        by_feature[name] = auc(sign * members[:, column], sign * others[:, column])
    attack = summary(scores[: len(members)], scores[len(members) :])
    return PopulationAttack(
        auc=attack.auc,
        auc_standard_error=attack.auc_standard_error,
        tpr_at_1pct_fpr=attack.tpr_at_1pct_fpr,
        roc=attack.roc,
        by_feature=ByFeature(**by_feature),
    )


def out_of_fold(members: Array, others: Array, *, seed: int) -> Array:
    """Scores (m + k,), members first, each from a regression fitted on the other folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    inputs = np.concatenate([members, others])
    truth = np.repeat([1, 0], [len(members), len(others)])
    scores = np.empty(len(inputs))
    for rest, fold in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(inputs, truth):
        model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
        model.fit(inputs[rest], truth[rest])
        scores[fold] = model.decision_function(inputs[fold])
    return scores
