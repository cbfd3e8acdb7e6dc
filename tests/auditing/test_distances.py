"""Distances to Retrain: nothing between equal models, known values between others."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon

from fastntk.auditing.distances import agreement, compare, jensen_shannon, mean_of, tug_of_war, weight_distance
from fastntk.auditing.predictions import Predictions
from fastntk.auditing.record_figures import Distance, Places
from fastntk.base.errors import InputError


def predictions(logits: torch.Tensor, vector: torch.Tensor) -> Predictions:
    labels = {name: torch.zeros(len(logits), dtype=torch.long) for name in ("retain", "forget", "holdout")}
    return Predictions(vector, logits, logits, logits, None, labels)


def test_jensen_shannon_is_scipys_squared_and_within_its_bounds() -> None:
    p, q = torch.randn(7, 4).double().softmax(1), torch.randn(7, 4).double().softmax(1)
    oracle = sum(jensenshannon(a, b) ** 2 for a, b in zip(p.numpy(), q.numpy())) / 7
    assert jensen_shannon(p, q) == pytest.approx(oracle)
    assert jensen_shannon(p, q) == pytest.approx(jensen_shannon(q, p))
    sure = torch.eye(4)
    assert jensen_shannon(sure, sure.roll(1, 1)) == pytest.approx(math.log(2))
    with pytest.raises(InputError, match="compares two"):
        jensen_shannon(p, q[:3])


def test_equal_models_have_no_distance_and_full_recovers_nothing() -> None:
    anchor, retrain = torch.zeros(3), torch.tensor([1.0, 2.0, 2.0])
    full, unlearned = predictions(torch.randn(9, 4), torch.ones(3)), predictions(torch.randn(9, 4), retrain)
    same = compare(unlearned, unlearned, full=full, anchor=anchor)
    zero = Places(forget=0.0, holdout=0.0)
    assert same == Distance(
        total_variation=zero,
        jensen_shannon=zero,
        log_probability=zero,
        agreement=Places(forget=1.0, holdout=1.0),
        weights=0.0,
        recovered=1.0,
        tug_of_war=1.0,
    )
    assert compare(full, unlearned, full=full, anchor=anchor).recovered == 0.0


def test_weights_agreement_and_tug_of_war_by_hand() -> None:
    anchor, retrain = torch.zeros(2), torch.tensor([3.0, 4.0])
    assert weight_distance(torch.tensor([3.0, 3.0]), retrain, anchor) == pytest.approx(0.2)
    assert weight_distance(retrain, anchor, anchor) is None
    assert agreement(torch.eye(3), torch.eye(3)[[0, 2, 1]]) == pytest.approx(1 / 3)
    assert tug_of_war({"forget": 0.1, "retain": 0.9, "holdout": 0.5}, {"forget": 0.0, "retain": 1.0, "holdout": 0.5}) == (
        pytest.approx(0.81)
    )


def test_outputs_that_are_no_numbers_give_no_distance_and_averages_keep_that() -> None:
    logits = torch.randn(5, 3)
    good, bad = predictions(logits, torch.ones(2)), predictions(torch.full_like(logits, torch.nan), torch.ones(2))
    distance = compare(bad, good, full=good, anchor=torch.zeros(2))
    assert distance.total_variation == Places(forget=None, holdout=None)
    assert distance.recovered is None
    same = compare(good, good, full=good, anchor=torch.zeros(2))
    assert mean_of([same, distance]).jensen_shannon.forget is None
    assert mean_of([same, same]) == same
