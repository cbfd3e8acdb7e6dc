"""timm models: heads, sizes, positions, the ViT-S/14 of ../shared."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import save_file

from fastntk.base.errors import InputError
from fastntk.models import build_model, card_of, input_spec
from fastntk.models.torchvision_ops import import_optional

timm = import_optional("timm", extra="timm")

TINY = "timm:vit_tiny_patch16_224"


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("vit_tiny_patch16_224", ["head"]),
        ("resnet10t", ["fc"]),
        ("convnext_atto", ["head.fc"]),
        ("deit_tiny_distilled_patch16_224", ["head", "head_dist"]),
        ("mobilenetv3_small_050", ["classifier"]),
    ],
)
def test_heads_of_every_convention_start_at_zero(name, heads):
    model = build_model(f"timm:{name}", num_classes=7)
    for head in map(model.get_submodule, heads):
        assert head.weight.shape[0] == 7
        assert not head.weight.any()
        assert not head.bias.any()
    assert not model.training
    others = [p for n, p in model.named_parameters() if n.rpartition(".")[0] not in heads]
    assert any(parameter.any() for parameter in others)


def test_image_size_of_a_vit_and_of_a_cnn():
    vit = build_model(TINY, num_classes=3, image_size=32)
    assert vit.pos_embed.shape == (1, 5, 192)
    assert vit(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    cnn = build_model("timm:resnet10t", num_classes=3, image_size=64)
    assert input_spec(cnn).size == card_of(cnn).image_size == 64


def test_input_spec_is_the_publishers():
    spec = input_spec(build_model(TINY, num_classes=3))
    assert (spec.size, spec.mean, spec.interpolation, spec.crop) == (224, (0.5, 0.5, 0.5), "bicubic", 0.9)


def test_wrong_image_size_names_the_multiple():
    with pytest.raises(InputError, match=r"patches are 16 pixels wide.*multiple of 16, such as 32 or 48"):
        build_model(TINY, num_classes=3, image_size=40)


def test_a_size_the_network_cannot_take_is_refused():
    with pytest.raises(InputError, match=r"image_size=8"):
        build_model("timm:swin_tiny_patch4_window7_224", num_classes=3, image_size=8)


def test_positions_are_resampled_by_timm_and_said(tmp_path):
    big = build_model(TINY, num_classes=3, image_size=64, seed=1)
    save_file(big.state_dict(), tmp_path / "big.safetensors")
    small = build_model(TINY, num_classes=9, image_size=32, weights=tmp_path / "big.safetensors")
    expected = timm.layers.resample_abs_pos_embed(big.pos_embed, new_size=[2, 2], num_prefix_tokens=1)
    torch.testing.assert_close(small.pos_embed, expected)
    assert torch.equal(small.blocks[3].attn.qkv.weight, big.blocks[3].attn.qkv.weight)
    assert "resampled pos_embed from (1, 17, 192) to (1, 5, 192)" in card_of(small).notes[0]
    same = build_model(TINY, num_classes=9, image_size=64, weights=tmp_path / "big.safetensors")
    assert torch.equal(same.pos_embed, big.pos_embed)
    assert card_of(same).notes == ()


def test_weights_that_do_not_fit_are_named(tmp_path):
    state = build_model(TINY, num_classes=3, image_size=32).state_dict()
    del state["blocks.0.norm1.weight"]
    save_file(state, tmp_path / "cut.safetensors")
    with pytest.raises(InputError, match=r"missing: blocks.0.norm1.weight"):
        build_model(TINY, num_classes=3, image_size=32, weights=tmp_path / "cut.safetensors")
    save_file(build_model("resnet20", num_classes=3).state_dict(), tmp_path / "cnn.safetensors")
    with pytest.raises(InputError, match=r"missing: .*unexpected: "):
        build_model(TINY, num_classes=3, image_size=32, weights=tmp_path / "cnn.safetensors")


def test_unknown_names_and_weights():
    with pytest.raises(InputError, match=r"no model 'vit_tiny_patch16_225'; similar: .*vit_tiny_patch16_224"):
        build_model("timm:vit_tiny_patch16_225", num_classes=3)
    with pytest.raises(InputError, match=r"known for timm:resnet10t \(one of: pretrained\)"):
        build_model("timm:resnet10t", num_classes=3, weights="cifar100")


def test_models_without_published_weights_say_so_before_any_download():
    published = {name.partition(".")[0] for name in timm.list_pretrained()}
    name = next(name for name in timm.list_models("resnet*") if name not in published)
    with pytest.raises(InputError, match=f"timm:{name} has no published weights"):
        build_model(f"timm:{name}", num_classes=3, weights="pretrained")


def test_publishers_weights_keep_the_backbone_and_lose_the_head(monkeypatch):
    """The download itself is timm's; here it is replaced by a model in memory."""
    published = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3)
    create = timm.create_model

    def offline(name, *, pretrained, **arguments):
        return copy.deepcopy(published) if pretrained else create(name, **arguments)

    monkeypatch.setattr(timm, "create_model", offline)
    model = build_model(TINY, num_classes=3, image_size=32, weights="pretrained")
    assert torch.equal(model.blocks[0].mlp.fc1.weight, published.blocks[0].mlp.fc1.weight)
    assert published.head.weight.any()
    assert not model.head.weight.any()


def test_the_shared_vit_small_loads_at_112_pixels(shared):
    model = build_model(
        "timm:vit_small_patch14_dinov2",
        num_classes=10,
        image_size=112,
        weights=shared("weights/vit_small_patch14_dinov2.safetensors"),
    )
    assert model.pos_embed.shape == (1, 65, 384)
    assert model.pos_embed.dtype == torch.float32
    assert not model.head.weight.any()
    card = card_of(model)
    assert (card.image_size, card.input.mean) == (112, (0.485, 0.456, 0.406))
    assert "resampled pos_embed from (1, 1370, 384) to (1, 65, 384)" in card.notes[0]
    with torch.no_grad():
        features = model.forward_features(torch.randn(1, 3, 112, 112))
    assert torch.isfinite(features).all()
