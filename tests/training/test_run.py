"""What a run that is made by hand takes and refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.errors import InputError

RECIPE = fastntk.Recipe(epochs=2, lr=0.01, batch_size=4)


def trained() -> fastntk.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)).eval()
    samples = fastntk.Samples(torch.randn(12, 6), torch.arange(12) % 3)
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), samples, RECIPE)


def with_a_graph(anchor: torch.Tensor) -> torch.Tensor:
    leaf = anchor.clone().requires_grad_()
    return torch.cat([leaf[:3], leaf[3:]])


@pytest.mark.parametrize("change", [with_a_graph, lambda anchor: anchor.requires_grad_(), torch.Tensor.double])
@pytest.mark.parametrize("method", ["tangent-replay", "fast-ntk", "retrain"])
def test_an_anchor_may_have_a_graph_and_another_precision(change: Any, method: str) -> None:
    run = trained()
    by_hand = fastntk.Run(run.model, run.subset, change(run.anchor.clone()), run.samples, RECIPE)
    made = fastntk.unlearn(by_hand, ids=[1], method=method)
    assert not made.delta.requires_grad
    assert torch.equal(by_hand.anchor, run.anchor)
    assert torch.equal(made.delta, fastntk.unlearn(run, ids=[1], method=method).delta)


def test_the_anchor_is_a_copy_in_the_parameters_dtype() -> None:
    run = trained()
    given = run.anchor.clone()
    by_hand = fastntk.Run(run.model, run.subset, given, run.samples)
    given.zero_()
    assert torch.equal(by_hand.anchor, run.anchor)
    coarse = fastntk.Run(run.model, run.subset, run.anchor.bfloat16(), run.samples)
    assert coarse.anchor.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_an_anchor_of_other_numbers_is_refused(dtype: torch.dtype) -> None:
    run = trained()
    with pytest.raises(InputError, match=rf"as floating-point numbers, got {dtype}.*subset.get\(\) before fine-tuning"):
        dataclasses.replace(run, anchor=run.anchor.to(dtype))


def test_an_anchor_too_large_for_the_parameters_is_refused() -> None:
    run = trained()
    with pytest.raises(InputError, match="NaN or infinite"):
        dataclasses.replace(run, anchor=run.anchor.double() + 1e300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": (torch.zeros(2, 6), [0, 1])}, r"samples must be a Samples, got tuple: give Samples\(inputs, labels\)"),
        ({"recipe": {"epochs": 3}}, r"recipe must be a Recipe, got dict: give Recipe\(epochs=...\)"),
        ({"trace": True}, "trace must be a Trace, got bool"),
        ({"model": None}, "model must be a Module, got NoneType"),
        ({"subset": "norm+head"}, "subset must be a Subset, got str"),
    ],
)
def test_what_is_of_another_kind_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(trained(), **change)
