"""What is known about a model besides its weights: where it came from and what images it expects.

A :class:`ModelCard` rides on the module as the plain attribute ``fastntk_card``, so it survives ``copy.deepcopy``
and never appears in ``state_dict``. It is not a checkpoint: a card describes how the model was *built*, and its
fingerprint lets later code tell whether weights outside the tuned subset have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta
from torch import nn

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError
from fastntk.base.schema import Positive, Sha256, parse

CARD_ATTRIBUTE = "fastntk_card"
Side = Annotated[int, Meta(ge=1, le=4096)]
"""Pixels along one side of an image."""


@dataclass(frozen=True)
class InputSpec:
    """Images a model expects: square, RGB in [0, 1], resized to ``size``, then ``(x − mean) / std`` per channel.

    ``crop`` is the share of the resized shorter side that a centre crop keeps (1.0: no crop);
    ``source`` says where the numbers come from, so that a default is never mistaken for the publisher's word.
    ``processor``: settings of a Hugging Face image processor, which then does all of this in its own way; ``size``, ``mean``,
    ``std`` and ``interpolation`` say what that amounts to.
    """

    size: Side
    mean: Annotated[tuple[float, ...], Meta(min_length=1, max_length=16)]
    std: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(min_length=1, max_length=16)]
    interpolation: str = "bilinear"
    crop: Annotated[float, Meta(gt=0, le=1)] = 1.0
    source: str = "given"
    processor: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise InputError(f"input: expected a mean and a std for each channel, found {len(self.mean)} and {len(self.std)}")


@dataclass(frozen=True)
class ModelCard:
    """How a model was built. ``fingerprint`` maps every ``state_dict`` name to its :func:`tensor_digest`.

    ``weights`` is the option as given (None: random), ``weights_sha256`` the digest of the file it resolved to, where
    there is one file. ``notes`` are sentences a report should repeat, such as resampled positions.
    """

    name: str
    num_classes: Positive
    weights: str | None
    image_size: Side
    input: InputSpec
    weights_sha256: Sha256 | None = None
    fingerprint: Mapping[str, Sha256] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A plain dict copy, not a MappingProxyType: the card has to survive deepcopy and pickling with its model.
        object.__setattr__(self, "fingerprint", dict(self.fingerprint))


def card_from_dict(stored: Mapping[str, Any]) -> ModelCard:
    """The card from its JSON; refuses what is none."""
    return parse(stored, ModelCard, what="the model's card", complete=True)


def card_of(model: nn.Module) -> ModelCard | None:
    """Return the card of a model made by ``build_model``, None for any other module."""
    card = getattr(model, CARD_ATTRIBUTE, None)
    return card if isinstance(card, ModelCard) else None


def attach_card(model: nn.Module, card: ModelCard) -> None:
    """Put the card on the model as a plain attribute (not a parameter, buffer or sub-module)."""
    setattr(model, CARD_ATTRIBUTE, card)


def input_spec(model: nn.Module) -> InputSpec:
    """Return what images the model expects; refuse where nobody has said so."""
    card = card_of(model)
    if card is None:
        raise InputError(
            f"the input size and normalisation of this {type(model).__name__} are unknown, because it was not made by "
            "fastntk.build_model: give samples that are already resized and normalised, or attach a card with "
            "fastntk.models.card.attach_card"
        )
    return card.input


def fingerprint_of(model: nn.Module) -> dict[str, str]:
    """Digest of every ``state_dict`` entry of a model."""
    return {name: tensor_digest(value) for name, value in model.state_dict().items()}
