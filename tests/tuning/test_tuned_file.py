"""The tuned parameters as a file: what was saved is what a fresh backbone then computes; what does not fit changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.models import logits
from fastntk.models.torchvision_ops import ensure_operators


def vit(depth: int = 3, width: int = 24, classes: int = 4) -> nn.Module:
    ensure_operators()
    timm = pytest.importorskip("timm")
    torch.manual_seed(3)
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=width, num_heads=3, depth=depth, num_classes=classes
    )
    return model.eval()


@pytest.fixture
def prompted() -> fastntk.Subset:
    model = vit()
    subset = fastntk.tune(model, "prompts+head", prompt_length=6, prompt_blocks=2, seed=1)
    subset.set(torch.randn(subset.numel))
    return subset


def test_one_call_serves_prompts(prompted: fastntk.Subset, tmp_path: Path) -> None:
    images = torch.randn(2, 3, 32, 32)
    path = fastntk.save_tuned(prompted, tmp_path / "tuned.safetensors")
    assert set(load_file(path)) == set(prompted.names)
    served = vit()
    frozen = {name: value.clone() for name, value in served.state_dict().items()}
    assert fastntk.load_tuned(served, path) is served
    assert torch.equal(logits(served, images), logits(prompted.model, images))
    for name in set(frozen) - set(prompted.names):
        assert torch.equal(served.state_dict()[name], frozen[name])
    # Again, over prompts that are there already.
    prompted.set(torch.zeros(prompted.numel))
    fastntk.save_tuned(prompted, path, overwrite=True)
    fastntk.load_tuned(served, path)
    assert torch.equal(logits(served, images), logits(prompted.model, images))


def test_statistics_travel_with_norm_layers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    fresh = copy.deepcopy(model)
    subset = fastntk.tune(model, "norm+head")
    subset.set(torch.randn(subset.numel))
    model.train()(torch.randn(8, 12))
    fastntk.save_tuned(subset, tmp_path / "t.safetensors")
    fastntk.load_tuned(fresh, tmp_path / "t.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"classes": 5}, r"head.weight \(4, 24\) \(the model has \(5, 24\)\)"),
        ({"width": 48}, "other shapes: blocks.0.prefix_prompt.key"),
        ({"depth": 1}, "prompt_blocks must be between 1 and 1"),
    ],
)
def test_another_model_is_refused_and_left_as_it_was(
    prompted: fastntk.Subset, other: dict[str, int], message: str, tmp_path: Path
) -> None:
    path = fastntk.save_tuned(prompted, tmp_path / "tuned.safetensors")
    model = vit(**other)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=message):
        fastntk.load_tuned(model, path)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_is_no_such_file_is_refused(prompted: fastntk.Subset, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match="is not there"):
        fastntk.load_tuned(model, tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="not a safetensors file"):
        fastntk.load_tuned(model, tmp_path / "text")
    save_file(dict(model.state_dict()), tmp_path / "foreign.safetensors")
    with pytest.raises(InputError, match=r"not written by fastntk\.save_tuned"):
        fastntk.load_tuned(model, tmp_path / "foreign.safetensors")
    path = fastntk.save_tuned(prompted, tmp_path / "tuned.safetensors")
    with pytest.raises(InputError, match="no chain of attention blocks"):
        fastntk.load_tuned(model, path)
    with pytest.raises(InputError, match="exists already"):
        fastntk.save_tuned(prompted, path)
