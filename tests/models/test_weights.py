"""Weights files: what fits is loaded, everything else is refused by name."""

from __future__ import annotations

import os
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file

from fastntk.base.errors import InputError
from fastntk.models import build_model
from fastntk.models.weights import KNOWN, read_weights


@pytest.fixture(scope="module")
def tensors():
    """Weights of a ResNet-20 with five classes, its head not zero."""
    state = build_model("resnet20", num_classes=5, seed=3).state_dict()
    return {**state, "fc.weight": torch.randn(5, 64), "fc.bias": torch.randn(5)}


def backbone_equal(model, tensors):
    state = model.state_dict()
    return all(torch.equal(state[name], value) for name, value in tensors.items() if not name.startswith("fc."))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin", ".th"])
def test_files_of_every_kind_load(tmp_path, tensors, suffix):
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(tensors, path)
    model = build_model("resnet20", num_classes=5, weights=path)
    assert backbone_equal(model, tensors)
    assert not model.fc.weight.any()
    assert not model.fc.bias.any()


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict"])
def test_wrappers_prefixes_and_foreign_head_names(tmp_path, tensors, wrapper):
    renamed = OrderedDict((f"module.{name.replace('fc.', 'linear.')}", value) for name, value in tensors.items())
    torch.save({wrapper: renamed, "best_prec1": 92.1}, tmp_path / "checkpoint.th")
    assert backbone_equal(build_model("resnet20", num_classes=5, weights=tmp_path / "checkpoint.th"), tensors)


def test_half_precision_and_missing_counters_are_fine(tmp_path, tensors):
    half = {name: value.half() for name, value in tensors.items() if not name.endswith("num_batches_tracked")}
    save_file(half, tmp_path / "half.safetensors")
    model = build_model("resnet20", num_classes=5, weights=tmp_path / "half.safetensors")
    assert model.conv1.weight.dtype == torch.float32
    assert torch.equal(model.conv1.weight, half["conv1.weight"].float())


def test_missing_unexpected_and_misshapen_are_all_named(tmp_path, tensors):
    broken = {name: value for name, value in tensors.items() if name != "layer1.0.bn1.weight"}
    broken |= {"layer2.0.downsample.0.weight": torch.zeros(32, 16, 1, 1), "conv1.weight": torch.zeros(16, 3, 5, 5)}
    save_file(broken, tmp_path / "broken.safetensors")
    with pytest.raises(InputError, match="does not fit the model") as caught:
        build_model("resnet20", num_classes=5, weights=tmp_path / "broken.safetensors")
    message = str(caught.value)
    assert "broken.safetensors" in message
    assert "missing: layer1.0.bn1.weight;" in message
    assert "unexpected: layer2.0.downsample.0.weight;" in message
    assert "wrong shape: conv1.weight (16, 3, 5, 5) (expected (16, 3, 3, 3))" in message


def test_weights_of_a_deeper_network_are_refused(tmp_path):
    save_file(build_model("resnet32", num_classes=5).state_dict(), tmp_path / "deep.safetensors")
    with pytest.raises(InputError, match=r"unexpected: layer1.3.bn1.bias, .*\(\+\d+ more\)"):
        build_model("resnet20", num_classes=5, weights=tmp_path / "deep.safetensors")


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path):
    torch.save({"state_dict": Bomb(tmp_path / "exploded")}, tmp_path / "bomb.pt")
    with pytest.raises(InputError, match="contains code, which is never run"):
        build_model("resnet20", num_classes=5, weights=tmp_path / "bomb.pt")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 broken zip"])
def test_files_that_are_no_weights(tmp_path, suffix, content):
    path = tmp_path / f"noise{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"noise{suffix} is not a (readable|plain)"):
        read_weights(path)


def test_truncated_files_are_refused(tmp_path, tensors):
    for name, write in (("cut.safetensors", save_file), ("cut.pt", torch.save)):
        path = tmp_path / name
        write(tensors, path)
        path.write_bytes(path.read_bytes()[:-1000])
        with pytest.raises(InputError, match=rf"{name} is not a readable"):
            read_weights(path)


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, torch.zeros(3)])
def test_pickles_that_are_no_state_dict(tmp_path, content):
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(InputError, match=r"expected named tensors|not tensors: epoch"):
        read_weights(tmp_path / "odd.pt")


def test_unknown_suffix_and_missing_file(tmp_path):
    (tmp_path / "weights.h5").write_bytes(b"")
    with pytest.raises(InputError, match=r"expected one of .safetensors, .pt"):
        build_model("resnet20", num_classes=5, weights=tmp_path / "weights.h5")
    with pytest.raises(InputError, match="nor an existing file"):
        build_model("resnet20", num_classes=5, weights=tmp_path / "absent.safetensors")


def test_registry_is_either_embedded_or_https():
    for known in KNOWN.values():
        assert (known.file is None) != (known.url is None)
        assert known.file is None or known.fetch().is_file()
        assert known.url is None or known.url.startswith("https://github.com/")


def test_only_verified_addresses_are_registered():
    public = {key: known.url for key, known in KNOWN.items() if known.url}
    assert list(public) == [("mobilenetv2_x0_5", "cifar100")]
    assert "chenyaofo/pytorch-cifar-models/releases" in public["mobilenetv2_x0_5", "cifar100"]


def test_registered_weights_are_fetched_once_and_bring_their_normalisation_and_note(tmp_path, tensors, monkeypatch):
    from fastntk.models import card_of, weights

    file = tmp_path / "known.th"
    torch.save({"state_dict": {f"module.{name.replace('fc.', 'linear.')}": v for name, v in tensors.items()}}, file)
    made_up = weights.KnownWeights(url="https://example.invalid/known.th", mean=(0.1, 0.2, 0.3), note="trained on it")
    monkeypatch.setattr("fastntk.models.build.KNOWN", {("resnet20", "somewhere"): made_up})
    downloads = []
    monkeypatch.setattr(weights, "download", lambda url, *, sha256: downloads.append((url, sha256)) or file)
    model = build_model("resnet20", num_classes=5, weights="somewhere")
    assert downloads == [(made_up.url, None)]
    assert backbone_equal(model, tensors)
    assert card_of(model).input.mean == (0.1, 0.2, 0.3)
    assert "trained on it" in card_of(model).notes[0]
