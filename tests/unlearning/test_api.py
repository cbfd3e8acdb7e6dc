"""What is given in place of a run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.errors import InputError


def test_what_is_no_run_is_refused() -> None:
    model = nn.Linear(6, 3)
    for use in (fastntk.unlearn, fastntk.plan):
        with pytest.raises(InputError, match=r"Expected a Run.*got Linear: make one of a model by Run\(model, subset, anchor"):
            use(model, ids=[1])  # type: ignore[arg-type]
    samples = fastntk.Samples(torch.randn(6, 6), torch.arange(6) % 3)
    run = fastntk.fit(model, fastntk.tune(model, "head"), samples, fastntk.Recipe(epochs=1), trace=True)
    with pytest.raises(InputError, match=r"got Unlearned: take result.as_run\(\)"):
        fastntk.plan(fastntk.unlearn(run, ids=[1]), ids=[2])  # type: ignore[arg-type]
