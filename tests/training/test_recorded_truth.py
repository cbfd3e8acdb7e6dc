"""Loops whose record would mislead: inferred where the record shows it, said or refused where it does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError

EPOCHS, CLASSES = 6, 5


def points() -> fastntk.Samples:
    draw = torch.Generator().manual_seed(3)
    labels = torch.arange(24) % CLASSES
    return fastntk.Samples(torch.randn(24, 6, generator=draw, dtype=torch.float64) + F.one_hot(labels, 6), labels)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def batches(epoch: int, keep: Tensor) -> list[list[Tensor]]:
    """Steps of an epoch, each of two batches of unequal size, less those that are not kept."""
    order = torch.randperm(24, generator=torch.Generator().manual_seed(epoch))
    parts = order.split([7, 7, 7, 3])
    return [[part[keep[part]] for part in pair] for pair in (parts[:2], parts[2:])]


def trained(
    keep: Tensor | None = None,
    *,
    by_size: bool = True,
    average: Literal["batch", "step"] | None = None,
    before_step: Callable[[list[nn.Parameter]], object] = lambda parameters: None,
    after_epoch: Callable[[nn.Module, int], object] = lambda network, epoch: None,
) -> Any:
    """The run of a recorded loop; with ``keep``, the tuned vector of the same loop without the others."""
    network, samples = model(), points()
    subset = fastntk.tune(network, "head")
    parameters = list(subset.parameters.values())
    optimizer = torch.optim.SGD(parameters, lr=0.3, momentum=0.5)
    recorder = None if keep is not None else fastntk.record(network, subset, optimizer, loss=F.cross_entropy, average=average)
    everyone = torch.ones(24, dtype=torch.bool) if keep is None else keep
    for epoch in range(EPOCHS):
        for parts in batches(epoch, everyone):
            optimizer.zero_grad()
            total = sum(len(part) for part in parts)
            for number, part in enumerate(parts):
                if len(part) == 0:
                    continue
                share = len(part) / total if by_size else 0.5

                def step(part: Tensor = part, share: float = share, last: bool = number == 1) -> None:
                    (share * F.cross_entropy(network(samples.inputs[part]), samples.labels[part])).backward()
                    if last:
                        before_step(parameters)
                        optimizer.step()

                if recorder is None:
                    step()
                else:
                    with recorder.batch(part, samples.labels[part]):
                        step()
        after_epoch(network, epoch)
    return subset.get() if recorder is None else recorder.finish(samples)


@pytest.mark.parametrize("by_size", [True, False])
def test_what_a_step_is_the_mean_of_is_seen_from_unequal_batches(by_size: bool) -> None:
    run = trained(by_size=by_size)
    assert run.trace.facts.average == ("step" if by_size else "batch")
    for gone in ([0], [1, 5, 8]):
        keep = torch.ones(24, dtype=torch.bool)
        keep[gone] = False
        expected = trained(keep, by_size=by_size)
        torch.testing.assert_close(fastntk.unlearn(run, ids=gone, depth="head").subset.get(), expected, rtol=1e-9, atol=1e-10)


def test_an_average_that_the_batches_contradict_is_said() -> None:
    with pytest.warns(UserWarning, match="average='batch' was given, but batches of unequal size counted by their size"):
        run = trained(average="batch")
    assert run.trace.facts.average == "batch"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(average="step")


@pytest.mark.parametrize("limit", [0.02, 0.05, 0.1, 0.2])
def test_clipping_by_value_is_refused_or_said(limit: float) -> None:
    """However few of the steps it touches, as long as it matters; where none is touched there is nothing to say."""
    touched = []

    def clip(parameters: list[nn.Parameter]) -> None:
        touched.append(any(float(each.grad.abs().max()) > limit for each in parameters if each.grad is not None))
        torch.nn.utils.clip_grad_value_(parameters, limit)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run = trained(before_step=clip)
        except InputError as error:
            assert "something else" in str(error)  # noqa: PT017
            return
    if any("clipped by value" in str(each.message) for each in said):
        return
    keep = torch.ones(24, dtype=torch.bool)
    keep[[1, 5]] = False
    expected, start = trained(keep, before_step=clip), run.subset.get()
    replayed = fastntk.unlearn(run, ids=[1, 5], depth="head").subset.get()
    assert float((replayed - expected).norm() / (start - expected).norm()) < 0.15
    assert sum(touched) < len(touched) / 4


def test_weights_written_through_data_are_seen() -> None:
    def at_the_end(network: nn.Module, epoch: int) -> None:
        if epoch == EPOCHS - 1:
            network[2].weight.data.mul_(0.9)  # type: ignore[index, union-attr, operator]

    with pytest.raises(InputError, match="changed after the last recorded step"):
        trained(after_epoch=at_the_end)

    def on_the_way(network: nn.Module, epoch: int) -> None:
        network[2].weight.data = network[2].weight.data.clamp(-0.05, 0.05)  # type: ignore[index, union-attr, operator]

    with (
        pytest.warns(UserWarning, match="changed since the last recorded step"),
        pytest.raises(InputError, match="changed since the last recorded step"),
    ):
        trained(after_epoch=on_the_way)


@pytest.mark.parametrize(("mixed", "told"), [(0.6, True), (1.0, False)])
def test_mixed_images_are_said_to_keep_their_share(mixed: float, told: bool) -> None:
    network, samples = model(), points()
    subset = fastntk.tune(network, "head")
    optimizer = torch.optim.SGD(subset.parameters.values(), lr=0.3)
    recorder = fastntk.record(network, subset, optimizer, loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    soft = F.one_hot(samples.labels, CLASSES).double()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            partner = torch.arange(24).roll(1)
            targets = mixed * soft + (1 - mixed) * soft[partner]
            with recorder.batch(torch.arange(24), targets):
                optimizer.zero_grad()
                inputs = mixed * samples.inputs + (1 - mixed) * samples.inputs[partner]
                nn.CrossEntropyLoss(label_smoothing=0.1)(network(inputs), targets).backward()
                optimizer.step()
    found = [each for each in said if "mixup, CutMix" in str(each.message)]
    assert len(found) == told
    assert recorder.finish(samples).trace is not None
