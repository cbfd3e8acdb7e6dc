"""Specs and heads on models that peft was applied to: by peft's structure, ``original_module`` never."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from peft_models import HF_SHAPE, TIMM_SHAPE, hf_vit, lora, peft, projections, timm_vit
from torch import nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.models import logits
from fastntk.tuning import find_head
from fastntk.tuning.adapters import backbone_names

ALL_LINEAR = ("qkv", "proj", "fc1", "fc2")


def ends(names: tuple[str, ...]) -> set[str]:
    """What the names end in, without the layer."""
    return {".".join(name.split(".")[-3:]) for name in names}


@pytest.mark.parametrize("wrapped", [True, False], ids=["PeftModel", "injected"])
@pytest.mark.parametrize("targets", [("qkv",), ALL_LINEAR], ids=["qkv", "all"])
def test_lora_on_timm(wrapped: bool, targets: tuple[str, ...]) -> None:
    model = lora(timm_vit(), wrapped=wrapped, targets=targets)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]  # by peft itself
    prefix = "base_model.model." if wrapped else ""
    head = f"{prefix}head.modules_to_save.default"
    name, layer = find_head(model)
    assert (name, layer) == (head, model.get_submodule(head))
    assert fastntk.tune(model, "lora+head").names == tuple(trained)
    assert fastntk.tune(model, "head").names == (f"{head}.weight", f"{head}.bias")
    assert fastntk.tune(model, "lora").names == tuple(name for name in trained if not name.startswith(head))
    both = fastntk.tune(model, "lora+norm+head")
    assert set(both.names) - set(trained) == {n for n, _ in model.named_parameters() if "norm" in n}
    assert [name for name, p in model.named_parameters() if p.requires_grad] == list(both.names)
    assert logits(model, torch.randn(2, *TIMM_SHAPE)).shape == (2, 4)


def test_lora_on_hugging_face() -> None:
    model = lora(hf_vit(), head="classifier", targets=projections(hf_vit()))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 2 + 2
    assert find_head(model)[0] == "base_model.model.classifier.modules_to_save.default"
    assert fastntk.tune(model, "lora+head").names == tuple(trained)
    assert logits(model, torch.randn(2, *HF_SHAPE)).shape == (2, 4)


def test_dora_and_ia3_are_adapters_too() -> None:
    dora = fastntk.tune(lora(timm_vit(), use_dora=True), "lora")
    assert ends(dora.names) == {f"lora_{part}.default.weight" for part in ("A", "B", "magnitude_vector")}
    options = {"target_modules": ["qkv", "fc2"], "feedforward_modules": ["fc2"], "modules_to_save": ["head"]}
    model = peft().get_peft_model(timm_vit(), peft().IA3Config(**options))
    assert ends(fastntk.tune(model, "lora").names) == {"qkv.ia3_l.default", "fc2.ia3_l.default"}


def test_globs_and_all_never_name_what_peft_does_not_use() -> None:
    model = lora(timm_vit())
    assert fastntk.tune(model, "*head*").names == fastntk.tune(model, "head").names
    idle = {name for name, _ in model.named_parameters()} - set(fastntk.tune(model, "all").names)
    assert idle == {f"base_model.model.head.original_module.{part}" for part in ("weight", "bias")}


def test_the_active_adapter_counts() -> None:
    model: Any = lora(timm_vit())
    model.add_adapter("other", peft().LoraConfig(r=2, target_modules=["qkv", "fc1"], modules_to_save=["head"]))
    for adapter, tensors in (("default", 4), ("other", 8)):
        model.set_adapter(adapter)
        assert find_head(model)[0] == f"base_model.model.head.modules_to_save.{adapter}"
        subset = fastntk.tune(model, "lora")
        assert len(subset.names) == tensors
        assert all(f".{adapter}." in name for name in subset.names)
        assert not any(f".{'other' if adapter == 'default' else 'default'}." in n for n in fastntk.tune(model, "all").names)


def test_what_else_an_adapter_trains_belongs_to_lora() -> None:
    """A saved module besides the head, and biases where the config asks for them."""
    model = lora(timm_vit(), modules_to_save=["head", "norm"], bias="lora_only")
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(fastntk.tune(model, "lora+head").names) == trained
    assert {
        "base_model.model.norm.modules_to_save.default.weight",
        "base_model.model.blocks.0.attn.qkv.base_layer.bias",
    } < trained
    norms = fastntk.tune(model, "norm").names
    assert "base_model.model.norm.modules_to_save.default.weight" in norms
    assert not any("original_module" in name for name in norms)
    every_bias = lora(timm_vit(), bias="all")
    wanted = {name for name, p in every_bias.named_parameters() if p.requires_grad and "original_module" not in name}
    assert set(fastntk.tune(every_bias, "lora+head").names) == wanted


def test_names_before_peft() -> None:
    plain = timm_vit()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    model = lora(plain)
    names = backbone_names(model)
    assert sorted(names.values()) == sorted(before)
    assert all(torch.equal(model.state_dict()[name], before[old]) for name, old in names.items())
    assert backbone_names(timm_vit()) == {name: name for name in before}


def test_lora_is_attached_where_there_is_none() -> None:
    peft()
    images = torch.randn(2, *TIMM_SHAPE)
    model = timm_vit()
    before = logits(model, images)
    state = torch.get_rng_state()
    subset = fastntk.tune(model, "lora+head", lora_rank=3, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert subset.model is model
    assert ends(subset.names) == {"lora_A.default.weight", "lora_B.default.weight", "modules_to_save.default.weight",
                                  "modules_to_save.default.bias"}  # fmt: skip
    assert {name.split(".lora_")[0] for name in subset.names if "lora_" in name} == {
        f"blocks.{i}.attn.{layer}" for i in range(2) for layer in ("qkv", "proj")
    }
    assert model.get_parameter("blocks.0.attn.qkv.lora_A.default.weight").shape == (3, 24)
    assert not any(module.training for module in model.modules())
    assert torch.equal(logits(model, images), before)  # B starts at zero
    values = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        values.append(fastntk.tune(timm_vit(), "lora", lora_rank=3, seed=seed).get())
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    named = fastntk.tune(timm_vit(), "lora", lora_targets=["fc1"])
    assert ends(named.names) == {"lora_A.default.weight", "lora_B.default.weight"}
    assert not any("attn" in name for name in named.names)


def broken(kind: str) -> nn.Module:
    model: Any = lora(timm_vit())
    if kind == "merged":
        model.merge_adapter()
    elif kind == "disabled":
        model.base_model.disable_adapter_layers()
    elif kind == "several":
        model.add_adapter("other", peft().LoraConfig(r=2, target_modules=["qkv"]))
        model.base_model.set_adapter(["default", "other"])
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "message"),
    [("merged", r"merged into the weights.*unmerge_adapter"), ("disabled", "no active adapter.*enable_adapter_layers"),
     ("several", "one active adapter, got default, other")],
)  # fmt: skip
def test_an_adapter_that_is_not_in_use_is_explained(kind: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fastntk.tune(broken(kind), "lora+head")


def test_a_head_with_an_adapter_is_explained() -> None:
    model = lora(timm_vit(), targets=("qkv", "head"), modules_to_save=None)
    with pytest.raises(InputError, match=r"head \(base_model\.model\.head\) carries an adapter.*modules_to_save"):
        fastntk.tune(model, "lora+head")
    assert sum(".head." in name for name in fastntk.tune(model, "lora").names) == 2


@pytest.mark.parametrize(
    ("build", "spec", "options", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3)), "lora+head", {}, r"Sequential has none that can be adapted.*lora_targets"),
        (timm_vit, "lora+head", {"lora_targets": ["nothing"]}, "peft cannot attach LoRA"),
        (timm_vit, "lora+head", {"lora_rank": 0}, "lora_rank must be a whole number ≥ 1, got 0"),
        (timm_vit, "lora+head", {"lora_rank": "4"}, "lora_rank must be a whole number ≥ 1, got '4'"),
        (timm_vit, "norm+head", {"lora_rank": 4}, r"of the term 'lora', .*: write 'norm\+head\+lora', or"),
        (timm_vit, "norm+head", {"lora_targets": ["qkv"]}, "of the term 'lora'"),
        (timm_vit, 16, {}, "spec must be text, a sum such as 'norm.head'; got 16"),
        (timm_vit, "lora+nrom", {}, "Unknown spec term 'nrom'"),
        (timm_vit, "lora+prompts", {"prompt_length": 3}, "prompt_length counts keys and values"),
        (lambda: lora(timm_vit()), "lora+head", {"lora_rank": 4}, "has an adapter already"),
    ],
)
def test_wrong_use_changes_nothing(build: Any, spec: Any, options: dict[str, Any], message: str) -> None:
    peft()
    model = build()
    before = [name for name, _ in model.named_modules()]
    with pytest.raises(InputError, match=message):
        fastntk.tune(model, spec, **options)
    assert [name for name, _ in model.named_modules()] == before


def test_peft_is_not_needed_nor_imported() -> None:
    """The core works where peft cannot be imported; 'lora' then says what to install."""
    code = """
import sys
sys.modules["peft"] = None
import importlib.util, torch, fastntk
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "peft" else real(name, *a)
del sys.modules["peft"]
model = torch.nn.Sequential(torch.nn.Linear(4, 3))
subset = fastntk.tune(model, "head")
fastntk.jacobian(model.eval(), subset, torch.randn(2, 4))
assert "peft" not in sys.modules
try:
    fastntk.tune(model, "lora")
except fastntk.InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'fastntk[peft]'" in done.stdout
