"""Build any classifier of timm for a new set of classes and, where it has positions, another image size.

timm's own code resamples position embeddings and renames old checkpoints (its ``checkpoint_filter_fn``); what it
changed is said in the card's notes. Needs the extra ``timm``.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fastntk.base.digest import file_digest
from fastntk.base.errors import InputError, listing
from fastntk.models.card import InputSpec
from fastntk.models.loading import head_names, load_backbone, output_layers, zero_head
from fastntk.models.parts import Built
from fastntk.models.torchvision_ops import import_optional
from fastntk.models.weights import read_weights, weights_file


def build_timm(name: str, *, num_classes: int, weights: str | Path | None, image_size: int | None) -> Built:
    """Build ``timm:<name>``: random, the publisher's weights, or those of a file; the head is zero."""
    timm = import_optional("timm", extra="timm")
    _check_name(timm, name)
    sizes = _size_arguments(timm, name, image_size=image_size)
    model = _create(timm, name, pretrained=False, num_classes=num_classes, **sizes)
    if sizes:
        _check_patches(model, name=name, image_size=sizes["img_size"])
    heads = _heads(model, name=name, num_classes=num_classes)
    notes: tuple[str, ...] = ()
    sha256 = None
    if weights == "pretrained":
        _check_published(model, name=name)
        model = _create(timm, name, pretrained=True, num_classes=num_classes, **sizes)
        heads = _heads(model, name=name, num_classes=num_classes)
    elif weights is not None:
        path = weights_file(weights, model=f"timm:{name}", known=["pretrained"])
        tensors, notes = _adapted(model, read_weights(path), source=str(path))
        load_backbone(model, tensors, heads=heads, source=str(path))
        sha256 = file_digest(path)
    zero_head(model, heads=heads)
    return Built(model, spec=_input_spec(timm, model, image_size=image_size), weights_sha256=sha256, notes=notes)


def _check_name(timm: Any, name: str) -> None:
    if timm.is_model(name.partition(".")[0]) or name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        return
    similar = difflib.get_close_matches(name.partition(".")[0], timm.list_models(), n=5)
    hint = f"; similar: {listing(similar)}" if similar else ""
    raise InputError(f"timm {timm.__version__} has no model {name!r}{hint}; timm.list_models() has all names")


def _size_arguments(timm: Any, name: str, *, image_size: int | None) -> dict[str, Any]:
    """Models with fixed positions are built for a size; convolutional ones take any size and know no argument."""
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return {"img_size": image_size} if image_size is not None and config.fixed_input_size else {}


def _create(timm: Any, name: str, **arguments: Any) -> nn.Module:
    try:
        model = timm.create_model(name, **arguments)
    except Exception as error:  # whatever timm, the hub or the network raises, the user asked for this model
        what = "publisher's weights of " if arguments.get("pretrained") else ""
        raise InputError(f"timm could not build the {what}model {name!r} with {arguments}: {error}") from error
    assert isinstance(model, nn.Module)
    return model


def _check_patches(model: nn.Module, *, name: str, image_size: int) -> None:
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    sides = set(patch) if isinstance(patch, Iterable) else {patch} if patch else set()
    for side in sides:
        if image_size % side:
            lower, upper = image_size // side * side, (image_size // side + 1) * side
            near = f"{lower} or {upper}" if lower else f"{upper}"
            raise InputError(
                f"image_size={image_size} does not fit timm:{name}: its patches are {side} pixels wide, so the size "
                f"must be a multiple of {side}, such as {near}"
            )


def _heads(model: nn.Module, *, name: str, num_classes: int) -> tuple[str, ...]:
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else ()  # type: ignore[operator]
    roots = classifier if isinstance(classifier, tuple | list) else (classifier,)
    inner = [module for root in roots if isinstance(root, nn.Module) for module in root.modules()]
    heads = head_names(model, output_layers(inner, num_classes=num_classes))
    if not heads:
        raise InputError(
            f"timm:{name} has no linear classifier with {num_classes} outputs (get_classifier() returned "
            f"{type(classifier).__name__}): choose a classification model"
        )
    return heads


def _check_published(model: nn.Module, *, name: str) -> None:
    config = getattr(model, "pretrained_cfg", None) or {}
    if not any(config.get(key) for key in ("url", "hf_hub_id", "file", "state_dict")):
        raise InputError(f"timm:{name} has no published weights: give weights=None or a file")


def _adapted(model: nn.Module, tensors: Mapping[str, Tensor], *, source: str) -> tuple[Mapping[str, Tensor], tuple[str, ...]]:
    """Let timm rename keys and resample positions where the file does not fit as it is (and only there)."""
    expected = model.state_dict()
    if all(name in expected and value.shape == expected[name].shape for name, value in tensors.items()):
        return tensors, ()
    adapt = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if adapt is None:
        return tensors, ()
    try:
        # Resampling half-precision positions would round twice.
        state_dict = adapt({name: value.float() for name, value in tensors.items()}, model)
    except Exception as error:  # timm's filters index and reshape freely: any failure means the file does not fit
        raise InputError(f"{source} does not fit the model: timm could not adapt it ({error!r})") from error
    notes = tuple(
        f"timm resampled {name} from {tuple(tensors[name].shape)} to {tuple(value.shape)}"
        for name, value in state_dict.items()
        if name in tensors and value.shape != tensors[name].shape
    )
    return state_dict, notes


def _input_spec(timm: Any, model: nn.Module, *, image_size: int | None) -> InputSpec:
    import_optional("timm.data", extra="timm")
    config = timm.data.resolve_model_data_config(model)
    return InputSpec(
        size=image_size if image_size is not None else int(config["input_size"][-1]),
        mean=tuple(float(value) for value in config["mean"]),
        std=tuple(float(value) for value in config["std"]),
        interpolation=str(config["interpolation"]),
        crop=float(config["crop_pct"]),
        source="timm's pretrained_cfg",
    )
