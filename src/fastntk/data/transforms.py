"""From a picture to what a model expects, always the same way: no augmentation, no randomness, no torchvision.

    y = (crop(resize(x)) / 255 − mean) / std

The shorter side is resized to ``floor(size / crop)``, the other in proportion, then the centre ``size × size``
is cut out: of a picture that is not square the two ends of its longer side are lost, never its proportions.
Gray becomes RGB by repetition, transparency is dropped. Pictures are taken as stored: EXIF rotation is not applied.

Models of Hugging Face that come with an image processor are the exception: their pictures go through it, as they would elsewhere
(see :mod:`fastntk.models.hf_processor`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from fastntk.base.errors import InputError, listing
from fastntk.data.pictures import MOST_PIXELS
from fastntk.models.card import InputSpec
from fastntk.models.hf_processor import process

Picture = Image.Image | npt.NDArray[np.uint8]

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}

# Modes of more than 8 bits a channel: PIL's conversion to RGB clips them instead of scaling.
_DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


def check_spec(spec: InputSpec) -> None:
    """Refuse an input description that cannot be followed."""
    if not isinstance(spec, InputSpec):
        raise InputError(
            f"spec must be a fastntk.InputSpec: fastntk.input_spec(model), or InputSpec(size, mean, std); got {spec!r}"
        )
    if spec.size < 1 or not 0 < spec.crop <= 1:
        raise InputError(f"image size must be at least 1 and crop in (0, 1], not {spec.size} and {spec.crop}")
    if len(spec.mean) != 3 or len(spec.std) != 3 or min(spec.std) <= 0:
        raise InputError(f"mean and std need 3 numbers each, std above 0, not {spec.mean} and {spec.std}")
    if spec.interpolation not in INTERPOLATIONS:
        raise InputError(f"unknown interpolation {spec.interpolation!r}; use one of {listing(INTERPOLATIONS)}")


UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError)
"""What Pillow raises on a file that it cannot decode."""


def prepare(picture: Picture, spec: InputSpec) -> Tensor:
    """Return a PIL image or uint8 array (H, W, 3) or (H, W) as a float32 tensor (3, size, size)."""
    check_spec(spec)
    _check_picture(picture)
    if spec.processor is not None:
        return _processed(picture, spec, spec.processor)
    image = resize_and_crop(as_rgb(picture), spec)
    pixels = np.asarray(image, dtype=np.float32) / np.float32(255)
    mean, std = np.array(spec.mean, dtype=np.float32), np.array(spec.std, dtype=np.float32)
    pixels = (pixels - mean) / std
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _check_picture(picture: object) -> None:
    """Refuse what is no picture, or one that cannot be decoded."""
    if isinstance(picture, Image.Image):
        try:
            picture.load()
        except UNREADABLE as error:
            raise InputError(f"the picture cannot be decoded: {error}; repair or remove it") from error
    elif not isinstance(picture, np.ndarray):
        raise InputError(f"a picture must be a PIL image or a uint8 array, not {type(picture).__name__}: open files first")


def _processed(picture: Picture, spec: InputSpec, settings: Mapping[str, Any]) -> Tensor:
    # A processor that converts to RGB has a way of its own with transparency.
    own = isinstance(picture, Image.Image) and picture.mode not in _DEEP_MODES and settings.get("do_convert_rgb")
    image = picture if own and isinstance(picture, Image.Image) else as_rgb(picture)
    _refuse_strips(image, spec)
    pixels = process(image, settings)
    if tuple(pixels.shape) != (3, spec.size, spec.size):
        raise InputError(
            f"{settings['image_processor_type']} makes {tuple(pixels.shape)} of a picture of {image.height} × {image.width}, "
            f"where the model takes {(3, spec.size, spec.size)}: its size is {settings.get('size')}, its crop_size "
            f"{settings.get('crop_size')}; crop pictures first, or state your own: fastntk.InputSpec(size, mean, std)"
        )
    return pixels


def as_rgb(picture: Picture) -> Image.Image:
    """Return an 8-bit RGB image; arrays of another type or shape, and deeper images, are refused."""
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or not (picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] == 3)):
            raise InputError(
                f"a picture must be uint8 of shape (H, W, 3), or (H, W) for gray, not {picture.dtype} {picture.shape}"
            )
        if picture.size == 0:
            raise InputError(f"a picture of shape {picture.shape} has no pixels")
        picture = Image.fromarray(np.ascontiguousarray(picture))
    if picture.mode in _DEEP_MODES:
        raise InputError(f"a picture of mode {picture.mode} has more than 8 bits a channel; convert it to 8 bits")
    return picture.convert("RGB")


def resize_and_crop(image: Image.Image, spec: InputSpec) -> Image.Image:
    """Resize the shorter side to floor(size / crop), then cut out the centre (size, size)."""
    _refuse_strips(image, spec)
    width, height = image.size
    shorter = math.floor(spec.size / spec.crop)
    if min(width, height) != shorter:
        # The longer side rounds down, as in the pipelines the published weights were evaluated with.
        longer = int(shorter * max(width, height) / min(width, height))
        size = (shorter, longer) if width <= height else (longer, shorter)
        image = image.resize(size, INTERPOLATIONS[spec.interpolation])
        width, height = image.size
    left, top = round((width - spec.size) / 2), round((height - spec.size) / 2)
    return image.crop((left, top, left + spec.size, top + spec.size))


def _refuse_strips(image: Image.Image, spec: InputSpec) -> None:
    """Refuse a picture so long and thin that resizing its shorter side would take gigabytes."""
    shorter, sides = math.floor(spec.size / spec.crop), sorted(image.size)
    if not sides[0]:
        raise InputError(f"a picture of {image.width} × {image.height} has no pixels")
    if shorter * shorter * sides[1] / sides[0] > MOST_PIXELS:
        raise InputError(
            f"a picture of {image.width} × {image.height} would have more than {MOST_PIXELS:,} pixels when its shorter side is "
            f"resized to {shorter}; crop it, or remove it"
        )
