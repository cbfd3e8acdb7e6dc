"""Images given later to a run that was recorded without them: pixels are not in the record, features are."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import fastntk
from fastntk.unlearning.path_replay.checking import images_match

N = 32
LABELS = torch.arange(N) % 2


def recorded(images: torch.Tensor, noise: float) -> fastntk.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2)).double()
    subset = fastntk.tune(model, "norm+head")
    optimizer = torch.optim.AdamW(subset.parameters.values(), lr=0.01)
    recorder = fastntk.record(model, subset, optimizer, loss="cross-entropy")
    for batch in list(torch.arange(N).split(8)) * 4:
        with recorder.batch(batch, LABELS[batch]):
            optimizer.zero_grad()
            seen = images[batch] + noise * torch.randn(len(batch), 6, dtype=torch.float64)
            nn.functional.cross_entropy(model(seen), LABELS[batch]).backward()
            optimizer.step()
    return recorder.finish()


def matched(run: fastntk.Run, images: torch.Tensor) -> Any:
    given = dataclasses.replace(run, samples=fastntk.Samples(images, LABELS))
    return fastntk.unlearn(given, ids=["3"], method="path-replay", depth=1).details["validity"]["images_match"]


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_features_tell_other_images_from_the_recorded_ones(noise: float) -> None:
    torch.manual_seed(1)
    images = torch.randn(N, 6, dtype=torch.float64)
    run = recorded(images, noise)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert matched(run, images) > 0.95
    others = {"swapped within their class": images.roll(2, 0), "others": torch.randn(N, 6, dtype=torch.float64)}
    for wrong in others.values():
        with pytest.warns(UserWarning, match="may be other images under the same ids"):
            assert matched(run, wrong) < 0.65


def test_a_share_that_chance_does_not_give_is_no_warning() -> None:
    recorded, labels = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(64)
    mostly = recorded.clone()
    mostly[:20] = recorded[:20].roll(1, 0)  # 44 of 64 are their own
    match = images_match(mostly, recorded, labels)
    assert match is not None
    assert match.chance == 0.625 < match.share < 0.75
    assert images_match(mostly[:15], recorded[:15], labels[:15]) is None
