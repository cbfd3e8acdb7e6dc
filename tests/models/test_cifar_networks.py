"""The CIFAR networks: sizes, names, shortcuts, and the project's weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from fastntk.base.errors import InputError
from fastntk.models import build_model, card_of, input_spec
from fastntk.models.build import CIFAR_NAMES
from fastntk.models.mobilenet import cifar_mobilenet, rounded_channels
from fastntk.models.resnet import BasicBlock, cifar_resnet
from fastntk.models.weights import KNOWN


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet20", 269_722), ("resnet56", 853_018), ("resnet110", 1_727_962), ("mobilenetv2_x0_5", 700_490)],
)
def test_parameter_counts(name, count):
    assert parameters(build_model(name, num_classes=10)) == count


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_depth_is_the_number_of_weighted_layers(depth):
    model = build_model(f"resnet{depth}", num_classes=10)
    assert sum(isinstance(module, torch.nn.Conv2d | torch.nn.Linear) for module in model.modules()) == depth


def test_shortcut_takes_every_second_pixel_and_pads_channels_on_both_sides():
    block = BasicBlock(16, 32, stride=2).eval()
    torch.nn.init.zeros_(block.bn2.weight)  # the residual branch is silent: only the shortcut is left
    images = torch.rand(2, 16, 8, 8)
    expected = torch.zeros(2, 32, 4, 4)
    expected[:, 8:24] = images[:, :, ::2, ::2]
    assert torch.equal(block(images), expected)


@pytest.mark.parametrize(("name", "maker"), [("resnet20", cifar_resnet), ("mobilenetv2_x0_5", cifar_mobilenet)])
def test_the_projects_weights_load_strictly(shared, name, maker):
    tensors = load_file(shared(f"weights/cifar100_{name}.safetensors"))
    model = maker(name, num_classes=100)
    model.load_state_dict(tensors, strict=True)
    names = {key for key in model.state_dict() if not key.endswith("num_batches_tracked")}
    assert names == set(tensors)


def cifar10_images(path, count):
    pixels = torch.from_numpy(np.load(path)["x_test"][:count]).permute(0, 3, 1, 2).float() / 255
    spec = input_spec(build_model("resnet20", num_classes=2))
    return (pixels - torch.tensor(spec.mean).view(3, 1, 1)) / torch.tensor(spec.std).view(3, 1, 1)


@torch.no_grad()
def test_embedded_half_precision_agrees_with_the_original(shared):
    original = cifar_resnet("resnet20", num_classes=100).eval()
    original.load_state_dict(load_file(shared("weights/cifar100_resnet20.safetensors")))
    embedded = cifar_resnet("resnet20", num_classes=100).eval()
    embedded.load_state_dict(load_file(KNOWN["resnet20", "cifar100"].fetch()))
    images = cifar10_images(shared("data/cifar10-5k.npz"), 500)
    expected, logits = original(images), embedded(images)
    assert torch.equal(expected.argmax(1), logits.argmax(1))
    assert (expected - logits).abs().max() < 0.02


def test_embedded_weights_need_no_network_and_bring_a_zero_head():
    model = build_model("resnet20", num_classes=10, weights="cifar100")
    stored = load_file(KNOWN["resnet20", "cifar100"].fetch())
    state = model.state_dict()
    assert all(torch.equal(state[name], stored[name].float()) for name in stored if not name.startswith("fc."))
    assert all(value.dtype == torch.float32 for name, value in state.items() if "num_batches" not in name)
    assert not state["fc.weight"].any()
    assert not state["fc.bias"].any()
    assert state["fc.weight"].shape == (10, 64)
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_old_head_is_dropped_even_where_it_would_fit():
    model = build_model("resnet20", num_classes=100, weights="cifar100")
    assert not model.fc.weight.any()


def test_mobilenet_ends_at_four_by_four_and_its_head_is_zero(shared):
    model = build_model("mobilenetv2_x0_5", num_classes=7, weights=shared("weights/cifar100_mobilenetv2_x0_5.safetensors"))
    assert model.features(torch.zeros(1, 3, 32, 32)).shape == (1, 1280, 4, 4)
    assert not model.classifier[1].weight.any()
    assert card_of(model).weights.endswith("cifar100_mobilenetv2_x0_5.safetensors")


@pytest.mark.parametrize(("wanted", "rounded"), [(4, 8), (12, 16), (16, 16), (48, 48), (10.9, 16), (11.9, 16), (8.4, 8)])
def test_channels_are_multiples_of_eight_and_lose_at_most_a_tenth(wanted, rounded):
    assert rounded_channels(wanted) == rounded


@pytest.mark.parametrize("name", ["resnet20", "mobilenetv2_x0_5"])
def test_other_image_sizes_work(name):
    model = build_model(name, num_classes=3, image_size=48)
    assert input_spec(model).size == card_of(model).image_size == 48
    assert model(torch.zeros(2, 3, 48, 48)).shape == (2, 3)


def test_builds_are_repeatable_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, second = (build_model("resnet20", num_classes=3, seed=4) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert card_of(first).fingerprint == card_of(second).fingerprint
    other = build_model("resnet20", num_classes=3, seed=5)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)


def test_a_zero_head_still_learns():
    model = build_model("resnet20", num_classes=3, weights="cifar100")
    loss = F.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 0]))
    loss.backward()
    assert model.fc.weight.grad.abs().max() > 0


def test_unknown_model_lists_every_known_one():
    with pytest.raises(InputError, match="unknown model 'resnet18'") as caught:
        build_model("resnet18", num_classes=10)
    assert all(name in str(caught.value) for name in (*CIFAR_NAMES, "timm:<name>", "hf:<name or folder>"))


@pytest.mark.parametrize("size", [0, 4, -32, 32.0, True])
def test_wrong_image_size(size):
    with pytest.raises(InputError, match=r"image_size=.*expected a whole number of pixels, at least 8"):
        build_model("resnet20", num_classes=10, image_size=size)


@pytest.mark.parametrize("count", [0, 1, 2.0, True])
def test_wrong_number_of_classes(count):
    with pytest.raises(InputError, match=r"num_classes=.*at least 2"):
        build_model("resnet20", num_classes=count)


def test_unknown_weights_name_what_is_known():
    with pytest.raises(InputError, match=r"'imagenet' is neither a name known for resnet20 \(one of: cifar100"):
        build_model("resnet20", num_classes=10, weights="imagenet")
    with pytest.raises(InputError, match="fastntk pretrain"):
        build_model("resnet110", num_classes=10, weights="pretrained")
