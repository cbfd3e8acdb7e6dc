"""One builder by name for every model the package can fine-tune.

The head is new: it has ``num_classes`` outputs and starts at zero, weight and bias, whatever the weights. So the
anchor's outputs are zero, which the closed form relies on. The old head's values are dropped even where their number
would fit: to go on with a checkpoint that was fine-tuned already, call ``model.load_state_dict`` afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fastntk.base.digest import file_digest
from fastntk.base.errors import InputError, listing
from fastntk.base.numbers import plain
from fastntk.models.card import InputSpec, ModelCard, attach_card, fingerprint_of
from fastntk.models.forward import logits
from fastntk.models.hf_models import build_hf
from fastntk.models.loading import head_names, load_backbone, output_layers, zero_head
from fastntk.models.mobilenet import MOBILENET_WIDTHS, cifar_mobilenet
from fastntk.models.parts import Built
from fastntk.models.resnet import RESNET_BLOCKS, cifar_resnet
from fastntk.models.timm_models import build_timm
from fastntk.models.weights import KNOWN, KnownWeights, known_weights, read_weights, weights_file

CIFAR_SIZE = 32
SMALLEST_SIZE = 8

_CIFAR: dict[str, Callable[..., nn.Module]] = {
    **dict.fromkeys(RESNET_BLOCKS, cifar_resnet),
    **dict.fromkeys(MOBILENET_WIDTHS, cifar_mobilenet),
}
_PREFIXES = {"timm:": build_timm, "hf:": build_hf}

CIFAR_NAMES = tuple(_CIFAR)


def build_model(
    name: str,
    *,
    num_classes: int,
    weights: str | Path | None = None,
    image_size: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Build a classifier with a zero head, in eval mode, with its card attached (``fastntk.models.card_of``).

    ``name``: ``resnet{20,32,44,56,110}``, ``mobilenetv2_x0_5``, ``timm:<name>``, ``hf:<name or folder>``.
    ``weights``: None = random (drawn from ``seed``; the global generator is untouched), a known name such as
    ``"cifar100"``, ``"pretrained"`` = the publisher's (timm, Hugging Face), or a file (``.safetensors``, or ``.pt``
    and the like, read without running code). The file must fit exactly, except for its head, which is dropped.
    ``image_size``: the side of the square input; positions of ViTs are resampled.
    """
    num_classes, image_size = plain(num_classes), plain(image_size)
    _check_numbers(num_classes=num_classes, image_size=image_size)
    builder = _builder(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = builder(name.partition(":")[2] or name, num_classes=num_classes, weights=weights, image_size=image_size)
    model = built.model.eval().requires_grad_(True)
    if image_size is not None and ":" in name:
        _probe(model, name=name, num_classes=num_classes, image_size=image_size)
    card = ModelCard(
        name=name,
        num_classes=num_classes,
        weights=None if weights is None else str(weights),
        image_size=built.spec.size,
        input=built.spec,
        weights_sha256=built.weights_sha256,
        fingerprint=fingerprint_of(model),
        notes=built.notes,
    )
    attach_card(model, card)
    return model


def known_models() -> tuple[str, ...]:
    """Names and patterns that :func:`build_model` accepts."""
    return (*CIFAR_NAMES, "timm:<name>", "hf:<name or folder>")


def _builder(name: str) -> Callable[..., Built]:
    for prefix, builder in _PREFIXES.items():
        if name.startswith(prefix) and name != prefix:
            return builder
    if name in _CIFAR:
        return _build_cifar
    raise InputError(f"unknown model {name!r}: expected one of {listing(known_models(), most=20)}")


def _check_numbers(*, num_classes: int, image_size: int | None) -> None:
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
        raise InputError(f"num_classes={num_classes!r}: expected a whole number of at least 2")
    if image_size is None:
        return
    if isinstance(image_size, bool) or not isinstance(image_size, int) or image_size < SMALLEST_SIZE:
        raise InputError(
            f"image_size={image_size!r}: expected a whole number of pixels, at least {SMALLEST_SIZE} (images are square)"
        )


def _build_cifar(name: str, *, num_classes: int, weights: str | Path | None, image_size: int | None) -> Built:
    model = _CIFAR[name](name, num_classes=num_classes)
    heads = head_names(model, output_layers([_last_linear(model)], num_classes=num_classes))
    source = KnownWeights()
    sha256 = None
    if weights is not None:
        publication = KNOWN.get((name, str(weights)))
        path = publication.fetch() if publication else weights_file(weights, model=name, known=known_weights(name))
        load_backbone(model, read_weights(path), heads=heads, source=str(path))
        sha256 = file_digest(path)
        source = publication or source
    zero_head(model, heads=heads)
    spec = InputSpec(size=image_size or CIFAR_SIZE, mean=source.mean, std=source.std, source="statistics of the training images")
    notes = (source.note,) if source.note else ()
    return Built(model, spec=spec, weights_sha256=sha256, notes=notes)


def _last_linear(model: nn.Module) -> nn.Module:
    return [module for module in model.modules() if isinstance(module, nn.Linear)][-1]


@torch.no_grad()
def _probe(model: nn.Module, *, name: str, num_classes: int, image_size: int) -> None:
    """Show the model one blank image of the asked size, so that a size it cannot take fails here and is named."""
    try:
        shape = tuple(logits(model, torch.zeros(1, 3, image_size, image_size)).shape)
    except Exception as error:  # an architecture's complaint about a size can be of any type
        raise InputError(f"{name} cannot take images of image_size={image_size}: {error}") from error
    if shape != (1, num_classes):
        raise InputError(f"{name} returned logits of shape {shape} for one image: expected (1, {num_classes})")
