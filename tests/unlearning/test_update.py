"""The check of a step: on inputs of any kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fastntk


class OfTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 6), nn.LayerNorm(6)
        self.body, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.body(self.norm(self.table(tokens)).mean(1))))


@pytest.mark.parametrize("method", ["fast-ntk", "tangent-replay"])
def test_tokens_have_no_average(method: str) -> None:
    torch.manual_seed(0)
    model = OfTokens()
    samples = fastntk.Samples(torch.randint(20, (12, 5)), torch.arange(12) % 3)
    run = fastntk.fit(model, fastntk.tune(model, "norm+head"), samples, fastntk.Recipe(epochs=2, lr=0.01, batch_size=4))
    result = fastntk.unlearn(run, ids=[1], method=method)
    assert float(result.delta.norm()) > 0
    assert set(result.details["validity"]["error"]) == {"retain", "forget"}
