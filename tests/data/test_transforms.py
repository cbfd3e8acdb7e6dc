from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fastntk.base.errors import InputError
from fastntk.data.transforms import INTERPOLATIONS, prepare
from fastntk.models.card import InputSpec

MEAN, STD = (0.5, 0.25, 0.0), (0.5, 2.0, 1.0)


def spec(size: int, **options: object) -> InputSpec:
    return InputSpec(size, MEAN, STD, **options)  # type: ignore[arg-type]


def test_right_size_is_only_normalised() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    expected = (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[
        :, None, None
    ]
    out = prepare(pixels, spec(8))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected)
    assert torch.equal(out, prepare(Image.fromarray(pixels), spec(8)))


def test_gray_is_repeated() -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    rgb = np.repeat(pixels[:, :, None], 3, axis=2)
    assert torch.equal(prepare(pixels, spec(4)), prepare(rgb, spec(4)))


@pytest.mark.parametrize(("height", "width"), [(6, 12), (12, 6)])
def test_longer_side_is_cut_at_both_ends(height: int, width: int) -> None:
    pixels = np.full((height, width, 3), 255, dtype=np.uint8)
    pixels[height // 2 - 3 : height // 2 + 3, width // 2 - 3 : width // 2 + 3] = 0
    plain = InputSpec(6, (0.0,) * 3, (1.0,) * 3)
    assert prepare(pixels, plain).abs().max() == 0


def test_crop_keeps_the_centre() -> None:
    plain = InputSpec(6, (0.0,) * 3, (1.0,) * 3, crop=0.75)  # resized to 8, which it already is
    pixels = np.full((8, 8, 3), 255, dtype=np.uint8)
    pixels[1:7, 1:7] = 0
    assert prepare(pixels, plain).abs().max() == 0


@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_constant_stays_constant(name: str) -> None:
    out = prepare(np.full((5, 9, 3), 51, dtype=np.uint8), InputSpec(7, (0.0,) * 3, (1.0,) * 3, interpolation=name))
    assert out.shape == (3, 7, 7)
    torch.testing.assert_close(out, torch.full((3, 7, 7), 0.2))


def test_transparency_and_palettes() -> None:
    rgba = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert torch.equal(prepare(rgba, spec(4)), prepare(Image.new("RGB", (4, 4), (10, 20, 30)), spec(4)))
    assert prepare(rgba.convert("P"), spec(4)).shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((4, 4, 3)), r"must be uint8.*not float64 \(4, 4, 3\)"),
        (np.zeros((3, 4, 4), np.uint8), r"\(H, W, 3\).*\(3, 4, 4\)"),
        (np.zeros((0, 4), np.uint8), "no pixels"),
        (Image.new("I;16", (4, 4)), "more than 8 bits"),
    ],
)
def test_bad_pictures(picture: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(picture, spec(4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (InputSpec(4, MEAN, STD, interpolation="magic"), "unknown interpolation 'magic'; use one of nearest, bilinear"),
        (InputSpec(0, MEAN, STD), "at least 1"),
        (InputSpec(4, MEAN, STD, crop=0.0), "crop in"),
        (InputSpec(4, (0.5,), (0.5,)), "3 numbers each"),
        (InputSpec(4, MEAN, (1.0, 0.0, 1.0)), "std above 0"),
    ],
)
def test_bad_specs(bad: InputSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(np.zeros((4, 4, 3), np.uint8), bad)
