"""Small vision transformers with adapters of peft, as users apply them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import fastntk
from fastntk.models import logits
from fastntk.models.torchvision_ops import ensure_operators

TIMM_SHAPE, HF_SHAPE = (3, 32, 32), (3, 16, 16)


def peft() -> Any:
    """The package, or a skip with the reason."""
    ensure_operators()
    return pytest.importorskip("peft", reason="needs peft: pip install 'fastntk[peft]'")


def timm_vit(*, depth: int = 2, classes: int = 4) -> nn.Module:
    ensure_operators()
    timm = pytest.importorskip("timm")
    options = {"img_size": 32, "embed_dim": 24, "num_heads": 3, "depth": depth, "num_classes": classes}
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", **options)
    return model.eval()


def hf_vit() -> nn.Module:
    ensure_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32, image_size=16, patch_size=8,
        num_labels=4, attn_implementation="sdpa",
    )  # fmt: skip
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model.eval()


def projections(model: nn.Module) -> list[str]:
    """What this version of transformers calls query and value."""
    ends = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    return [name for pair in (("query", "value"), ("q_proj", "v_proj")) for name in pair if name in ends]


def lora(model: nn.Module, *, head: str = "head", targets: Any = ("qkv",), wrapped: bool = True, **options: Any) -> nn.Module:
    """LoRA by ``get_peft_model`` or, not wrapped, by ``inject_adapter_in_model``; in eval mode."""
    package = peft()
    config = package.LoraConfig(**{"r": 4, "target_modules": list(targets), "modules_to_save": [head], **options})
    applied: nn.Module = (package.get_peft_model if wrapped else _injected)(model, config)
    return applied.eval()


def _injected(model: nn.Module, config: Any) -> nn.Module:
    adapted: nn.Module = peft().inject_adapter_in_model(config, model)
    return adapted


def shaken(model: nn.Module) -> nn.Module:
    """B and heads start at zero, whose rows would be trivially right: move everything."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def oracle(model: nn.Module, subset: fastntk.Subset, inputs: Tensor) -> Tensor:
    """Rows the slow and obvious way, (n, C, d)."""
    values = {name: parameter.detach() for name, parameter in subset.parameters.items()}

    def one(part: dict[str, Tensor], x: Tensor) -> Tensor:
        output = functional_call(model, part, (x.unsqueeze(0),))
        return (output if isinstance(output, Tensor) else output.logits)[0]

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        rows = vmap(jacrev(one), (None, 0))(values, inputs)
    return torch.cat([rows[name].flatten(2) for name in subset.names], dim=2)


def some_samples(shape: tuple[int, ...], *, count: int = 8, classes: int = 4) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, *shape, generator=generator)
    return fastntk.Samples(inputs, torch.arange(count) % classes, [f"id-{i}" for i in range(count)])


def same_logits(model: nn.Module, other: nn.Module, inputs: Tensor) -> bool:
    return torch.equal(logits(model.eval(), inputs), logits(other.eval(), inputs))
