"""Numbers that come from numpy are taken, and recorded, as plain ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.errors import InputError


def test_a_recipe_takes_numpy_numbers_and_stays_json() -> None:
    recipe = fastntk.Recipe(
        epochs=np.int64(2),  # type: ignore[arg-type]
        lr=np.float32(0.5),  # type: ignore[arg-type]
        weight_decay=np.float32(0.25),  # type: ignore[arg-type]
        momentum=np.float32(0.5),  # type: ignore[arg-type]
        seed=np.int32(3),  # type: ignore[arg-type]
    )
    assert recipe == fastntk.Recipe(epochs=2, lr=0.5, weight_decay=0.25, momentum=0.5, seed=3)
    assert fastntk.Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    with pytest.raises(InputError, match=r"Recipe.epochs must be a whole number, got True"):
        fastntk.Recipe(epochs=np.bool_(True))  # type: ignore[arg-type]


def test_a_model_has_as_many_classes_as_labels_of_numpy_say() -> None:
    labels = np.arange(6) % 3
    model = fastntk.build_model("resnet20", num_classes=labels.max() + 1)
    assert fastntk.predict(model, torch.zeros(1, 3, 8, 8)).shape == (1, 3)


def test_options_of_methods_take_numpy_numbers_and_details_stay_json() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3))
    samples = fastntk.Samples(torch.randn(12, 5), torch.arange(12) % 3)
    run = fastntk.fit(model, fastntk.tune(model, "norm+head"), samples, fastntk.Recipe(epochs=2, batch_size=4), trace=True)
    for method, given, same in (
        ("path-replay", {"depth": np.int64(1), "checkpoints": np.int64(1)}, {"depth": 1, "checkpoints": 1}),
        ("fast-ntk", {"damping": np.float32(0.5), "scale": np.float64(2)}, {"damping": 0.5, "scale": 2.0}),
        ("retrain", {"seed": np.int64(4)}, {"seed": 4}),
    ):
        result = fastntk.unlearn(run, ids=[1], method=method, **given)
        assert torch.equal(result.delta, fastntk.unlearn(run, ids=[1], method=method, **same).delta)
        assert json.loads(json.dumps(result.details))["options"].items() >= same.items()
