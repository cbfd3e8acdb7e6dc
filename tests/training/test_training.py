"""The recipe, its batch order and its one descent; the training loop around it; runs made by hand."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.training.fitting import train
from fastntk.training.loop import batch_loss, descend, epoch_batches, learning_rate
from fastntk.training.network import check_samples, eval_mode
from fastntk.training.recipe import Recipe


class Network(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(torch.relu(self.bn(self.conv(x))).mean((2, 3))))


def network(classes: int = 3) -> Network:
    torch.manual_seed(1)
    return Network(classes)


def samples(count: int = 20, classes: int = 3) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(4)
    return fastntk.Samples(torch.randn(count, 3, 8, 8, generator=generator), torch.arange(count) % classes)


def fitted(recipe: Recipe, *, data: fastntk.Samples | None = None, spec: str = "norm+head") -> fastntk.Run:
    model = network()
    return fastntk.fit(model, fastntk.tune(model, spec), data or samples(), recipe)


SHORT = Recipe(epochs=3, batch_size=6)


# Batch order


@pytest.mark.parametrize("batch_size", [1, 6, 7, 64])
def test_an_epoch_is_a_permutation_cut_into_batches(batch_size: int) -> None:
    recipe = Recipe(batch_size=batch_size)
    batches = list(epoch_batches(20, recipe, 0))
    assert torch.equal(torch.cat(batches).sort().values, torch.arange(20))
    assert all(len(batch) == min(batch_size, 20) for batch in batches[:-1])
    assert 0 < len(batches[-1]) <= batch_size


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    orders = {
        (seed, epoch): tuple(torch.cat(list(epoch_batches(50, Recipe(seed=seed), epoch))).tolist())
        for seed, epoch in itertools.product((0, 1), (0, 1))
    }
    assert len(set(orders.values())) == 4
    torch.manual_seed(99)
    other = Recipe(seed=1, lr=1.0, epochs=3, batch_size=7)
    assert tuple(torch.cat(list(epoch_batches(50, other, 1))).tolist()) == orders[1, 1]


def test_dropped_samples_leave_boundaries_and_order() -> None:
    keep = torch.ones(20, dtype=torch.bool)
    keep[[0, 3, 7, 11, 19]] = False
    whole, part = list(epoch_batches(20, SHORT, 2)), list(epoch_batches(20, SHORT, 2, keep=keep))
    assert len(whole) == len(part) == 4
    for a, b in zip(whole, part):
        assert [i for i in a.tolist() if keep[i]] == b.tolist()


def recorded(recipe: Recipe, *, count: int, keep: Tensor | None = None) -> tuple[list[list[int]], Tensor]:
    """Which batches a descent sees, and where it ends for gradients of one."""
    w = torch.zeros(2, requires_grad=True)
    batches: list[list[int]] = []

    def loss(batch: Tensor) -> tuple[Tensor, int]:
        batches.append(batch.tolist())
        return w.sum(), 0

    descend([w], loss, recipe, count=count, keep=keep)
    return batches, w.detach()


def test_an_empty_batch_is_skipped_but_the_schedule_counts_it() -> None:
    recipe = Recipe(epochs=1, batch_size=4, optimizer="sgd", momentum=0.0, lr=1.0, schedule="linear", weight_decay=0.0)
    keep = torch.ones(12, dtype=torch.bool)
    keep[list(epoch_batches(12, recipe, 0))[1]] = False
    batches, w = recorded(recipe, count=12, keep=keep)
    assert len(batches) == 2
    assert w.tolist() == pytest.approx([-(1.0 + 1 / 3)] * 2)


def test_fit_and_a_training_that_keeps_everything_are_the_same() -> None:
    run = fitted(SHORT)
    model = network()
    subset = fastntk.tune(model, "norm+head")
    train(model, subset, samples(), SHORT, keep=torch.ones(20, dtype=torch.bool))
    assert torch.equal(subset.get(), run.subset.get())


def test_only_kept_samples_matter() -> None:
    keep = torch.ones(20, dtype=torch.bool)
    keep[:5] = False
    changed = samples()
    changed.inputs[:5] = 7.0
    ends = []
    for data in (samples(), changed):
        model = network()
        subset = fastntk.tune(model, "norm+head")
        train(model, subset, data, SHORT, keep=keep)
        ends.append(subset.get())
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], fitted(SHORT).subset.get())


# Schedule, decay, loss


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_schedules_fall_from_lr_to_zero(schedule: Any) -> None:
    recipe = Recipe(lr=0.3, schedule=schedule)
    rates = [learning_rate(recipe, step, 10) for step in range(11)]
    assert rates[0] == pytest.approx(0.3)
    assert rates[5] == pytest.approx(0.15)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert all(a > b for a, b in itertools.pairwise(rates))
    assert {learning_rate(Recipe(schedule="constant"), step, 10) for step in range(11)} == {2e-3}


def test_one_step_of_sgd_by_hand() -> None:
    recipe = Recipe(epochs=1, batch_size=20, optimizer="sgd", lr=0.1, weight_decay=0.5, momentum=0.9)
    run = fitted(recipe)
    model = network()
    subset = fastntk.tune(model, "norm+head")
    with eval_mode(model):
        loss = nn.functional.cross_entropy(model(samples().inputs), samples().labels)
        grads = torch.autograd.grad(loss, list(subset.parameters.values()))
    expected = subset.get() - 0.1 * torch.cat([g.reshape(-1) for g in grads])
    torch.testing.assert_close(run.subset.get(), expected)


def test_weight_decay_pulls_towards_the_anchor_not_towards_zero() -> None:
    def run(weight_decay: float) -> tuple[Tensor, Tensor]:
        recipe = Recipe(epochs=2, batch_size=1, optimizer="sgd", lr=0.1, schedule="constant", momentum=0.0,
                        weight_decay=weight_decay)  # fmt: skip
        w = torch.tensor([5.0], requires_grad=True)
        grads = iter([1.0, 0.0])
        descend([w], lambda batch: (next(grads) * w.sum(), 0), recipe, count=1)
        return w.detach(), torch.tensor([5.0])

    # First step: no distance yet, so no pull; second: gradient 0, pull 2·(4.9 − 5).
    torch.testing.assert_close(run(2.0)[0], torch.tensor([4.9 + 0.1 * 2.0 * 0.1]))
    torch.testing.assert_close(run(0.0)[0], torch.tensor([4.9]))


def test_losses_are_means_over_the_batch() -> None:
    outputs, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    torch.testing.assert_close(batch_loss(outputs, labels, Recipe()), nn.functional.cross_entropy(outputs, labels))
    targets = torch.eye(3)[labels] - 1 / 3
    by_hand = sum(0.5 * ((outputs[i] - targets[i]) ** 2).sum() for i in range(5)) / 5
    torch.testing.assert_close(batch_loss(outputs, labels, Recipe(loss="squared")), by_hand)


@pytest.mark.parametrize("change", [{"optimizer": "sgd"}, {"loss": "squared"}, {"schedule": "constant"}])
def test_every_option_of_a_recipe_changes_the_result(change: dict[str, Any]) -> None:
    assert not torch.equal(fitted(SHORT).subset.get(), fitted(dataclasses.replace(SHORT, **change)).subset.get())


# The loop


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    first = fitted(SHORT)
    torch.manual_seed(77)
    again, other = fitted(SHORT), fitted(dataclasses.replace(SHORT, seed=1))
    assert torch.equal(first.subset.get(), again.subset.get())
    assert not torch.equal(first.subset.get(), other.subset.get())


def test_training_learns_and_reports_its_history() -> None:
    run = fitted(Recipe(epochs=30, lr=0.05, batch_size=6))
    assert [entry["epoch"] for entry in run.history] == list(range(1, 31))
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert 0 <= run.history[-1]["accuracy"] <= 1
    json.dumps(run.history)


def test_the_run_records_anchor_recipe_and_data() -> None:
    anchor = fastntk.tune(network(), "norm+head").get()
    run = fitted(SHORT)
    assert torch.equal(run.anchor, anchor)
    assert not torch.equal(run.subset.get(), anchor)
    assert run.recipe == SHORT
    assert run.data.digest() == samples().digest()


def test_no_epochs_change_nothing() -> None:
    run = fitted(Recipe(epochs=0))
    assert torch.equal(run.subset.get(), run.anchor)
    assert run.history == ()


def test_only_the_subset_moves_and_no_gradients_stay() -> None:
    run = fitted(SHORT)
    for (name, before), after in zip(network().state_dict().items(), run.model.state_dict().values()):
        assert torch.equal(before, after) == (name not in run.subset.names), name
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_the_network_stays_in_eval_mode_and_its_modes_come_back() -> None:
    model = network()
    model.train()
    model.bn.eval()
    modes: list[tuple[bool, bool, bool]] = []
    model.register_forward_hook(lambda m, *_: modes.append((m.training, m.bn.training, m.drop.training)))
    run = fastntk.fit(model, fastntk.tune(model, "norm+head"), samples(), SHORT)
    assert set(modes) == {(False, False, False)}
    assert (model.training, model.bn.training, model.drop.training) == (True, False, True)
    assert torch.equal(run.model.bn.running_mean, torch.zeros(4))
    assert int(run.model.bn.num_batches_tracked) == 0


def test_statistics_are_updated_on_request_only_and_dropout_stays_off() -> None:
    model = network().eval()
    modes: set[tuple[bool, bool]] = set()
    model.register_forward_hook(lambda m, *_: modes.add((m.bn.training, m.drop.training)))
    run = fastntk.fit(model, fastntk.tune(model, "norm+head"), samples(), dataclasses.replace(SHORT, bn_stats="update"))
    assert (True, False) in modes
    assert not any(dropout for _, dropout in modes)
    assert run.model.bn.running_mean.abs().sum() > 0
    assert not model.bn.training
    assert run.recipe is not None
    assert run.recipe.bn_stats == "update"


@pytest.mark.parametrize("bn_stats", ["frozen", "update"])
def test_a_diverging_training_says_so_and_restores_the_model(bn_stats: Any) -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    data = samples()
    data.inputs[13, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match=r"became nan in epoch 1 of 3: training diverged.*lr=0\.002"):
        fastntk.fit(model, fastntk.tune(model, "norm+head"), data, dataclasses.replace(SHORT, bn_stats=bn_stats))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: samples(classes=5), r"Labels must be 0…2 \(the model has 3 outputs\); outside are those of 3, 4"),
        (lambda: fastntk.Samples(torch.randn(4, 3, 2, 2), [0, 1, 2, 0]), r"cannot take inputs of shape \(3, 2, 2\).*image size"),
        (lambda: fastntk.Samples(torch.randn(4, 1, 8, 8), [0, 1, 2, 0]), "image size and channels"),
        (lambda: fastntk.Samples(torch.randn(4, 3, 8, 8).double(), [0, 1, 2, 0]), "Inputs are torch.float64.*float32"),
        (lambda: fastntk.Samples(torch.randint(0, 255, (4, 3, 8, 8)), [0, 1, 2, 0]), "cannot take inputs"),
        (lambda: samples().subset([]), "no samples"),
    ],
    ids=["labels", "size", "channels", "dtype", "integers", "empty"],
)  # fmt: skip
def test_data_that_cannot_be_trained_on_is_refused(data: Any, message: str) -> None:
    model = network()
    subset = fastntk.tune(model, "norm+head")
    before = subset.get()
    with pytest.raises(InputError, match=message):
        fastntk.fit(model, subset, data(), SHORT)
    assert torch.equal(subset.get(), before)


def test_check_samples_returns_the_number_of_classes() -> None:
    assert check_samples(network(7), samples()) == 7


def test_predict_is_the_models_eval_output_in_any_batches() -> None:
    model = network()
    model.train()
    whole = fastntk.predict(model, samples().inputs)
    assert model.training
    torch.testing.assert_close(whole, fastntk.predict(model, samples().inputs, batch_size=3))
    torch.testing.assert_close(whole, model.eval()(samples().inputs))
    assert not whole.requires_grad


# Recipe and Run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": -1}, "Recipe.epochs must be ≥ 0, got -1"),
        ({"epochs": 1.5}, "Recipe.epochs must be a whole number, got 1.5"),
        ({"epochs": True}, "Recipe.epochs must be a whole number"),
        ({"lr": 0.0}, "Recipe.lr must be > 0"),
        ({"lr": float("nan")}, "Recipe.lr must be > 0"),
        ({"lr": "fast"}, "Recipe.lr must be a number, got 'fast'"),
        ({"batch_size": 0}, "Recipe.batch_size must be ≥ 1"),
        ({"seed": -3}, "Recipe.seed must be ≥ 0"),
        ({"weight_decay": -1e-3}, "weight_decay must be ≥ 0"),
        ({"momentum": 1.0}, r"momentum in \[0, 1\)"),
        ({"optimizer": "adamw"}, "Recipe.optimizer must be one of adam, sgd; got 'adamw'"),
        ({"schedule": "step"}, "cosine, linear, constant"),
        ({"loss": "mse"}, "cross-entropy, squared"),
        ({"bn_stats": "on"}, "frozen, update"),
    ],
)
def test_recipes_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe(**change)


def test_a_recipe_goes_through_json_and_is_frozen() -> None:
    recipe = Recipe(epochs=7, optimizer="sgd", schedule="linear", seed=3)
    assert Recipe(**json.loads(json.dumps(recipe.to_dict()))) == recipe
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.lr = 1.0  # type: ignore[misc]


def test_a_run_made_by_hand_is_checked() -> None:
    model = network()
    subset = fastntk.tune(model, "head")
    run = fastntk.Run(model, subset, subset.get(), samples())
    assert run.recipe is None
    with pytest.raises(InputError, match=r"anchor must be a tensor of shape \(15,\).*got \(14,\)"):
        fastntk.Run(model, subset, torch.zeros(14), samples())
    with pytest.raises(InputError, match="got list"):
        fastntk.Run(model, subset, [0.0] * 15, samples())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="NaN"):
        fastntk.Run(model, subset, torch.full((15,), torch.nan), samples())
    with pytest.raises(InputError, match="subset belongs to another model"):
        fastntk.Run(network(), subset, subset.get(), samples())
    with pytest.raises(InputError, match="loaded without its data"):
        _ = fastntk.Run(model, subset, subset.get(), None).data


def test_fit_looks_at_its_arguments_before_it_trains() -> None:
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    subset, samples = fastntk.tune(model, "head"), fastntk.Samples(torch.randn(6, 4), torch.arange(6) % 3)
    before = [parameter.clone() for parameter in (*model.parameters(), *other.parameters())]
    for arguments, message in (
        ((other, subset, samples, fastntk.Recipe()), "belongs to another model"),
        ((model, subset, (samples.inputs, samples.labels), fastntk.Recipe()), "samples must be a Samples, got tuple"),
        ((model, subset, samples, {"epochs": 2}), "recipe must be a Recipe, got dict"),
        ((model, "head", samples, fastntk.Recipe()), "subset must be a Subset, got str"),
    ):
        with pytest.raises(InputError, match=message):
            fastntk.fit(*arguments)  # type: ignore[arg-type]
    for trace in (3, 0.5, ["folder"]):
        with pytest.raises(InputError, match="trace must be True"):
            fastntk.fit(model, subset, samples, fastntk.Recipe(), trace=trace)  # type: ignore[arg-type]
    assert all(torch.equal(*pair) for pair in zip(before, (*model.parameters(), *other.parameters())))


def test_a_head_whose_weight_is_computed_is_refused_for_a_trace_with_the_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)))
    subset, samples = fastntk.tune(model, "all"), fastntk.Samples(torch.randn(6, 4), torch.arange(6) % 3)
    with pytest.raises(InputError, match=r"computed from others .*remove_parametrizations"):
        fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=1), trace=True)
