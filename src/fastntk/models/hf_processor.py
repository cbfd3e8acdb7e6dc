"""The image processor of a Hugging Face model: its settings as plain data, and pictures through the processor itself.

Nothing is imitated: sizes, crops, filters and numbers are those of the class that transformers chooses here (the one backed by
torchvision where that is installed, else by Pillow). A card keeps its settings with the name of that class, so that a run finds
the same one again. Code that a checkpoint brings along is never run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.models.foreign_code import refuse_code
from fastntk.models.torchvision_ops import import_optional

# Width and height of blank pictures that show what a processor makes of sizes and proportions.
_SQUARES, _OBLONGS = ((96, 96), (64, 64)), ((96, 64), (64, 96))


def read_settings(transformers: Any, location: str, *, name: str) -> dict[str, Any] | None:
    """The settings of the processor saved with a model; None where there is none, an error where it cannot be used."""
    for file in _saved(transformers, location):
        refuse_code(_content(Path(file)), where=f"{name}: {Path(file).name}")
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(location, trust_remote_code=False)
        settings: dict[str, Any] = json.loads(processor.to_json_string())
        settings["image_processor_type"] = type(processor).__name__  # the saved form leaves out which of the two it is
        process(Image.new("RGB", _SQUARES[0]), settings)
        normalisation(settings)
        interpolation(settings)
    except Exception as error:  # transformers raises many kinds: wrong files, unknown classes, packages that are missing
        if isinstance(error, OSError) and not _saved(transformers, location):
            return None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{name}: the image processor saved with it cannot be used, so nothing says how pictures become its inputs: "
            f"{reason.rstrip('.')}. Repair or replace its preprocessor_config.json"
        ) from error
    return settings


def process(picture: Image.Image, settings: Mapping[str, Any]) -> Tensor:
    """Return what the processor of these settings makes of one picture, in float32: (3, H, W) for those that are usable here."""
    try:
        pixels = _processor(json.dumps(settings, sort_keys=True))(picture, return_tensors="pt")["pixel_values"]
    except (ValueError, RuntimeError, TypeError, ArithmeticError, LookupError) as error:
        raise InputError(
            f"{settings['image_processor_type']} cannot take this picture: {type(error).__name__}: {error}"
        ) from error
    tensor: Tensor = pixels[0].to(torch.float32)
    return tensor


def output_side(settings: Mapping[str, Any]) -> int | None:
    """The side of the square that becomes of a square picture; None where that depends on the picture's size."""
    shapes = {tuple(process(Image.new("RGB", size), settings).shape) for size in _SQUARES}
    shape = shapes.pop()
    return shape[-1] if not shapes and len(shape) == 3 and shape[-1] == shape[-2] else None


def keeps_proportions(settings: Mapping[str, Any]) -> bool:
    """Whether a picture that is not square becomes an input that is not square."""
    return any(len(set(process(Image.new("RGB", size), settings).shape[-2:])) > 1 for size in _OBLONGS)


def scaled(settings: Mapping[str, Any], *, by: tuple[int, int]) -> dict[str, Any]:
    """The settings for a side of ``by[0]`` instead of ``by[1]`` pixels: resizing and cropping in proportion, rounded down."""

    def times(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: times(part) for name, part in value.items()}
        return int(value * by[0] // by[1]) if isinstance(value, int | float) else value

    return {name: times(value) if name in ("size", "crop_size") else value for name, value in settings.items()}


def normalisation(settings: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std, for pixels in [0, 1], that the processor's rescaling and normalisation amount to together."""
    factor = 255 * settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 255.0
    mean, std = [0.0] * 3, [1.0] * 3
    if settings.get("do_normalize", True):
        mean, std = _three(settings["image_mean"]), _three(settings["image_std"])
    return tuple(value / factor for value in mean), tuple(value / factor for value in std)


def interpolation(settings: Mapping[str, Any]) -> str:
    """The name of the filter that it resizes with."""
    resample = settings.get("resample")
    return "bilinear" if resample is None else Image.Resampling(resample).name.lower()


def _three(value: float | list[float]) -> list[float]:
    """One number, alone or in a list, is for all channels."""
    numbers = value if isinstance(value, list) else [value]
    return numbers * 3 if len(numbers) == 1 else numbers


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None  # transformers will say what is wrong with it


def _saved(transformers: Any, location: str) -> list[str]:
    """The files that say what a processor is, those that are there; in newer folders it is a part of the second."""
    quiet = dict.fromkeys(("gated_repo", "missing_entries", "connection_errors"), False)
    flags = {f"_raise_exceptions_for_{name}": value for name, value in quiet.items()}
    names = ("preprocessor_config.json", "processor_config.json")
    return [path for name in names if (path := transformers.utils.cached_file(location, name, **flags)) is not None]


@functools.lru_cache(maxsize=4)
def _processor(settings: str) -> Any:
    """The processor of settings given as JSON; only classes of transformers that are image processors are made."""
    transformers = import_optional("transformers", extra="hf")
    values = json.loads(settings)
    refuse_code(values, where="the image processor of the model's card")
    name = values.pop("image_processor_type")
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.ImageProcessingMixin)):
        raise InputError(f"transformers {transformers.__version__} has no image processor {name!r}: install one that has it")
    try:
        return kind(**values)
    except ImportError as error:
        raise InputError(f"the image processor {name} cannot be made here: {error}") from error
