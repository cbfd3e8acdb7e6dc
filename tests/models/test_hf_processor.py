"""Pictures for Hugging Face models, beside what their own image processors make of the same files."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastntk.base.errors import InputError
from fastntk.data import load_source
from fastntk.data.transforms import prepare
from fastntk.models import InputSpec, build_model, card_of, input_spec, logits
from fastntk.models.card import card_from_dict
from fastntk.models.hf_processor import normalisation, process, scaled
from fastntk.models.torchvision_ops import import_optional

transformers = import_optional("transformers", extra="hf")

SIDE = 32
SHAPES = ((90, 60), (60, 90), (48, 48), (31, 47))
CROP = {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": SIDE, "width": SIDE}}
SQUASH = {"size": {"height": SIDE, "width": SIDE}}

PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "squash": ("ViTImageProcessor", SQUASH),
    "squash-bicubic": (
        "ViTImageProcessor",
        {**SQUASH, "resample": 3, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    ),
    "squash-lanczos": ("ViTImageProcessor", {**SQUASH, "resample": 1}),
    "no-normalisation": ("ViTImageProcessor", {**SQUASH, "do_normalize": False}),
    "no-rescaling": ("ViTImageProcessor", {**SQUASH, "do_rescale": False, "image_mean": [127.0] * 3, "image_std": [90.0] * 3}),
    "raw-pixels": ("ViTImageProcessor", {**SQUASH, "do_rescale": False, "do_normalize": False}),
    "other-factor": (
        "ViTImageProcessor",
        {**SQUASH, "rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
    ),
    "shortest-edge": ("CLIPImageProcessor", CROP),
    "crop-beyond-the-edge": ("CLIPImageProcessor", {**CROP, "size": {"shortest_edge": 24}}),
    "bit": ("BitImageProcessor", CROP),
    "convnext": ("ConvNextImageProcessor", {"size": {"shortest_edge": SIDE}, "crop_pct": 0.8}),
    "convnext-resample": ("ConvNextImageProcessor", {"size": {"shortest_edge": SIDE}, "resample": 2}),
    "deit": ("DeiTImageProcessor", {"size": {"height": 36, "width": 36}, "crop_size": {"height": SIDE, "width": SIDE}}),
    "efficientnet": ("EfficientNetImageProcessor", SQUASH),
    "beit": ("BeitImageProcessor", SQUASH),
    "mobilevit": ("MobileViTImageProcessor", CROP),
    "levit": ("LevitImageProcessor", CROP),
    "siglip": ("SiglipImageProcessor", SQUASH),
}


def smooth(width: int, height: int, *, seed: int) -> Image.Image:
    """A picture with structure at several scales: where it is resized differently, its pixels are far apart."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=SIDE, patch_size=8,
        num_labels=5, initializer_range=0.4,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("vit")
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def save(vit: Path, tmp_path: Path) -> Any:
    """A function: the folder of the tiny ViT with another image processor beside it."""

    def saved(kind: str, settings: dict[str, Any]) -> tuple[Path, Any]:
        processor = getattr(transformers, kind)(**settings)
        folder = tmp_path / "model"
        folder.mkdir()
        for file in vit.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        processor.save_pretrained(folder)
        return folder, processor

    return saved


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_inputs_are_those_of_the_processor(name: str, backend: str, save: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, settings = PROCESSORS[name]
    folder, theirs = save(kind if backend == "torchvision" else f"{kind}Pil", settings)
    auto = transformers.AutoImageProcessor
    monkeypatch.setattr(auto, "from_pretrained", functools.partial(auto.from_pretrained, backend=backend))
    model = build_model(f"hf:{folder}", num_classes=5)
    spec = input_spec(model)
    assert (spec.size, spec.source) == (SIDE, type(theirs).__name__)
    assert card_of(model).notes == ()
    for number, shape in enumerate(SHAPES):
        picture = smooth(*shape, seed=number)
        expected = theirs(picture, return_tensors="pt")["pixel_values"][0].float()
        assert torch.equal(prepare(picture, spec), expected)


def test_geometry_beside_pillow_by_hand(save: Any) -> None:
    """What `size` means, without transformers: a squash and a crop, to one level of 255."""
    picture = smooth(90, 60, seed=0)
    by_hand = {
        "ViTImageProcessor": (SQUASH, picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)),
        "CLIPImageProcessor": (CROP, picture.resize((60, 40), Image.Resampling.BICUBIC).crop((14, 4, 46, 36))),
    }
    for kind, (settings, expected) in by_hand.items():
        plain = {**settings, "do_normalize": False}
        spec = InputSpec(SIDE, (0.0,) * 3, (1.0,) * 3, processor={"image_processor_type": kind, **plain})
        ours = 255 * prepare(picture, spec)
        theirs = torch.from_numpy(np.array(expected)).permute(2, 0, 1).float()
        assert (ours - theirs).abs().max() <= 1.01, kind
    squashed, cropped = (np.asarray(image, float) for _, image in by_hand.values())
    assert np.abs(squashed - cropped).max() > 25  # the two are different pictures


def test_predictions_on_oblong_files_are_the_same(save: Any, tmp_path: Path) -> None:
    folder, processor = save("ViTImageProcessor", {"size": {"height": SIDE, "width": SIDE}})
    for number in range(40):
        path = tmp_path / "photos" / f"class-{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        smooth(*SHAPES[number % 2], seed=number).save(path)
    spec = input_spec(build_model(f"hf:{folder}", num_classes=5))
    samples = load_source(tmp_path / "photos", spec=spec)
    network = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        files = [Image.open(tmp_path / "photos" / name) for name in samples.ids]
        theirs = network(**processor(files, return_tensors="pt")).logits
        ours = logits(network, samples.inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.argmax(1), theirs.argmax(1))
    assert len(ours.argmax(1).unique()) > 1
    # The test can fail: with the shorter side resized and the ends cut off, some predictions are others.
    cut = InputSpec(SIDE, spec.mean, spec.std)
    other = logits(network, torch.stack([prepare(file, cut) for file in files])).argmax(1)
    assert not torch.equal(other, theirs.argmax(1))


def test_the_command_line_says_what_was_assumed_or_changed(vit: Path, save: Any, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fastntk.cli.app import app

    folder, _ = save("ViTImageProcessor", {"size": {"height": 48, "width": 48}})
    small = ["--data", "digits", "--images-per-class", "2", "--only-classes", "2", "--epochs", "1", "--tune", "head"]
    for model, note in ((folder, "made for 48 × 48, is set to 32 × 32"), (vit, "has no preprocessor_config.json")):
        outcome = CliRunner().invoke(app, ["finetune", f"hf:{model}", *small, "--out", str(tmp_path / f"run-{model.name}")])
        assert outcome.exit_code == 0, outcome.output
        assert note in outcome.stdout


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "LA"])
def test_other_modes(mode: str, save: Any) -> None:
    """A processor that converts does so itself (transparency on white, in the present one); others get RGB."""
    picture = smooth(50, 40, seed=3).convert(mode)
    if "A" in mode:
        picture.putalpha(128)
    folder, converting = save("CLIPImageProcessor", CROP)
    spec = input_spec(build_model(f"hf:{folder}", num_classes=5))
    assert torch.equal(prepare(picture, spec), converting(picture, return_tensors="pt")["pixel_values"][0])
    plain = {"image_processor_type": "ViTImageProcessor", **SQUASH}
    inputs = prepare(picture, InputSpec(SIDE, (0.5,) * 3, (0.5,) * 3, processor=plain))
    assert torch.equal(inputs, process(picture.convert("RGB"), plain))


def test_arrays_and_deep_pictures(save: Any) -> None:
    folder, _ = save("CLIPImageProcessor", CROP)
    spec = input_spec(build_model(f"hf:{folder}", num_classes=5))
    picture = smooth(50, 40, seed=3)
    assert torch.equal(prepare(np.asarray(picture), spec), prepare(picture, spec))
    with pytest.raises(InputError, match="more than 8 bits"):
        prepare(Image.new("I;16", (40, 40)), spec)


def test_the_card_survives_json_with_its_processor(save: Any) -> None:
    import dataclasses

    folder, _ = save("ConvNextImageProcessor", {"size": {"shortest_edge": SIDE}})
    card = card_of(build_model(f"hf:{folder}", num_classes=5))
    again = card_from_dict(json.loads(json.dumps(dataclasses.asdict(card))))
    assert again == card
    assert (hash(again), hash(again.input)) == (hash(card), hash(card.input))
    picture = smooth(90, 60, seed=0)
    assert torch.equal(prepare(picture, again.input), prepare(picture, card.input))


def test_another_size_scales_the_processor(save: Any) -> None:
    folder, processor = save("CLIPImageProcessor", CROP)
    model = build_model(f"hf:{folder}", num_classes=5, image_size=64)
    spec = input_spec(model)
    assert spec.size == 64
    assert (spec.processor["size"], spec.processor["crop_size"]) == ({"shortest_edge": 80}, {"height": 64, "width": 64})
    assert "made for 32 × 32, is set to 64 × 64" in card_of(model).notes[-1]
    twice = type(processor)(**{**CROP, "size": {"shortest_edge": 80}, "crop_size": {"height": 64, "width": 64}})
    picture = smooth(90, 60, seed=0)
    assert torch.equal(prepare(picture, spec), twice(picture, return_tensors="pt")["pixel_values"][0])
    assert scaled({"size": {"shortest_edge": 256}, "do_resize": True}, by=(32, 224))["size"] == {"shortest_edge": 36}


def test_a_processor_for_another_size_than_the_network(save: Any, tmp_path: Path) -> None:
    """A ViT takes one size, so its processor is set to that; where a network takes the processor's size, that one is used."""
    folder, _ = save("ViTImageProcessor", {"size": {"height": 48, "width": 48}})
    model = build_model(f"hf:{folder}", num_classes=5)
    assert input_spec(model).size == SIDE
    assert "made for 48 × 48, is set to 32 × 32" in card_of(model).notes[-1]
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=56, patch_size=14, num_labels=5
    )
    other = tmp_path / "dino"
    transformers.Dinov2ForImageClassification(config).save_pretrained(other)
    transformers.BitImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 28, "width": 28}).save_pretrained(other)
    model = build_model(f"hf:{other}", num_classes=5)
    assert input_spec(model).size == card_of(model).image_size == 28
    assert card_of(model).notes == ()


def test_what_cannot_be_loaded_is_said(save: Any) -> None:
    folder, _ = save("CLIPImageProcessor", {"size": {"shortest_edge": SIDE}, "do_center_crop": False})
    model = build_model(f"hf:{folder}", num_classes=5)
    assert "only those that are can be loaded" in card_of(model).notes[-1]
    assert prepare(smooth(50, 50, seed=0), input_spec(model)).shape == (3, SIDE, SIDE)
    with pytest.raises(
        InputError, match=r"CLIPImageProcessor makes \(3, 32, 48\) of a picture of 60 × 90.*takes \(3, 32, 32\).*crop"
    ):
        prepare(smooth(90, 60, seed=0), input_spec(model))


def test_a_processor_that_does_not_resize(save: Any) -> None:
    folder, _ = save("ViTImageProcessor", {"do_resize": False})
    model = build_model(f"hf:{folder}", num_classes=5)
    assert "sets no size" in card_of(model).notes[0]
    assert prepare(smooth(SIDE, SIDE, seed=0), input_spec(model)).shape == (3, SIDE, SIDE)
    with pytest.raises(InputError, match=r"makes \(3, 40, 40\)"):
        prepare(smooth(40, 40, seed=0), input_spec(model))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{broken", "not a valid JSON"),
        ('{"image_processor_type": "NoSuchImageProcessor"}', "Unrecognized image processor"),
        ('{"image_processor_type": "ViTImageProcessor", "size": "large"}', "cannot be used"),
        ('{"image_processor_type": "ViTImageProcessor", "rescale_factor": 0}', "ZeroDivisionError"),
        ('{"image_processor_type": "ViTImageProcessor", "resample": 99}', "KeyError: 99"),
        ('{"image_processor_type": "ViTImageProcessor", "resample": "bilinear"}', "not a valid Resampling"),
        ('{"image_processor_type": "ViTImageProcessor", "image_mean": null}', "image_mean"),
    ],
)
def test_unusable_processors_are_refused(text: str, message: str, save: Any) -> None:
    folder, _ = save("ViTImageProcessor", SQUASH)
    (folder / "preprocessor_config.json").write_text(text)
    with pytest.raises(InputError, match=f"{message}.*preprocessor_config.json"):
        build_model(f"hf:{folder}", num_classes=5)


def test_one_mean_is_for_all_channels(save: Any) -> None:
    folder, _ = save("ViTImageProcessor", SQUASH)
    settings = json.loads((folder / "preprocessor_config.json").read_text()) | {"image_mean": [0.4], "image_std": [0.2]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    spec = input_spec(build_model(f"hf:{folder}", num_classes=5))
    assert (spec.mean, spec.std) == ((0.4,) * 3, (0.2,) * 3)
    assert prepare(smooth(40, 40, seed=0), spec).shape == (3, SIDE, SIDE)


def test_only_image_processors_are_made() -> None:
    for name in ("pipeline", "ViTModel", "NoSuchImageProcessor"):
        with pytest.raises(InputError, match=f"no image processor '{name}'"):
            process(Image.new("RGB", (8, 8)), {"image_processor_type": name})


@pytest.mark.parametrize("name", ["squash-bicubic", "no-normalisation", "no-rescaling", "raw-pixels", "other-factor"])
def test_mean_and_std_undo_the_normalisation(name: str) -> None:
    """Reports show pictures from inputs: inputs · std + mean are pixels in [0, 1]."""
    kind, settings = PROCESSORS[name]
    full = json.loads(getattr(transformers, kind)(**settings).to_json_string())
    colour = (10, 128, 240)
    inputs = process(Image.new("RGB", (40, 40), colour), full)
    mean, std = (torch.tensor(values)[:, None, None] for values in normalisation(full))
    torch.testing.assert_close(255 * (inputs * std + mean), torch.tensor(colour)[:, None, None].expand(3, 32, 32).float())
