"""Networks of every kind that rows are claimed for, and rows the slow and obvious way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import fastntk
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.tuning import Subset


def oracle(model: nn.Module, subset: Subset, inputs: Tensor) -> Tensor:
    values = {name: p.detach() for name, p in subset.parameters.items()}

    def one(part: dict[str, Tensor], x: Tensor) -> Tensor:
        output = functional_call(model, part, (x.unsqueeze(0),))
        return (output if isinstance(output, Tensor) else output.logits)[0]

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        rows = vmap(jacrev(one), (None, 0))(values, inputs)
    return torch.cat([rows[name].flatten(2) for name in subset.names], dim=2)


class GroupNormCNN(nn.Module):
    """What a user might write: GroupNorm, in-place activations, a two-layer head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.conv2, self.norm2 = nn.Conv2d(8, 12, 3, stride=2, groups=2), nn.GroupNorm(3, 12)
        self.hidden, self.out = nn.Linear(12, 7), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.norm1(self.conv1(x)))
        x = torch.relu_(self.norm2(self.conv2(x)))
        return self.out(torch.relu(self.hidden(x.mean((2, 3)))))


class OddCNN(nn.Module):
    """What is seldom met: a bare scale, a token, and a conv with string padding, which the sites do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding="same")
        self.scale = nn.Parameter(torch.rand(6, 1, 1))
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.conv(x) * self.scale).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.out(torch.tanh(self.norm(x)).mean(1))


class FlippedLayout(nn.Module):
    """Puts the batch second before a norm layer: rows by the leading dimension would be of the wrong sample."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(x.transpose(0, 1))).mean(0))


def shaken(model: nn.Module) -> nn.Module:
    """Heads start at zero and norms at one: move everything so that no row is trivially right."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
        for m in model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_(0, 0.3, generator=generator)
                m.running_var.uniform_(0.5, 2, generator=generator)
    return model.eval()


def resnet() -> tuple[nn.Module, tuple[int, ...]]:
    return fastntk.build_model("resnet20", num_classes=5), (3, 16, 16)


def mobilenet() -> tuple[nn.Module, tuple[int, ...]]:
    return fastntk.build_model("mobilenetv2_x0_5", num_classes=4), (3, 16, 16)


def timm_vit() -> tuple[nn.Module, tuple[int, ...]]:
    ensure_operators()
    pytest.importorskip("timm")
    return fastntk.build_model("timm:vit_tiny_patch16_224", num_classes=4, image_size=32), (3, 32, 32)


def hf_vit(tmp: object = None) -> tuple[nn.Module, tuple[int, ...]]:
    ensure_operators()
    pytest.importorskip("transformers")
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=24,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        num_labels=4,
        attn_implementation="sdpa",
    )
    return ViTForImageClassification(config), (3, 16, 16)
