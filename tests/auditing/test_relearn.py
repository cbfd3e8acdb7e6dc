"""Relearning: a count that starts at zero, stops at a cap, and leaves the model alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastntk.auditing import relearn
from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.tuning import Subset


def linear(scale: float) -> tuple[nn.Module, Subset, Samples]:
    """A linear model that predicts its inputs, one-hot, with margin ``scale``."""
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(scale * torch.eye(3))
    samples = Samples(torch.eye(3), [0, 1, 2])
    return model, Subset(model, ["weight"]), samples


def test_what_is_known_already_takes_no_epoch() -> None:
    model, subset, samples = linear(10.0)
    result = relearn(model, subset, samples)
    assert (result.epochs, result.censored, len(result.curve)) == (0, False, 1)


def test_epochs_are_the_first_after_which_the_loss_is_below() -> None:
    model, subset, samples = linear(0.0)
    result = relearn(model, subset, samples, lr=0.1)
    assert result.epochs is not None
    assert result.epochs == len(result.curve) - 1 > 3
    assert result.curve[-1] < 0.05 <= min(result.curve[:-1])
    assert torch.equal(model.get_parameter("weight"), torch.zeros(3, 3))
    assert relearn(model, subset, samples, lr=0.1) == result


def test_what_cannot_be_learnt_is_censored() -> None:
    model, subset, _ = linear(0.0)
    # The same input under two labels: no weights get below log 2.
    samples = Samples(torch.ones(2, 3), [0, 1])
    result = relearn(model, subset, samples, cap=7, lr=0.1)
    assert (result.epochs, result.censored, len(result.curve)) == (None, True, 8)
    assert result.to_record().cap == 7


def test_only_the_subset_moves_and_bad_options_are_refused() -> None:
    model, subset, samples = linear(0.0)
    with pytest.raises(InputError, match="no samples to learn again"):
        relearn(model, subset, samples.subset([]))
    with pytest.raises(InputError, match="threshold must be > 0"):
        relearn(model, subset, samples, threshold=0)
