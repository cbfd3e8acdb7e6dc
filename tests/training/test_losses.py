"""The gradient by the logits against autograd, and traces from before label smoothing."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.training.loop import batch_loss
from fastntk.training.losses import LossFunction, PathLoss, fingerprint, loss_residual, recognised
from fastntk.training.optimizers import Group
from fastntk.training.recipe import Recipe
from fastntk.training.trace import TraceFacts

FACTS = TraceFacts(
    3, 2, "w", None, (), (), "AdamW", (Group(("w",), {"weight_decay": 0.1}),), 0.0, "cross-entropy", "a", "t", smoothing=0.1
)


WEIGHTED_MARK = (-0.1109219, -0.1327953, 0.07935117, -0.5511665, -0.1070455, -0.1074316, 0.06201058, -0.5870019)
THRESHOLDS: dict[str, LossFunction] = {
    "flooding": lambda o, t: (nn.functional.cross_entropy(o, t) - 0.3).abs() + 0.3,
    "shallow flooding": lambda o, t: (nn.functional.cross_entropy(o, t) - 0.01).abs() + 0.01,
    "a floor": lambda o, t: nn.functional.cross_entropy(o, t).clamp(min=0.5),
    "clamped logits": lambda o, t: nn.functional.cross_entropy(o.clamp(-10, 10), t),
    "easy samples ignored": lambda o, t: (lambda each: (each * (each > 0.05)).mean())(
        nn.functional.cross_entropy(o, t, reduction="none")
    ),
    "hard samples ignored": lambda o, t: (lambda each: (each * (each < 6)).mean())(
        nn.functional.cross_entropy(o, t, reduction="none")
    ),
}
"""A cross-entropy on one side of a threshold."""


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


def test_facts_survive_json() -> None:
    stored = json.loads(json.dumps(FACTS.to_dict()))
    assert TraceFacts.from_dict(stored) == FACTS


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.37])
@pytest.mark.parametrize("soft", [False, True])
def test_a_cross_entropy_is_recognised_by_its_values(smoothing: float, soft: bool) -> None:
    found = recognised(lambda o, t: nn.functional.cross_entropy(o, t, label_smoothing=smoothing), 5, soft=soft)
    assert (found.name, found.function) == ("cross-entropy", None)
    assert found.smoothing == pytest.approx(smoothing, abs=1e-9)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 1, 1], dtype=torch.float64)),
        lambda o, t: 2 * nn.functional.cross_entropy(o, t),
        lambda o, t: nn.functional.multi_margin_loss(o, t),
        lambda o, t: nn.functional.cross_entropy(o / 2, t),
        *THRESHOLDS.values(),
    ],
)
def test_other_functions_stay_their_own(loss: LossFunction) -> None:
    found = recognised(loss, 5)
    assert found.name == "own"
    logits, labels = torch.randn(2, 6, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    kept = torch.tensor([[1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 4], [0, 1 / 4, 1 / 4, 0, 1 / 4, 1 / 4]]).double()
    residual = found.mean_residual(logits, labels, kept, [(0, 4, 0.5), (4, 6, 0.5)])
    for lane in range(2):
        leaf = logits[lane].clone().requires_grad_()
        parts = [torch.arange(0, 4), torch.arange(4, 6)]
        total = sum(0.5 * loss(leaf[part[kept[lane, part] > 0]], labels[part[kept[lane, part] > 0]]) for part in parts)
        (expected,) = torch.autograd.grad(total, leaf)
        torch.testing.assert_close(residual[lane], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_a_threshold_is_seen_with_few_classes_and_many_and_with_soft_targets(name: str, classes: int) -> None:
    assert recognised(THRESHOLDS[name], classes).name == "own"
    assert recognised(THRESHOLDS[name], classes, soft=True).name == "own"


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_a_loss_that_is_asked_in_single_precision_is_recognised(smoothing: float, classes: int) -> None:
    like = torch.zeros(1)
    single = nn.CrossEntropyLoss(weight=torch.ones(classes), label_smoothing=smoothing)
    assert recognised(single, classes, like=like).smoothing == pytest.approx(smoothing, abs=1e-5)
    for loss, name in ((single, "cross-entropy"), (Composed(), "cross-entropy"), (Squared(classes), "squared")):
        assert recognised(loss, classes, like=like).name == name


class Composed(nn.Module):
    """A cross-entropy by softmax and logarithm, which takes single precision alone."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.nll_loss(only_single(outputs).softmax(1).log(), targets)


class Squared(nn.Module):
    """The squared loss, which takes single precision alone."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = nn.functional.one_hot(targets, self.classes) - 1 / self.classes
        return 0.5 * (only_single(outputs) - wanted).square().sum(1).mean()


def only_single(outputs: Tensor) -> Tensor:
    if outputs.dtype != torch.float32:
        raise TypeError("single precision alone")
    return outputs


def test_the_numbers_that_old_traces_keep_of_a_loss_are_the_same() -> None:
    """What they hold of a loss of one's own was written down before losses were asked about thresholds."""
    weighted = PathLoss("own", function=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3], dtype=torch.float64)))
    assert fingerprint(weighted, 3, soft=False) == pytest.approx(WEIGHTED_MARK)


def test_the_squared_loss_is_recognised() -> None:
    assert recognised(lambda o, t: batch_loss(o, t, Recipe(loss="squared")), 4).name == "squared"
    with pytest.raises(InputError, match="got int"):
        recognised(3, 4)
