"""What a builder hands to ``build_model``: the module and the facts for its card."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fastntk.models.card import InputSpec


@dataclass(frozen=True)
class Built:
    """A model with a zero head, the images it expects, and what there is to say about its weights."""

    model: nn.Module
    spec: InputSpec
    weights_sha256: str | None = None
    notes: tuple[str, ...] = ()
