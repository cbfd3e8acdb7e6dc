"""Rows of adapters' parameters against ``vmap(jacrev)``; blocks and truncated depths of adapted models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft_models import HF_SHAPE, TIMM_SHAPE, hf_vit, lora, oracle, peft, projections, shaken, timm_vit
from torch import Tensor, nn

import fastntk
from fastntk.tangent import blocks, checked_engine, truncated


def ia3() -> nn.Module:
    options = {"target_modules": ["qkv", "fc2"], "feedforward_modules": ["fc2"], "modules_to_save": ["head"]}
    model: nn.Module = peft().get_peft_model(timm_vit(), peft().IA3Config(**options))
    return model


def on_hugging_face() -> nn.Module:
    return lora(hf_vit(), head="classifier", targets=projections(hf_vit()))


CASES: list[tuple[str, Callable[[], nn.Module], str, tuple[int, ...], int]] = [
    # name, model, spec, input shape, parameters that have no direct rows
    ("rank 4", lambda: lora(timm_vit(), r=4, lora_dropout=0.5), "lora+head", TIMM_SHAPE, 0),
    ("rank 16", lambda: lora(timm_vit(), r=16), "lora+head", TIMM_SHAPE, 0),
    ("injected", lambda: lora(timm_vit(), wrapped=False), "lora+head", TIMM_SHAPE, 0),
    ("all layers", lambda: lora(timm_vit(), targets=("qkv", "proj", "fc1", "fc2")), "lora+norm+head", TIMM_SHAPE, 0),
    ("head adapted", lambda: lora(timm_vit(), targets=("qkv", "head"), modules_to_save=None), "lora", TIMM_SHAPE, 0),
    ("prompts", lambda: lora(timm_vit()), "prompts+lora+head", TIMM_SHAPE, 0),
    ("Hugging Face", on_hugging_face, "lora+head", HF_SHAPE, 0),
    ("DoRA", lambda: lora(timm_vit(), use_dora=True), "lora+head", TIMM_SHAPE, 2),
    ("IA3", ia3, "lora+head", TIMM_SHAPE, 4),
]


@pytest.mark.parametrize(("name", "build", "spec", "shape", "generic"), CASES, ids=[case[0] for case in CASES])
def test_rows_equal_vmap_jacrev(
    name: str, build: Callable[[], nn.Module], spec: str, shape: tuple[int, ...], generic: int
) -> None:
    model = build()
    subset = fastntk.tune(model, spec, **({"prompt_blocks": 2} if "prompts" in spec else {}))
    shaken(model)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        model.to(dtype)
        inputs = torch.randn(3, *shape, dtype=dtype)
        engine = checked_engine(model, subset, inputs)
        assert len(engine.generic) == generic
        assert not engine.unused
        expected = oracle(model, subset, inputs)
        rows = engine.rows(inputs).dense()
        assert (rows - expected).norm() < tolerance * expected.norm()
        assert bool(engine.head_names) == ("head" in spec)


@pytest.mark.parametrize("rank", [4, 16])
def test_rows_of_a_vit_s_14(rank: int, shared: Callable[[str], Path]) -> None:
    """The real network, at the smallest size that has more than one patch a side."""
    peft()
    weights = shared("weights/vit_small_patch14_dinov2.safetensors")
    model = fastntk.build_model("timm:vit_small_patch14_dinov2", num_classes=2, image_size=28, weights=weights)
    subset = fastntk.tune(model, "lora+head", lora_rank=rank, lora_targets=["qkv"])
    generator = torch.Generator().manual_seed(0)
    subset.set(subset.get() + 0.02 * torch.randn(subset.numel, generator=generator))
    inputs = torch.randn(2, 3, 28, 28, generator=generator)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        rows = fastntk.jacobian(model.to(dtype), subset, inputs.to(dtype))
        expected = oracle(model, subset, inputs.to(dtype))
        assert (rows - expected).norm() < tolerance * expected.norm()


def prepared(model: nn.Module, spec: str, shape: tuple[int, ...]) -> tuple[Any, Tensor]:
    subset = fastntk.tune(model, spec)
    inputs = torch.randn(2, *shape)
    return checked_engine(shaken(model), subset, inputs), inputs


@pytest.mark.parametrize("wrapped", [True, False], ids=["PeftModel", "injected"])
def test_blocks_are_those_of_the_network(wrapped: bool) -> None:
    engine, inputs = prepared(lora(timm_vit(depth=3), wrapped=wrapped, targets=("qkv", "fc1")), "lora+head", TIMM_SHAPE)
    found = blocks(engine)
    prefix = "base_model.model." if wrapped else ""
    assert [block.name for block in found] == [f"{prefix}blocks.{i}" for i in (2, 1, 0)]
    assert all(len(block.parameters) == 4 for block in found)
    rows = engine.rows(inputs).dense()
    for k in range(len(found) + 1):
        part = truncated(engine, k)
        assert torch.allclose(part.rows(inputs).dense(), rows[..., engine.subset.columns(part.subset.names)], atol=1e-5)


class Convolutions(nn.Module):
    """Two numbered parts, each with a convolution that carries an adapter: an adapted layer must not count as a block."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*(self._part(width) for width in (3, 6)))
        self.fc = nn.Linear(6, 3)

    def _part(self, width: int) -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Conv2d(width, 6, 3), nn.ReLU()), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.features(x).mean((2, 3)))
        return out


def test_an_adapted_layer_is_one_layer() -> None:
    plain, _ = prepared(Convolutions().eval(), "all", (3, 9, 9))
    model = lora(Convolutions().eval(), head="fc", targets=["0.0.0", "1.0.0"], wrapped=False)
    engine, inputs = prepared(model, "lora+head", (3, 9, 9))
    assert [block.name for block in blocks(engine)] == [block.name for block in blocks(plain)] == ["features.1", "features.0"]
    assert not engine.generic
    expected = oracle(model, engine.subset, inputs)
    assert (engine.rows(inputs).dense() - expected).norm() < 1e-5 * expected.norm()
