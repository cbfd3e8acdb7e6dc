"""The one step against the optimiser called by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastntk.base.errors import DivergedError
from fastntk.training.step import Stepper


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in ((3, 2), (4,))]


def loss_of(values: list[Tensor]) -> Tensor:
    return sum(((value - 1) ** 4).sum() for value in values)  # type: ignore[return-value]


def adam(values: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(values, lr=0.1)


def test_a_plain_step_is_the_optimisers() -> None:
    ours, theirs = parameters(), parameters()
    stepper, optimizer = Stepper(ours, adam(ours)), adam(theirs)
    for _ in range(5):
        loss = loss_of(theirs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert stepper.step(loss_of(ours)) == loss.item()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    assert stepper.taken == 5


def test_penalty_mask_and_rate_by_hand() -> None:
    (w,), anchor = parameters()[:1], torch.full((3, 2), 0.5)
    start, mask = w.detach().clone(), torch.arange(6).reshape(3, 2) % 2 == 0
    stepper = Stepper(
        [w],
        torch.optim.SGD([w], lr=99.0),
        rate=lambda step: 0.1 / (1 + step),
        anchor=[anchor],
        weight_decay=0.3,
        mask=[mask],
    )
    stepper.skip()  # the second rate, 0.05, is the first step's
    stepper.step(2 * w.sum())
    expected = torch.where(mask, start - 0.05 * (2 + 0.3 * (start - anchor)), start)
    torch.testing.assert_close(w.detach(), expected)
    before = w.detach().clone()
    stepper.step(2 * w.sum(), penalty=False)
    torch.testing.assert_close(w.detach(), torch.where(mask, before - 0.1 / 3 * 2, before))
    assert stepper.taken == 3


def test_without_an_anchor_there_is_no_penalty() -> None:
    w = torch.tensor([2.0], requires_grad=True)
    Stepper([w], torch.optim.SGD([w], lr=0.1), weight_decay=5.0).step(w.sum())
    torch.testing.assert_close(w.detach(), torch.tensor([1.9]))


def test_a_gradient_of_other_tensors() -> None:
    inner = parameters()
    flat = torch.cat([value.detach().reshape(-1) for value in inner])
    ours = parameters()
    Stepper(ours, adam(ours)).step(loss_of(ours))
    gradient = lambda loss: [torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, inner)])]
    Stepper([flat], adam([flat]), gradient=gradient).step(loss_of(inner))
    assert torch.equal(flat, torch.cat([value.detach().reshape(-1) for value in ours]))


def test_a_loss_that_is_not_finite_is_refused_before_anything_moves() -> None:
    w = torch.tensor([2.0], requires_grad=True)
    stepper = Stepper([w], adam([w]), diverged=lambda value: f"the loss became {value}")
    with pytest.raises(DivergedError, match="the loss became inf"):
        stepper.step(w.sum() / 0)
    assert w.item() == 2.0
    assert w.grad is None
    assert stepper.taken == 0
    # Whoever does not ask for the check gets none.
    Stepper([w], adam([w])).step(w.sum() * torch.nan)
    assert w.isnan().all()
