"""Which layer is trained as the head: the one that makes the logits, or an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError

RECIPE = fastntk.Recipe(epochs=1, batch_size=4)


class Own(nn.Module):
    """A classifier with another linear layer after its head, unused or used before it."""

    def __init__(self, *, first: bool = False) -> None:
        super().__init__()
        if first:
            self.out = nn.Linear(8, 3)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU())
        if not first:
            self.out, self.aux = nn.Linear(8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


class Deeper(nn.Module):
    """Its ``fc`` is a hidden layer; with ``zeros`` the last linear layer is one that adds nothing yet."""

    def __init__(self, *, zeros: bool = False) -> None:
        super().__init__()
        self.fc, self.out, self.added = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(3, 3)
        if zeros:
            self.fc, self.added = nn.Identity(), nn.Linear(6, 3)  # type: ignore[assignment]
            self.out = nn.Linear(6, 3)
            nn.init.zeros_(self.added.weight)
            nn.init.zeros_(self.added.bias)
        self.zeros = zeros

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(x).relu()
        return self.out(hidden) + self.added(hidden) if self.zeros else self.out(hidden)


class Cosine(nn.Module):
    """Uses the weight of its head without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8)), nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.body(x), nn.functional.normalize(self.out.weight))


def samples() -> fastntk.Samples:
    return fastntk.Samples(torch.randn(12, 6), torch.arange(12) % 3)


@pytest.mark.parametrize(("first", "taken"), [(False, "aux"), (True, r"body\.0")])
def test_a_layer_that_does_not_make_the_logits_is_not_trained_as_the_head(first: bool, taken: str) -> None:
    model = Own(first=first)
    with pytest.raises(InputError, match=rf"tune took {taken} for the head, but out makes the logits"):
        fastntk.fit(model, fastntk.tune(model, "norm+head"), samples(), RECIPE)
    named = fastntk.fit(model, fastntk.tune(model, "norm+out.*"), samples(), RECIPE)
    assert not torch.equal(named.subset.get(), named.anchor)


@pytest.mark.parametrize("spec", ["all", "fc.*+out.*", "added.*+out.*"])
def test_where_the_layer_that_makes_them_is_tuned_as_well_the_training_goes_on(spec: str) -> None:
    model = Deeper()
    run = fastntk.fit(model, fastntk.tune(model, spec), samples(), RECIPE)
    assert not torch.equal(run.subset.get(), run.anchor)


def test_a_zero_layer_beside_the_head_is_not_taken_for_a_new_head() -> None:
    model = Deeper(zeros=True)
    run = fastntk.fit(model, fastntk.tune(model, "out.*"), samples(), RECIPE)
    assert not torch.equal(run.subset.get(), run.anchor)


def test_nor_is_a_layer_probed_that_does_not_make_them() -> None:
    model = Own(first=True)
    run = fastntk.fit(model, fastntk.tune(model, "norm+out.*"), samples(), RECIPE)
    result = fastntk.unlearn(run, ids=["0"], method="retrain")
    record = fastntk.audit(run, result, holdout=samples(), reference=None, relearn_cap=1)
    assert record["probes"]["linear_probe"] is None


@pytest.mark.parametrize("model", [Cosine(), nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3), nn.Softplus())])
def test_models_that_go_on_after_the_head_or_do_not_call_it_are_trained(model: nn.Module) -> None:
    run = fastntk.fit(model, fastntk.tune(model, "norm+head"), samples(), RECIPE)
    assert not torch.equal(run.subset.get(), run.anchor)


def test_a_new_head_of_zeros_has_to_be_tuned() -> None:
    model = fastntk.build_model("resnet20", num_classes=3)
    data = fastntk.Samples(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(InputError, match=r"The head \(fc\) is all zero and not tuned: .*tune\(model, '…\+head'\)"):
        fastntk.fit(model, fastntk.tune(model, "norm"), data, RECIPE)
