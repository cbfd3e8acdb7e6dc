"""Hugging Face models, from a folder on disk: heads, sizes, positions, preprocessing."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastntk.base.errors import InputError
from fastntk.models import build_model, card_of, input_spec, logits
from fastntk.models.positions import resample_positions
from fastntk.models.torchvision_ops import import_optional

transformers = import_optional("transformers", extra="hf")


@pytest.fixture(scope="module")
def published():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.ViTForImageClassification(config).eval()
    torch.nn.init.normal_(model.vit.embeddings.position_embeddings)
    return model


@pytest.fixture(scope="module")
def folder(published, tmp_path_factory):
    path = tmp_path_factory.mktemp("vit")
    published.save_pretrained(path)
    return path


def backbone_equal(model, other, *, but=()):
    theirs = other.state_dict()
    skip = ("classifier", *but)
    return all(torch.equal(v, theirs[n]) for n, v in model.state_dict().items() if not n.startswith(skip))


def test_the_folders_weights_with_a_new_zero_head(folder, published):
    model = build_model(f"hf:{folder}", num_classes=3, weights="pretrained")
    assert backbone_equal(model, published)
    assert not model.classifier.weight.any()
    assert not model.classifier.bias.any()
    assert model.config.num_labels == 3
    assert model.config._attn_implementation == "sdpa"
    assert logits(model, torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert len(card_of(model).weights_sha256) == 64


def test_the_head_is_zero_even_where_it_would_fit(folder, published):
    model = build_model(f"hf:{folder}", num_classes=5, weights="pretrained")
    assert published.classifier.weight.any()
    assert not model.classifier.weight.any()


def test_random_weights_differ_from_the_folders(folder, published):
    model = build_model(f"hf:{folder}", num_classes=3)
    assert not backbone_equal(model, published)
    assert not model.classifier.weight.any()


def test_weights_from_a_file(folder, published, tmp_path):
    torch.save(published.state_dict(), tmp_path / "w.pt")
    assert backbone_equal(build_model(f"hf:{folder}", num_classes=3, weights=tmp_path / "w.pt"), published)
    saved = build_model(f"hf:{folder}", num_classes=3, weights=folder / "model.safetensors")
    assert backbone_equal(saved, published)


def test_misfits_are_named(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    norm = next(name for name in tensors if "layernorm_before.weight" in name)
    norm_gone = {name: value for name, value in tensors.items() if name != norm}
    save_file(norm_gone | {"vit.extra": torch.zeros(2)}, tmp_path / "cut.safetensors")
    with pytest.raises(InputError, match=r"missing: .*layernorm_before.weight; unexpected: vit.extra"):
        build_model(f"hf:{folder}", num_classes=3, weights=tmp_path / "cut.safetensors")
    save_file(tensors | {"vit.layernorm.bias": torch.zeros(2)}, tmp_path / "shape.safetensors")
    with pytest.raises(InputError, match=r"wrong shape: vit.layernorm.bias \(2,\) \(expected \(16,\)\)"):
        build_model(f"hf:{folder}", num_classes=3, weights=tmp_path / "shape.safetensors")


@pytest.mark.parametrize("size", [16, 64])
def test_another_image_size_resamples_positions_as_vit_itself_would(folder, published, size):
    model = build_model(f"hf:{folder}", num_classes=3, weights="pretrained", image_size=size)
    name, tokens = "vit.embeddings.position_embeddings", 1 + (size // 8) ** 2
    assert backbone_equal(model, published, but=(name,))
    theirs = published.vit.embeddings.interpolate_pos_encoding(torch.zeros(1, tokens, 16), size, size)
    torch.testing.assert_close(model.state_dict()[name], theirs.detach())
    assert f"resampled {name} from (1, 17, 16) to (1, {tokens}, 16)" in card_of(model).notes[0]
    assert input_spec(model).size == model.config.image_size == size


def test_positions_of_the_same_grid_and_of_a_constant_stay():
    positions = torch.randn(1, 18, 4)
    torch.testing.assert_close(resample_positions(positions, tokens=18, grid=4), positions)
    constant = torch.ones(1, 17, 4)
    torch.testing.assert_close(resample_positions(constant, tokens=10, grid=3), torch.ones(1, 10, 4))
    with pytest.raises(InputError, match="cannot resample positions of shape"):
        resample_positions(torch.zeros(1, 19, 4), tokens=10, grid=3)


def test_wrong_image_size(folder):
    with pytest.raises(InputError, match=r"patches are 8 pixels wide.*multiple of 8, such as 32 or 40"):
        build_model(f"hf:{folder}", num_classes=3, image_size=36)


def test_preprocessing_is_read_or_said_to_be_assumed(published, tmp_path):
    published.save_pretrained(tmp_path)
    model = build_model(f"hf:{tmp_path}", num_classes=3)
    assert input_spec(model).mean == (0.5, 0.5, 0.5)
    assert "no preprocessor_config.json" in card_of(model).notes[-1]
    settings = {
        "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "resample": 3, "size": {"shortest_edge": 40},
        "do_center_crop": True, "crop_size": {"height": 32, "width": 32},
    }  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    model = build_model(f"hf:{tmp_path}", num_classes=3)
    spec = input_spec(model)
    assert (spec.size, spec.mean, spec.std) == (32, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (spec.interpolation, spec.processor["size"]) == ("bicubic", {"shortest_edge": 40})
    assert card_of(model).notes == ()


def test_networks_without_attention_say_so(tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
    model = build_model(f"hf:{tmp_path}", num_classes=3, weights="pretrained", image_size=40)
    assert not model.classifier[1].weight.any()
    assert any("no sdpa attention" in note for note in card_of(model).notes)
    assert logits(model, torch.zeros(1, 3, 40, 40)).shape == (1, 3)


def test_missing_folder_and_wrong_architecture(tmp_path):
    with pytest.raises(InputError, match=r"looks like a folder, but there is none"):
        build_model(f"hf:{tmp_path}/absent", num_classes=3)
    with pytest.raises(InputError, match=r"neither a folder saved by save_pretrained"):
        build_model(f"hf:{tmp_path}", num_classes=3)
    transformers.BertConfig(hidden_size=8, num_attention_heads=1).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="not an image classifier of transformers"):
        build_model(f"hf:{tmp_path}", num_classes=3)
