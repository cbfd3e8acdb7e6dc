"""Forward passes: what is refused before any."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.errors import InputError


def test_predictions_of_what_is_no_tensor_are_refused() -> None:
    model, inputs = nn.Linear(6, 3), torch.randn(4, 6)
    with pytest.raises(InputError, match=r"not ndarray: torch.as_tensor\(inputs\)"):
        fastntk.predict(model, inputs.numpy())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"not Samples: give samples.inputs"):
        fastntk.predict(model, fastntk.Samples(inputs, [0, 1, 2, 0]))  # type: ignore[arg-type]
    assert fastntk.predict(model, inputs).shape == (4, 3)


def test_weights_made_in_inference_mode_are_refused_early() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)).eval()
    samples = fastntk.Samples(torch.randn(4, 6), [0, 1, 2, 0])
    subset = fastntk.Subset(model, ["1.weight", "1.bias"])
    message = r"got \d that were made under torch.inference_mode\(\).*copy.deepcopy\(model\)"
    for use in (
        lambda: fastntk.tune(model, "head"),
        lambda: fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=1)),
        lambda: fastntk.jacobian(model, subset, samples.inputs),
    ):
        with pytest.raises(InputError, match=message):
            use()


def test_a_table_that_a_layer_made_in_inference_mode_is_no_obstacle() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).eval()
    with torch.inference_mode():
        model.register_buffer("table", torch.ones(2))
        inputs = torch.randn(12, 6)
    run = fastntk.fit(
        model, fastntk.tune(model, "all"), fastntk.Samples(inputs, torch.arange(12) % 3), fastntk.Recipe(epochs=1), trace=True
    )
    assert torch.isfinite(fastntk.jacobian(model.eval(), run.subset, inputs)).all()
    for options in ({"depth": "all"}, {"method": "fast-ntk"}, {"method": "tangent-replay"}):
        assert torch.isfinite(fastntk.unlearn(run, ids=[1], **options).delta).all()
