"""A linearisation travels: what knows of the run's data still does in a copy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.errors import InputError

WAYS = [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


def small_run() -> fastntk.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)).eval()
    samples = fastntk.Samples(torch.zeros(12, 6), torch.arange(12) % 3)
    samples.inputs.copy_(torch.randn(12, 6))  # torch counts a write, which no copy knows of
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), samples, fastntk.Recipe(epochs=2, lr=0.01, batch_size=4))


@pytest.mark.parametrize("way", WAYS, ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("method", ["tangent-replay", "fast-ntk"])
def test_results_are_copied_and_serve_requests(way: Callable[[Any], Any], method: str) -> None:
    result = fastntk.unlearn(small_run(), ids=[1], method=method)
    twin = way(result)
    assert torch.equal(twin.delta, result.delta)
    assert twin.linearisation.engine.lock is not result.linearisation.engine.lock
    further, expected = (fastntk.unlearn(each, ids=[2], method=method) for each in (twin, result))
    assert torch.equal(further.delta, expected.delta)
    assert further.linearisation is twin.linearisation


@pytest.mark.parametrize("way", WAYS, ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("before", [False, True])
def test_a_copy_knows_that_the_data_was_written_to(way: Callable[[Any], Any], before: bool) -> None:
    result = fastntk.unlearn(small_run(), ids=[1], method="fast-ntk")
    if before:
        result.run.data.inputs.mul_(2)
    twin = way(result)
    if not before:
        twin.run.data.inputs.mul_(2)
    with pytest.raises(InputError, match="other data than the run's"):
        fastntk.unlearn(twin, ids=[2], method="fast-ntk")
