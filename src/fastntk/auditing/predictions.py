"""What one model predicts: its logits and the head's inputs on retained, forgotten and held-out samples.

One forward pass a sample serves every figure of an audit, and a :class:`PredictionCache` serves several audits. Models are only
read: mode and weights stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fastntk.auditing.record_figures import Relearning
from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.data import Samples
from fastntk.models import logits
from fastntk.models.card import fingerprint_of
from fastntk.training.network import eval_mode, fast_layout
from fastntk.tuning import find_head

BATCH = 256


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits (n, C) on three sets; ``features`` (n, H) by set, None where the model has no linear head; ``vector`` (d,)."""

    vector: Tensor
    retain: Tensor
    forget: Tensor
    holdout: Tensor
    features: Mapping[str, Tensor] | None
    labels: Mapping[str, Tensor]

    @property
    def finite(self) -> bool:
        """Whether all logits are numbers; a diverged ascent leaves others."""
        return all(bool(torch.isfinite(part).all()) for part in (self.retain, self.forget, self.holdout))


class PredictionCache:
    """Predictions by what decides them, for several audits of one run and request: Full and Retrains are evaluated once, and
    learn the forgotten samples again once.

    A model is known by a digest of its whole state (tuned vector, frozen weights, buffers), the sets by digests of their
    content. Kept in memory as long as the cache is: logits and features of every model that was audited with it.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Predictions] = {}
        self._with_features: set[tuple[str, str]] = set()
        self._relearned: dict[str, Relearning] = {}
        self.hits = 0

    def find(self, key: tuple[str, str], *, features: bool) -> Predictions | None:
        """The predictions of that model on those sets, or None; ``features``: only an entry made with features will do."""
        entry = self._entries.get(key)
        if entry is None or (features and key not in self._with_features):
            return None
        self.hits += 1
        return entry

    def add(self, key: tuple[str, str], entry: Predictions, *, features: bool) -> None:
        """Remember predictions; ``features``: whether features were taken."""
        self._entries[key] = entry
        if features:
            self._with_features.add(key)

    def relearned(self, key: str, relearn: Callable[[], Relearning]) -> Relearning:
        """What was counted under this key, or what ``relearn`` counts now."""
        if key in self._relearned:
            self.hits += 1
        else:
            self._relearned[key] = relearn()
        return self._relearned[key]


@dataclass(frozen=True, eq=False)
class EvaluationSets:
    """The sets ``retain``, ``forget`` and ``holdout``; ``key``: a digest of their content, needed with a cache only."""

    sets: Mapping[str, Samples]
    cache: PredictionCache | None = None
    key: str = ""


def evaluation_sets(
    retained: Samples, forgotten: Samples, holdout: Samples, *, cache: PredictionCache | None = None
) -> EvaluationSets:
    """The three sets of an audit, with the cache that remembers predictions on them."""
    sets = {"retain": retained, "forget": forgotten, "holdout": holdout}
    key = "" if cache is None else json_digest({name: samples.digest() for name, samples in sets.items()})
    return EvaluationSets(sets, cache, key)


def predict_sets(model: nn.Module, vector: Tensor, on: EvaluationSets, *, title: str, features: bool = True) -> Predictions:
    """Predictions of a model with this tuned vector on all sets, from the cache where they are there; all of it on the CPU."""
    vector = vector.cpu()
    if on.cache is None:
        return _predicted(model, vector, on.sets, title=title, features=features)
    key = (json_digest(fingerprint_of(model)), on.key)
    entry = on.cache.find(key, features=features)
    if entry is None:
        entry = _predicted(model, vector, on.sets, title=title, features=features)
        on.cache.add(key, entry, features=features)
    return replace(entry, vector=vector)


def _predicted(model: nn.Module, vector: Tensor, sets: Mapping[str, Samples], *, title: str, features: bool) -> Predictions:
    outputs, inner = {}, {}
    for name, samples in sets.items():
        outputs[name], inner[name] = observe(model, samples.inputs, title=f"{title}: {name}", features=features)
    complete = {name: value for name, value in inner.items() if value is not None}
    return Predictions(
        vector=vector,
        retain=outputs["retain"],
        forget=outputs["forget"],
        holdout=outputs["holdout"],
        features=complete if len(complete) == len(sets) else None,
        labels={name: samples.labels for name, samples in sets.items()},
    )


@torch.no_grad()
def observe(model: nn.Module, inputs: Tensor, *, title: str, features: bool = True) -> tuple[Tensor, Tensor | None]:
    """Eval-mode logits (n, C) and, where the model ends in a linear head, its inputs (n, H), on the CPU."""
    parts: list[Tensor] = []
    batches = fast_layout(model, inputs).split(BATCH)  # before anything is listened to: it may try the model
    head = _head(model) if features else None
    hook = None if head is None else head.register_forward_pre_hook(lambda _, arguments: parts.append(_flat(arguments[0])))
    try:
        with eval_mode(model):
            outputs = torch.cat([logits(model, batch) for batch in track(batches, title)])
    finally:
        if hook is not None:
            hook.remove()
    gives_logits = head is not None and head.out_features == outputs.shape[1]  # else some other layer makes the logits
    inner = torch.cat(parts) if gives_logits and parts and sum(len(part) for part in parts) == len(outputs) else None
    return outputs.cpu(), None if inner is None else inner.cpu()


def _head(model: nn.Module) -> nn.Linear | None:
    try:
        return find_head(model)[1]
    except InputError:
        return None


def _flat(features: Tensor) -> Tensor:
    return features.detach().reshape(len(features), -1)
