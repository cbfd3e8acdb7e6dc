"""How one model answers: its logits and the head's inputs on retained, forgotten and held-out samples.

One forward pass a sample serves every figure of an audit. Models are only read: mode and weights stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.data import Samples
from fastntk.models import logits
from fastntk.training.network import eval_mode, fast_layout
from fastntk.tuning import find_head

BATCH = 256


@dataclass(frozen=True, eq=False)
class Answers:
    """Logits (n, C) on three sets; ``features`` (n, H) by set, None where the model has no linear head; ``vector`` (d,)."""

    vector: Tensor
    retain: Tensor
    forget: Tensor
    holdout: Tensor
    features: Mapping[str, Tensor] | None
    labels: Mapping[str, Tensor]

    @property
    def finite(self) -> bool:
        """Whether all outputs are numbers; a diverged ascent leaves others."""
        return all(bool(torch.isfinite(part).all()) for part in (self.retain, self.forget, self.holdout))


def answers(model: nn.Module, vector: Tensor, sets: Mapping[str, Samples], *, title: str, features: bool = True) -> Answers:
    """Ask a model about the sets ``retain``, ``forget`` and ``holdout``."""
    outputs, inner = {}, {}
    for name, samples in sets.items():
        outputs[name], inner[name] = observe(model, samples.inputs, title=f"{title}: {name}", features=features)
    found = {name: value for name, value in inner.items() if value is not None}
    return Answers(
        vector=vector,
        retain=outputs["retain"],
        forget=outputs["forget"],
        holdout=outputs["holdout"],
        features=found if len(found) == len(sets) else None,
        labels={name: samples.labels for name, samples in sets.items()},
    )


@torch.no_grad()
def observe(model: nn.Module, inputs: Tensor, *, title: str, features: bool = True) -> tuple[Tensor, Tensor | None]:
    """Eval-mode logits (n, C) and, where the model ends in a linear head, its inputs (n, H)."""
    seen: list[Tensor] = []
    head = _head(model) if features else None
    hook = None if head is None else head.register_forward_pre_hook(lambda _, given: seen.append(_flat(given[0])))
    try:
        with eval_mode(model):
            batches = fast_layout(model, inputs).split(BATCH)
            outputs = torch.cat([logits(model, batch) for batch in track(batches, title)])
    finally:
        if hook is not None:
            hook.remove()
    inner = torch.cat(seen) if seen and sum(len(part) for part in seen) == len(outputs) else None
    return outputs, inner


def _head(model: nn.Module) -> nn.Module | None:
    try:
        return find_head(model)[1]
    except InputError:
        return None


def _flat(features: Tensor) -> Tensor:
    return features.detach().reshape(len(features), -1)
