"""Probes: what features give by themselves, and models drawn anew."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import fastntk
from fastntk.auditing.predictions import observe
from fastntk.auditing.probes import linear_probe, random_model
from fastntk.training.network import predict


def parts(separable: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    features, labels = {}, {}
    for name, count in (("retain", 60), ("forget", 20), ("holdout", 200)):
        labels[name] = torch.arange(count) % 3
        features[name] = torch.randn(count, 5) + (4 * torch.eye(5)[labels[name]] if separable else 0)
    return features, labels


def test_a_probe_reads_what_is_linear_and_guesses_the_rest() -> None:
    assert all(value > 0.9 for value in dataclasses.astuple(linear_probe(*parts(True))))
    assert linear_probe(*parts(False)).holdout == pytest.approx(1 / 3, abs=0.12)


def test_scale_and_shift_of_a_feature_do_not_matter() -> None:
    features, labels = parts(True)
    moved = {name: 1e3 * value + 7 for name, value in features.items()}
    assert linear_probe(moved, labels) == linear_probe(features, labels)


def test_features_that_are_no_numbers_give_no_probe() -> None:
    features, labels = parts(True)
    features["holdout"][0, 0] = torch.inf
    assert linear_probe(features, labels) is None


def test_the_head_sees_exactly_the_observed_features(toy) -> None:
    model, inputs = toy.run.model, toy.holdout.inputs
    model.train()
    try:
        outputs, features = observe(model, inputs, title="")
        assert model.training
    finally:
        model.eval()
    torch.testing.assert_close(model[3](features), outputs)
    assert torch.equal(outputs, predict(model, inputs))
    assert not model[3]._forward_pre_hooks


def test_a_model_without_linear_head_has_no_features() -> None:
    assert observe(nn.Flatten(), torch.randn(4, 3), title="")[1] is None


def test_random_models_keep_the_architecture_and_nothing_else(toy) -> None:
    model, origin = random_model(toy.run.model, seed=1)
    assert "reset_parameters" in origin
    assert "not made by build_model" in origin
    again, _ = random_model(toy.run.model, seed=1)
    for first, second, ours in zip(model.parameters(), again.parameters(), toy.run.model.parameters()):
        assert torch.equal(first, second)
        assert first.shape == ours.shape
    assert not torch.equal(model[0].weight, toy.run.model[0].weight)


def test_a_known_model_is_built_anew() -> None:
    model = fastntk.build_model("resnet20", num_classes=4, weights="cifar100")
    untrained, origin = random_model(model, seed=5)
    assert origin == "built anew by name"
    assert untrained.state_dict().keys() == model.state_dict().keys()
    assert not torch.equal(untrained.get_parameter("conv1.weight"), model.get_parameter("conv1.weight"))
