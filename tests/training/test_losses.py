"""The gradient by the logits against autograd, and traces from before label smoothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.training.loop import batch_loss
from fastntk.training.losses import loss_residual
from fastntk.training.recipe import Recipe
from fastntk.training.trace import TraceFacts

FACTS = TraceFacts(3, 2, "w", None, (), (), "AdamW", {"weight_decay": 0.1}, 0.0, "cross-entropy", "a", "t", smoothing=0.1)


@pytest.mark.parametrize(("loss", "smoothing"), [("cross-entropy", 0.0), ("cross-entropy", 0.1), ("squared", 0.0)])
@pytest.mark.parametrize("lanes", [(), (4,), (2, 3)])
def test_the_residual_is_the_gradient_by_the_logits(loss: str, smoothing: float, lanes: tuple[int, ...]) -> None:
    logits = torch.randn(*lanes, 6, 5, dtype=torch.float64)
    labels = torch.tensor([0, 4, 2, 2, 1, 3])

    def gradient(outputs: Tensor) -> Tensor:
        outputs = outputs.clone().requires_grad_()
        if loss == "cross-entropy":
            value = nn.functional.cross_entropy(outputs, labels, label_smoothing=smoothing)
        else:
            value = batch_loss(outputs, labels, Recipe(loss="squared"))
        (grad,) = torch.autograd.grad(value * len(labels), outputs)
        return grad

    expected = torch.stack([gradient(each) for each in logits.reshape(-1, 6, 5)]).view_as(logits)
    before = logits.clone()
    torch.testing.assert_close(loss_residual(logits, labels, loss, smoothing=smoothing), expected, rtol=0, atol=1e-12)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("loss", "smoothing", "message"),
    [
        ("hinge", 0.0, "'hinge' .* not known"),
        ("squared", 0.1, "this trace has 0.1 with 'squared'"),
        ("cross-entropy", 2, "from 0 to 1"),
    ],
)
def test_other_losses_are_refused(loss: str, smoothing: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loss_residual(torch.zeros(2, 3), torch.tensor([0, 1]), loss, smoothing=smoothing)


def test_a_loss_of_a_batch_smooths_its_labels() -> None:
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = nn.functional.cross_entropy(outputs, labels, label_smoothing=0.2)
    assert torch.equal(batch_loss(outputs, labels, Recipe(), smoothing=0.2), expected)


def test_facts_without_smoothing_are_of_plain_labels() -> None:
    stored = FACTS.to_dict()
    assert TraceFacts.from_dict(stored) == FACTS
    del stored["smoothing"]
    assert TraceFacts.from_dict(stored).smoothing == 0
