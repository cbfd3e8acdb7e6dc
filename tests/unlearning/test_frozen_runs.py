"""A run whose model was frozen after training, or a caller that switched gradients off: as code that serves models does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import fastntk
from fastntk.unlearning.registry import METHODS


def trained() -> fastntk.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 4)).double()
    samples = fastntk.Samples(torch.randn(24, 6, dtype=torch.float64), torch.arange(24) % 4)
    recipe = fastntk.Recipe(epochs=2, lr=0.02, batch_size=8)
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), samples, recipe, trace=True)


@cache
def usual(method: str) -> Tensor:
    """Δ of the run as ``fit`` leaves it, with gradients on."""
    return fastntk.unlearn(trained(), ids=[1, 2], method=method).delta


def flags(run: fastntk.Run) -> list[bool]:
    return [parameter.requires_grad for parameter in run.model.parameters()]


def freeze_all(run: fastntk.Run) -> None:
    run.model.requires_grad_(False)


def freeze_head(run: fastntk.Run) -> None:
    fastntk.tune(run.model, "norm")  # chosen anew, for another training


def leave(run: fastntk.Run) -> None:
    """Change nothing."""


CALLERS: dict[str, tuple[Callable[[fastntk.Run], None], Callable[[], AbstractContextManager[object]]]] = {
    "frozen": (freeze_all, nullcontext),
    "head frozen": (freeze_head, nullcontext),
    "no_grad": (leave, torch.no_grad),
    "inference_mode": (leave, torch.inference_mode),
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_does_the_same_and_flags_stay(method: str, caller: str) -> None:
    change, mode = CALLERS[caller]
    expected = usual(method)
    run = trained()
    change(run)
    before = flags(run)
    with mode():
        result = fastntk.unlearn(run, ids=[1, 2], method=method)
    assert torch.equal(result.delta, expected)
    assert flags(run) == before


@pytest.mark.parametrize("caller", CALLERS)
def test_plan_audit_rows_and_a_further_request(caller: str) -> None:
    change, mode = CALLERS[caller]
    run = trained()
    rows = fastntk.jacobian(run.model.eval(), run.subset, run.data.inputs)
    change(run)
    before = flags(run)
    holdout = fastntk.Samples(torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 4, [f"new-{k}" for k in range(8)])
    with mode():
        assert fastntk.plan(run, ids=[1]).retrain_seconds
        assert torch.equal(fastntk.jacobian(run.model, run.subset, run.data.inputs), rows)
        result = fastntk.unlearn(run, ids=[1], depth="all")
        assert len(fastntk.removals(run, [[1], [2]], depth="all")) == 2
        further = fastntk.unlearn(result.as_run(), ids=[2], method="retrain")
        record = fastntk.audit(run, result, holdout=holdout, reference="retrain", relearn_cap=2)
    assert further.delta.abs().max() > 0
    assert set(record["relearn"]) == {"full", "unlearned", "retrain"}
    assert flags(run) == before


def test_fit_trains_a_subset_that_was_frozen() -> None:
    run = trained()
    expected = run.subset.get()
    run.subset.set(run.anchor)
    run.model.requires_grad_(False)
    fastntk.fit(run.model, run.subset, run.data, fastntk.Recipe(epochs=2, lr=0.02, batch_size=8))
    assert torch.equal(run.subset.get(), expected)
    assert not any(flags(run))
