"""Figures against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fastntk.auditing import accuracy, margins, mean_loss, recovered, total_variation
from fastntk.base.errors import InputError

LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 0.0, 0.5]])
LABELS = torch.tensor([0, 1, 2])


def test_accuracy_counts_the_largest_score() -> None:
    assert accuracy(LOGITS, LABELS) == pytest.approx(2 / 3)
    assert accuracy(LOGITS.softmax(1), LABELS) == pytest.approx(2 / 3)


def test_mean_loss_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    assert mean_loss(logits, torch.tensor([0, 1])) == pytest.approx((math.log(2) + math.log(4)) / 2, abs=1e-7)


def test_margin_is_negative_where_the_prediction_is_wrong() -> None:
    assert margins(LOGITS, LABELS).tolist() == [1.0, 3.0, -0.5]


def test_total_variation_by_hand() -> None:
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    q = torch.tensor([[0.0, 1.0], [0.25, 0.75]])
    assert total_variation(p, q) == pytest.approx((1 + 0.25) / 2)
    assert total_variation(p, p) == 0


def test_recovered_is_a_share_of_the_way() -> None:
    assert recovered(1.0, 0.0, 2.0) == 0.5
    assert recovered(0.0, 0.0, 2.0) == 0
    assert recovered(3.0, 0.0, 2.0) == 1.5
    assert recovered(1.0, 2.0, 2.0) is None


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InputError, match="do not sum to 1: apply softmax"):
        total_variation(LOGITS, LOGITS)
    with pytest.raises(InputError, match=r"\(3, 3\) and \(2, 3\)"):
        total_variation(LOGITS.softmax(1), LOGITS[:2].softmax(1))
    with pytest.raises(InputError, match=r"scores \(n, C\) and labels"):
        accuracy(LOGITS, LABELS[:2])
    with pytest.raises(InputError, match="at least one sample"):
        mean_loss(LOGITS[:0], LABELS[:0])
