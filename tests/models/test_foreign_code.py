"""Configurations that bring code along: refused before anything of it could run, nobody is asked."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fastntk
from fastntk.base.errors import InputError
from fastntk.models.foreign_code import refuse_code
from fastntk.models.hf_processor import process
from fastntk.models.torchvision_ops import import_optional
from fastntk.storage.adapters import with_adapters
from fastntk.storage.manifest import SEAL, seal

transformers = import_optional("transformers", extra="hf")
MARK = "code-ran"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model with a Python file beside it that leaves a mark when it runs; whoever is asked says yes."""
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.ViTConfig(**shape, image_size=32, patch_size=16)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "model")
    mark = tmp_path / MARK
    base = "from transformers import ViTConfig as Own, ViTForImageClassification as OwnModel, ViTImageProcessor as OwnProcessor\n"
    (tmp_path / "model" / "own.py").write_text(f"{base}open({str(mark)!r}, 'w').close()\n")
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path / "model"


def change(path: Path, **entries: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | entries))


def refused(folder: Path, *places: str) -> None:
    with pytest.raises(InputError, match="code of its own") as error:
        fastntk.build_model(f"hf:{folder}", num_classes=3)
    assert all(place in str(error.value) for place in places)
    assert not (folder.parent / MARK).exists()


def test_a_configuration_that_names_code_is_refused(folder: Path) -> None:
    change(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModel": "own.OwnModel"})
    refused(folder, "auto_map")


def test_also_where_transformers_has_the_architecture_itself(folder: Path) -> None:
    change(folder / "config.json", auto_map={"AutoModelForImageClassification": "own.OwnModel"})
    refused(folder, "auto_map")


def test_nested_configurations_are_looked_into(folder: Path) -> None:
    change(folder / "config.json", backbone_config={"parts": [{"auto_map": {"AutoConfig": "own.Own"}}]})
    refused(folder, "backbone_config.parts[0].auto_map")


def test_a_kernel_of_the_hub_is_code_too(folder: Path) -> None:
    change(folder / "config.json", attn_implementation="somebody/attention")
    refused(folder, "attn_implementation")


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_a_processor_that_names_code_is_refused(folder: Path, file: str) -> None:
    named = {"image_processor_type": "OwnProcessor", "auto_map": {"AutoImageProcessor": "own.OwnProcessor"}}
    change(folder / file, **(named if file.startswith("pre") else {"image_processor": named}))
    refused(folder, file, "auto_map")


def test_settings_in_a_card_are_looked_at(folder: Path) -> None:
    from PIL import Image

    with pytest.raises(InputError, match=r"image processor.*code of its own"):
        process(
            Image.new("RGB", (4, 4)), {"image_processor_type": "ViTImageProcessor", "auto_map": {"AutoImageProcessor": "a.B"}}
        )


def test_a_run_whose_configuration_names_code_is_refused(folder: Path, tmp_path: Path) -> None:
    model = fastntk.build_model(f"hf:{folder}", num_classes=3)
    subset = fastntk.tune(model, "head")
    samples = fastntk.Samples(torch.zeros(3, 3, 32, 32), [0, 1, 2])
    run = fastntk.Run(model, subset, subset.get(), samples).save(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["model"]["config"]["auto_map"] = {"AutoModelForImageClassification": f"{folder}--own.OwnModel"}
    manifest[SEAL] = seal(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"model configuration in .*run asks for code of its own to be run \(auto_map\)"):
        fastntk.load_run(run)
    assert not (tmp_path / MARK).exists()


def test_an_adapter_that_names_a_module_is_refused() -> None:
    import_optional("peft", extra="peft")
    stored = {"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "this"}
    with pytest.raises(InputError, match=r"adapter.*megatron_config"):
        with_adapters(torch.nn.Linear(2, 2), {"configs": {"default": stored}, "wrapped": False, "active": "default"})


def test_what_asks_for_nothing_passes() -> None:
    refuse_code({"auto_map": None, "attn_implementation": "sdpa", "parts": [{"auto_map": {}}]}, where="it")
