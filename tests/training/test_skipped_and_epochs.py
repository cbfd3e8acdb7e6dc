"""Loops that skip parameters, or draw samples with replacement: what of their path the recorder keeps, and how it counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler

import fastntk
from fastntk.training.recorder import Recorder

N, CLASSES = 24, 3
LABELS = torch.arange(N) % CLASSES


class Layers(nn.Module):
    """With a parameter that no forward pass uses, as ``mask_token`` of DINOv2."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.unused = nn.Parameter(torch.ones(4))
        self.first, self.norm, self.head = nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.first(x).tanh()))
        return logits


def recorded(
    optimizer: Callable[[Any], torch.optim.Optimizer], *, spec: str = "all", skip: Iterable[int] = (), epochs: int = 3
) -> fastntk.Run:
    """A loop in which the first layer gets no gradient at the steps ``skip``."""
    images = torch.randn(N, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = Layers().double()
    subset = fastntk.tune(model, spec)
    steps = optimizer(subset.parameters.values())
    recorder = fastntk.record(model, subset, steps, loss=nn.functional.cross_entropy)
    for number, batch in enumerate(list(torch.arange(N).split(6)) * epochs):
        with recorder.batch(batch, LABELS[batch]):
            steps.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), LABELS[batch]).backward()
            if number in skip:
                model.first.weight.grad = model.first.bias.grad = None
            steps.step()
    return recorder.finish(fastntk.Samples(images, LABELS))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.2)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def misses(run: fastntk.Run) -> float:
    """By how much the recorded path, walked again as deep as the trace goes, misses the trained weights."""
    depth: Any = "head" if not run.trace.facts.body else 2 if run.trace.facts.left else "all"
    miss: float = fastntk.unlearn(run, ids=["1"], method="path-replay", depth=depth).details["validity"]["replay_miss"]
    return miss


def test_a_parameter_without_gradients_is_not_replayed() -> None:
    with pytest.warns(UserWarning, match=r"1 tuned parameters have no gradient here \(unused\).*as deep as that"):
        run = recorded(adamw)
    assert run.trace.facts.left == ("unused",)
    assert run.trace.facts.body == ("first.weight", "first.bias", "norm.weight", "norm.bias")
    assert misses(run) < 1e-9


def test_nor_is_the_body_where_a_step_passed_a_part_of_it_over() -> None:
    spec = "first.*+norm+head"
    with pytest.warns(UserWarning, match=r"2 tuned parameters have no gradient .*no deeper than the head"):
        run = recorded(adamw, spec=spec, skip=[4])
    assert run.trace.facts.body == ()
    assert run.trace.facts.left == ("first.weight", "first.bias", "norm.weight", "norm.bias")
    assert misses(run) < 1e-9


def test_in_plain_sgd_zeros_are_the_same_and_all_is_kept() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = recorded(sgd, skip=[0, 4])
    assert run.trace.facts.left == ()
    assert misses(run) < 1e-9
    with pytest.warns(UserWarning, match="have no gradient"):
        recorded(lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9), skip=[4])


def passes(recorder: Recorder, model: nn.Module, optimizer: Any, indices: list[int], size: int) -> None:
    """One pass over these samples, as a loader gives them."""
    images = torch.randn(N, 5, generator=torch.Generator().manual_seed(1))
    for batch in torch.tensor(indices).split(size):
        with recorder.batch(batch, LABELS[batch]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), LABELS[batch]).backward()
            optimizer.step()


def begun() -> tuple[Recorder, nn.Module, Any]:
    model = nn.Sequential(nn.Linear(5, CLASSES))
    subset = fastntk.tune(model, "head")
    optimizer = torch.optim.SGD(subset.parameters.values(), lr=0.01)
    return fastntk.record(model, subset, optimizer, loss="cross-entropy"), model, optimizer


def drawn(size: int = 4, *, told: bool) -> Recorder:
    """Ten epochs of samples drawn with replacement."""
    recorder, model, optimizer = begun()
    sampler = RandomSampler(range(N), replacement=True, generator=torch.Generator().manual_seed(0))
    for _ in range(10):
        if told:
            recorder.epoch()
        passes(recorder, model, optimizer, list(sampler), size)
    return recorder


@pytest.mark.parametrize("size", [1, 4, 7])
def test_epochs_of_draws_with_replacement_are_those_that_are_told(size: int) -> None:
    trace = drawn(size, told=True).finish().trace
    assert (trace.epochs, trace.summary()["epochs"], trace.visits) == (10, 10, 10 * N)


def test_otherwise_they_are_counted_by_visits() -> None:
    assert abs(drawn(told=False).finish().trace.epochs - 10) <= 2


def test_a_count_that_is_far_off_is_said() -> None:
    recorder, model, optimizer = begun()
    passes(recorder, model, optimizer, torch.randint(N, (3 * N,), generator=torch.Generator().manual_seed(0)).tolist(), 1)
    with pytest.warns(UserWarning, match=r"5 epochs were noticed, but a sample was seen 3.* times .* Call recorder.epoch\(\)"):
        recorder.finish()


@pytest.mark.parametrize("size", [1, 5, 6])
def test_without_replacement_they_are_noticed(size: int) -> None:
    """Also where the last batch of an epoch is dropped, so that others come each time."""
    recorder, model, optimizer = begun()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(8):
            order = torch.randperm(N, generator=torch.Generator().manual_seed(epoch)).tolist()
            passes(recorder, model, optimizer, order[: N - N % size], size)
        assert recorder.finish().trace.epochs == 8
