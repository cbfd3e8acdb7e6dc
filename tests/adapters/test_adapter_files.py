"""Runs and results of adapted models on disk, peft's own format beside them, and serving from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from peft_models import HF_SHAPE, TIMM_SHAPE, hf_vit, lora, peft, projections, same_logits, some_samples, timm_vit
from torch import nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.unlearning.residue import outside_report

RECIPE = fastntk.Recipe(epochs=2, batch_size=4, lr=1e-2)


def fresh(kind: str) -> nn.Module:
    """The backbone, the same at every call."""
    torch.manual_seed(3)
    return hf_vit() if kind == "hf" else timm_vit()


def adapted(kind: str, **options: Any) -> nn.Module:
    if kind == "hf":
        return lora(fresh(kind), head="classifier", targets=projections(fresh(kind)), lora_dropout=0.5, **options)
    return lora(fresh(kind), wrapped=kind == "timm", lora_dropout=0.5, **options)


@pytest.fixture(params=["timm", "injected", "hf"])
def kind(request: pytest.FixtureRequest) -> str:
    peft()
    return str(request.param)


def a_run(kind: str, spec: str = "lora+head", **options: Any) -> fastntk.Run:
    model = adapted(kind, **options)
    samples = some_samples(HF_SHAPE if kind == "hf" else TIMM_SHAPE)
    return fastntk.fit(model, fastntk.tune(model, spec), samples, RECIPE, trace=True)


def test_a_run_comes_back_and_its_requests_go_on(kind: str, tmp_path: Path) -> None:
    run = a_run(kind)
    run.save(tmp_path / "run")
    images = run.data.inputs
    given = [fresh(kind), adapted(kind)]
    for model in given:
        again = fastntk.Run.load(tmp_path / "run", run.samples, model=model)
        assert type(again.model) is type(run.model)
        assert again.subset.names == run.subset.names
        assert torch.equal(again.anchor, run.anchor)
        assert not any(module.training for module in again.model.modules())
        assert {n for n, p in again.model.named_parameters() if p.requires_grad} == set(run.subset.names)
        assert same_logits(again.model, run.model, images)
    result = fastntk.unlearn(again, ids=["id-1"], depth="all")
    assert not same_logits(result.model, run.model, images)
    fastntk.save_result(result, tmp_path / "result")
    assert same_logits(fastntk.load_result(tmp_path / "result", again).model, result.model, images)
    later = fastntk.Run.load(tmp_path / "result", model=fresh(kind))
    assert fastntk.unlearn(later, ids=["id-2"], depth="head").details["depth"] == "head"


def test_pefts_own_format_lies_beside(kind: str, tmp_path: Path) -> None:
    run = a_run(kind)
    result = fastntk.unlearn(run, classes=[0], depth="head")
    fastntk.save_result(result, tmp_path / "result")
    folder = tmp_path / "result" / "adapter"
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    served = peft().PeftModel.from_pretrained(fresh(kind), folder)
    assert same_logits(served, result.model, run.data.inputs)
    assert not same_logits(served, run.model, run.data.inputs)
    if kind != "injected":  # as a PeftModel is usually served
        result.model.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
        theirs = peft().PeftModel.from_pretrained(fresh(kind), tmp_path / "theirs")
        assert same_logits(theirs, result.model, run.data.inputs)


@pytest.mark.parametrize("options", [{"use_dora": True}, {"bias": "lora_only"}, {"modules_to_save": ["head", "norm"]}])
def test_everything_an_adapter_trains_is_in_its_file(options: dict[str, Any], tmp_path: Path) -> None:
    run = a_run("timm", **options)
    run.save(tmp_path / "run")
    served = peft().PeftModel.from_pretrained(fresh("timm"), tmp_path / "run" / "adapter")
    assert same_logits(served, run.model, run.data.inputs)
    assert same_logits(fastntk.Run.load(tmp_path / "run", model=fresh("timm")).model, run.model, run.data.inputs)


def test_an_adapter_that_would_lack_something_is_not_written(tmp_path: Path) -> None:
    run = a_run("timm", "lora+norm+head")
    with pytest.warns(UserWarning, match=r"no place for base_model\.model\.blocks\.0\.norm1\.weight.*modules_to_save"):
        run.save(tmp_path / "run")
    assert not (tmp_path / "run" / "adapter").exists()
    again = fastntk.Run.load(tmp_path / "run", model=fresh("timm"))
    assert same_logits(again.model, run.model, run.data.inputs)


def test_the_active_adapter_of_several_comes_back(tmp_path: Path) -> None:
    model: Any = adapted("timm")
    model.add_adapter("other", peft().LoraConfig(r=2, target_modules=["fc1"], modules_to_save=["head"]))
    model.set_adapter("other")
    run = fastntk.fit(model, fastntk.tune(model, "lora+head"), some_samples(TIMM_SHAPE), RECIPE)
    run.save(tmp_path / "run")
    again = fastntk.Run.load(tmp_path / "run", model=fresh("timm"))
    assert same_logits(again.model, run.model, run.data.inputs)
    assert again.model.active_adapter == "other"
    served = peft().PeftModel.from_pretrained(fresh("timm"), tmp_path / "run" / "adapter")
    assert same_logits(served, run.model, run.data.inputs)


def test_build_model_needs_no_model_to_load(tmp_path: Path) -> None:
    peft()
    for wrap in (False, True):
        model = fastntk.build_model("timm:vit_tiny_patch16_224", num_classes=4, image_size=32)
        if wrap:
            model = lora(model)
        subset = fastntk.tune(model, "lora+head")
        run = fastntk.fit(model, subset, some_samples(TIMM_SHAPE, count=4), fastntk.Recipe(epochs=1))
        assert outside_report(run)["status"] == "pre-trained"
        left = dataclasses.replace(run, subset=fastntk.tune(model, "head"), anchor=torch.zeros(4 * 193))
        assert outside_report(left)["status"] == "differ"
        run.save(tmp_path / f"run-{wrap}")
        again = fastntk.Run.load(tmp_path / f"run-{wrap}")
        assert same_logits(again.model, run.model, run.data.inputs)
        assert fastntk.input_spec(again.model) == fastntk.input_spec(model)


def test_a_changed_backbone_is_seen_behind_the_adapter() -> None:
    peft()
    plain = fastntk.build_model("timm:vit_tiny_patch16_224", num_classes=4, image_size=32)
    run = fastntk.Run(model := lora(plain), subset := fastntk.tune(model, "lora+head"), subset.get(), some_samples(TIMM_SHAPE))
    assert outside_report(run)["status"] == "pre-trained"
    with torch.no_grad():
        model.get_parameter("base_model.model.blocks.0.attn.qkv.base_layer.weight").add_(1)
    assert outside_report(run)["names"] == ["base_model.model.blocks.0.attn.qkv.base_layer.weight"]


def test_a_backbone_that_does_not_fit_is_left_as_it_was(tmp_path: Path) -> None:
    run = a_run("timm")
    run.save(tmp_path / "run")
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for other, message in ((timm_vit(classes=5), "does not fit"), (plain, "adapters of this run do not fit this Sequential")):
        names = list(other.state_dict())
        with pytest.raises(InputError, match=message):
            fastntk.Run.load(tmp_path / "run", model=other)
        assert list(other.state_dict()) == names


def test_tuned_parameters_as_one_file(tmp_path: Path) -> None:
    run = a_run("timm")
    path = fastntk.save_tuned(run.subset, tmp_path / "tuned.safetensors")
    assert same_logits(fastntk.load_tuned(adapted("timm"), path), run.model, run.data.inputs)
    with pytest.raises(InputError, match="with peft, the same adapter"):
        fastntk.load_tuned(fresh("timm"), path)


@pytest.mark.parametrize("damage", ["merged", "disabled"])
def test_a_model_that_would_come_back_as_another_is_not_saved(damage: str, tmp_path: Path) -> None:
    run = a_run("timm")
    model: Any = run.model
    {"merged": model.merge_adapter, "disabled": model.base_model.disable_adapter_layers}[damage]()
    with pytest.raises(InputError, match=r"merged into the weights|no active adapter"):
        run.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
