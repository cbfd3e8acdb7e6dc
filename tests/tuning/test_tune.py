"""Specs, subsets and the paper's parameter ratios."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.models.mobilenet import cifar_mobilenet
from fastntk.models.resnet import cifar_resnet
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.tuning import find_head


def vit(name: str, classes: int) -> nn.Module:
    """A timm ViT without memory for its weights: ratios need shapes only."""
    ensure_operators()
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model: nn.Module = timm.create_model(name, num_classes=classes)
    return model


@pytest.mark.parametrize(
    ("size", "classes", "percent"),
    [
        ("tiny", 20, 0.24), ("small", 20, 0.12), ("base", 20, 0.06),
        ("tiny", 50, 0.35), ("small", 50, 0.18), ("base", 50, 0.09),
        ("small", 10, 0.11), ("base", 10, 0.05),
    ],
)  # fmt: skip
def test_the_papers_ratios_of_vision_transformers(size: str, classes: int, percent: float) -> None:
    subset = fastntk.tune(vit(f"vit_{size}_patch16_224", classes), "prompts+head")
    assert round(100 * subset.ratio, 2) == percent


def test_the_papers_ratios_of_convolutional_networks() -> None:
    with torch.device("meta"):
        resnet, mobilenet = cifar_resnet("resnet110", num_classes=10), cifar_mobilenet("mobilenetv2_x0_5", num_classes=10)
    subset = fastntk.tune(resnet, "norm+head")
    assert (subset.numel, round(100 * subset.ratio, 2)) == (8096 + 650, 0.51)
    assert round(100 * fastntk.tune(mobilenet, "norm+head").ratio, 2) == 4.48


class Small(nn.Module):
    """Every kind of norm layer, and a head that no convention names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn, self.gn, self.plain = nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.BatchNorm2d(4, affine=False)
        self.ln, self.hidden, self.logits = nn.LayerNorm(4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.plain(self.gn(self.bn(self.conv(x)))).mean((2, 3))
        return self.logits(torch.relu(self.hidden(self.ln(x))))


NORMS = ("bn.weight", "bn.bias", "gn.weight", "gn.bias", "ln.weight", "ln.bias")
HEAD = ("logits.weight", "logits.bias")


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("norm", NORMS),
        ("head", HEAD),
        ("norm+head", NORMS + HEAD),
        (" head + norm ", NORMS + HEAD),
        ("head+head", HEAD),
        ("conv.*", ("conv.weight", "conv.bias")),
        ("hidden.weight+logits.*", ("hidden.weight", *HEAD)),
        ("*.bias", ("conv.bias", "bn.bias", "gn.bias", "ln.bias", "hidden.bias", "logits.bias")),
        ("all", tuple(name for name, _ in Small().named_parameters())),
        ("all+head", tuple(name for name, _ in Small().named_parameters())),
    ],
)
def test_specs_name_parameters_in_the_models_order_and_freeze_the_rest(spec: str, names: tuple[str, ...]) -> None:
    model = Small()
    subset = fastntk.tune(model, spec)
    assert subset.names == names
    assert {name for name, p in model.named_parameters() if p.requires_grad} == set(names)
    assert subset.numel == sum(model.get_parameter(name).numel() for name in names)
    assert subset.ratio == pytest.approx(subset.numel / sum(p.numel() for p in model.parameters()))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "empty term"),
        ("norm++head", "empty term"),
        ("nrom+head", r"Unknown spec term 'nrom'.*norm, head, prompts, lora, all.*conv\.weight"),
        ("Conv.*", "matches no parameter name"),
        ("prompts+head", "needs a vision transformer, but Small"),
    ],
)
def test_bad_specs_are_explained_and_change_nothing(spec: str, message: str) -> None:
    model = Small()
    model.conv.weight.requires_grad_(False)
    before = [name for name, _ in model.named_parameters()]
    with pytest.raises(InputError, match=message):
        fastntk.tune(model, spec)
    assert [name for name, _ in model.named_parameters()] == before
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["conv.weight"]


def test_a_model_without_norm_layers_or_head_is_explained() -> None:
    with pytest.raises(InputError, match=r"Linear has none.*Try 'head'"):
        fastntk.tune(nn.Linear(3, 2), "norm")
    with pytest.raises(InputError, match=r"No classification head found in Conv2d.*glob"):
        fastntk.tune(nn.Conv2d(3, 2, 1), "head")
    assert fastntk.tune(nn.Conv2d(3, 2, 1), "weight").names == ("weight",)


def test_get_and_set_are_inverse_and_get_is_a_copy() -> None:
    model = Small()
    subset = fastntk.tune(model, "norm+head")
    before = subset.get()
    vector = torch.randn(subset.numel)
    subset.set(vector)
    assert torch.equal(subset.get(), vector)
    assert torch.equal(model.logits.bias, vector[-3:])
    assert torch.equal(model.bn.weight, vector[:4])
    vector.zero_()
    assert subset.get().abs().sum() > 0
    subset.get().zero_()
    assert subset.get().abs().sum() > 0
    assert not subset.get().requires_grad
    subset.set(before)
    assert torch.equal(subset.get(), before)


def test_vectors_of_another_length_or_type_and_names_of_another_model_are_refused() -> None:
    subset = fastntk.tune(Small(), "head")
    with pytest.raises(InputError, match=r"shape \(18,\), got \(17,\)"):
        subset.set(torch.zeros(17))
    with pytest.raises(InputError, match=r"tensor of shape \(18,\), got list"):
        subset.set([0.0] * 18)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no parameters named logits\.bias, logits\.weight"):
        subset.on(nn.Linear(2, 2))


def test_a_subset_moves_to_a_copy() -> None:
    model = Small()
    subset = fastntk.tune(model, "norm+head")
    other = subset.on(copy.deepcopy(model))
    other.set(torch.zeros(subset.numel))
    assert subset.get().abs().sum() > 0
    assert other.get().abs().sum() == 0
    assert other.names == subset.names


class Timm(nn.Module):
    """Has get_classifier() like timm's models, against all conventions."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier, self.top, self.last = nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(2, 2)

    def get_classifier(self) -> nn.Module:
        return self.top


def convention(name: str) -> nn.Module:
    model = nn.Module()
    model.body = nn.Linear(2, 2)
    setattr(model, name, nn.Sequential(nn.Dropout(), nn.Linear(2, 4), nn.Linear(4, 3)))
    model.tail = nn.Linear(2, 2)
    return model


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Timm(), "top"),
        (convention("classifier"), "classifier.2"),
        (convention("fc"), "fc.2"),
        (convention("head"), "head.2"),
        (convention("heads"), "heads.2"),
        (Small(), "logits"),
        (nn.Linear(3, 2), ""),
    ],
    ids=["timm", "classifier", "fc", "head", "heads", "last linear", "itself"],
)
def test_the_head_is_found(model: nn.Module, name: str) -> None:
    prefix, layer = find_head(model)
    assert prefix == name
    assert layer is model.get_submodule(name)


def test_the_head_of_a_bare_linear_layer_can_be_tuned() -> None:
    assert fastntk.tune(nn.Linear(3, 2), "head").names == ("weight", "bias")


def test_the_vector_of_an_empty_subset_is_empty() -> None:
    for dtype in (torch.float32, torch.float64):
        subset = fastntk.Subset(nn.Linear(3, 2).to(dtype), [])
        assert subset.get().shape == (0,)
        assert subset.get().dtype == dtype
        subset.set(subset.get())
