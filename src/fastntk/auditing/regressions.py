"""Many small logistic regressions at once: the same inputs, other weights and labels. What an attack's folds and draws need.

For weights s (n,) of the samples, inputs x (n, f) and truth y ∈ {0, 1}, each regression minimises

    Σᵢ sᵢ log(1 + exp(−(2yᵢ − 1)(bᵀxᵢ + c))) + ½‖b‖²

by Newton's method, P of them together: an iteration is two matrix products, (P, n) with (n, …). The intercept c is not penalised,
as in scikit-learn, whose regression the tests compare with.
"""

from __future__ import annotations

import numpy as np

from fastntk.auditing.roc import Array

STEPS = 50
LONGEST = 5.0
"""Largest change of a coefficient in one step: a full Newton step from far away may overshoot."""
ENOUGH = 1e-6


def fit_regressions(inputs: Array, truth: Array, weights: Array) -> Array:
    """Coefficients (P, f + 1), the intercept last, for inputs (n, f), truth (P, n) and weights (P, n)."""
    design = np.column_stack([inputs, np.ones(len(inputs))])
    width = design.shape[1]
    products = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    penalty = np.diag([1.0] * (width - 1) + [1e-9])
    beta = np.zeros((len(weights), width))
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(beta @ design.T, -500, 500)))
        gradient = (weights * (p - truth)) @ design + beta @ penalty
        hessian = ((weights * p * (1 - p)) @ products).reshape(-1, width, width) + penalty
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        step *= np.minimum(1.0, LONGEST / np.maximum(np.abs(step).max(1, keepdims=True), 1e-300))
        beta -= step
        if np.abs(step).max() < ENOUGH:
            break
    return beta


def standardised(inputs: Array) -> Array:
    """Inputs (n, f) with mean 0 and standard deviation 1 over all samples; constant ones stay 0."""
    scale = inputs.std(0)
    return np.asarray((inputs - inputs.mean(0)) / np.where(scale > 0, scale, 1.0))
