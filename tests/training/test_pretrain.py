"""Pre-training: it learns, the same seed gives the same bytes, and build_model reads what it writes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

from fastntk.base.errors import DivergedError, InputError
from fastntk.models import build_model
from fastntk.training.pretrain import augment, pretrain


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 3
    inputs = 0.3 * torch.randn(24, 3, 16, 16, generator=generator) + (labels - 1.0).view(-1, 1, 1, 1)
    return SimpleNamespace(inputs=inputs, labels=labels)


def run(samples, out, **changes):
    options = {"epochs": 1, "lr": 0.05, "batch_size": 10, "seed": 0} | changes
    return pretrain("resnet20", samples, out=out, **options)


def test_the_file_loads_and_the_statistics_moved(samples, tmp_path):
    result = run(samples, tmp_path / "new" / "net.safetensors")
    model = build_model("resnet20", num_classes=7, weights=result.path)
    assert not model.fc.weight.any()
    assert model.bn1.running_mean.abs().max() > 0
    assert model.bn1.num_batches_tracked == 3  # 24 images in batches of 10
    fresh = build_model("resnet20", num_classes=7, seed=0)
    assert not torch.equal(model.conv1.weight, fresh.conv1.weight)
    with safe_open(result.path, "pt") as file:
        record = json.loads(file.metadata()["fastntk"])
        assert file.get_tensor("fc.weight").shape == (3, 64)
    assert (record["model"], record["images"], len(record["history"])) == ("resnet20", 24, 1)
    assert [path.name for path in result.path.parent.iterdir()] == ["net.safetensors"]


def test_the_same_seed_gives_the_same_bytes(samples, tmp_path):
    torch.manual_seed(1)
    first = run(samples, tmp_path / "a.safetensors")
    torch.manual_seed(2)
    again = run(samples, tmp_path / "b.safetensors")
    other = run(samples, tmp_path / "c.safetensors", seed=1)
    assert first.path.read_bytes() == again.path.read_bytes()
    assert first.sha256 == again.sha256 != other.sha256


def test_it_learns(samples, tmp_path):
    history = run(samples, tmp_path / "a.safetensors", epochs=8, batch_size=12, lr=0.02).history
    assert history[-1].loss < 0.5 * history[0].loss
    assert history[-1].accuracy > 0.8


def test_augmentation_shifts_and_mirrors_whole_images():
    images = torch.rand(40, 3, 8, 8) + 1
    changed = augment(images, generator=torch.Generator().manual_seed(0), padding=2)
    padded = torch.nn.functional.pad(images, (2,) * 4)
    kinds = set()
    for image, result in zip(padded, changed, strict=True):
        places = [
            (top, left, mirror)
            for top in range(5)
            for left in range(5)
            for mirror in (False, True)
            if torch.equal(
                result,
                image[:, top : top + 8, left : left + 8].flip(2) if mirror else image[:, top : top + 8, left : left + 8],
            )
        ]
        assert len(places) == 1
        kinds.add(places[0])
    assert {top for top, _, _ in kinds} == {left for _, left, _ in kinds} == set(range(5))
    assert {mirror for _, _, mirror in kinds} == {False, True}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("timm:resnet18", {}, r"cannot pretrain 'timm:resnet18': expected one of resnet20"),
        ("resnet20", {"epochs": 0}, "all three must be positive"),
        ("resnet20", {"lr": -1.0}, "all three must be positive"),
        ("resnet20", {"out": "net.pt"}, "ends in .safetensors"),
    ],
)
def test_wrong_input(samples, tmp_path, name, changes, message):
    options = {"epochs": 1, "lr": 0.1, "batch_size": 8, "seed": 0, "out": tmp_path / "a.safetensors"} | changes
    with pytest.raises(InputError, match=message):
        pretrain(name, samples, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_diverges_writes_nothing(samples, tmp_path):
    with pytest.raises(DivergedError, match=r"The loss became .* in epoch 1 of 1: training diverged.*lr=1e\+30"):
        run(samples, tmp_path / "a.safetensors", lr=1e30)
    assert list(tmp_path.iterdir()) == []


def test_wrong_samples(samples, tmp_path):
    with pytest.raises(InputError, match="expected images"):
        run(SimpleNamespace(inputs=samples.inputs[:3], labels=samples.labels), tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="at least two classes"):
        run(SimpleNamespace(inputs=samples.inputs, labels=torch.zeros(24)), tmp_path / "a.safetensors")
