"""Areas and rates against scikit-learn and counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from fastntk.auditing.roc import auc, curve, on_grid, tpr_at
from fastntk.base.errors import InputError

SCORES = st.lists(st.integers(-5, 5), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_area_and_rates_are_those_of_scikit_learn(members: list[int], others: list[int]) -> None:
    truth = np.repeat([1, 0], [len(members), len(others)])
    scores = np.array([*members, *others], dtype=float)
    assert auc(members, others) == pytest.approx(roc_auc_score(truth, scores))
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    ours = curve(members, others)
    np.testing.assert_allclose(ours, (fpr, tpr), atol=1e-12)
    for rate in (0.0, 0.01, 0.3):
        assert tpr_at(members, others, fpr=rate) == pytest.approx(tpr[fpr <= rate + 1e-12].max())


def test_known_values() -> None:
    assert auc([2, 3], [0, 1]) == 1.0
    assert auc([0, 1], [2, 3]) == 0.0
    assert auc([1, 1, 1], [1, 1]) == 0.5
    # One of 200 others lies above the best member: at 1 % that one is allowed, at 0.1 % it is not.
    others = [10.0] + [0.0] * 199
    assert tpr_at([5.0, 5.0], others) == 1.0
    assert tpr_at([5.0, 5.0], others, fpr=0.001) == 0.0


def test_the_grid_is_the_curve_and_its_area() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(1, 1, 400), rng.normal(0, 1, 500)
    curve = on_grid(members, others)
    assert len(curve.fpr) == len(curve.tpr) == 101
    assert list(curve.tpr) == sorted(curve.tpr)
    assert curve.tpr[1] == pytest.approx(tpr_at(members, others), abs=1e-4)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(auc(members, others), abs=0.01)


def test_refusals() -> None:
    with pytest.raises(InputError, match="needs members and non-members; got 0 and 2"):
        auc([], [1, 2])
    with pytest.raises(InputError, match="NaN"):
        auc([float("nan")], [1.0])
