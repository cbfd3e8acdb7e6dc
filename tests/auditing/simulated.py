"""Audits of simulated models: logits scatter around common ones by a known spread, so what the verdict should say is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastntk.auditing import AuditRecord, comparisons, sections
from fastntk.auditing.predictions import Predictions
from fastntk.auditing.record import ReferenceSummary
from fastntk.auditing.record_figures import Membership

CLASSES, HELD_OUT, RETAINED, DIRECTIONS = 5, 200, 100, 20


@dataclass(frozen=True, eq=False)
class World:
    """Common logits and labels of each set; models differ by ``spread``, half of it along a few directions they share."""

    logits: dict[str, Tensor]
    directions: dict[str, Tensor]
    labels: dict[str, Tensor]
    spread: float

    def model(self, generator: torch.Generator, *, shift: float = 0.0) -> Predictions:
        """A Retrain; ``shift``: added to the label's logit of the forgotten samples, as memory would."""
        common = torch.randn(DIRECTIONS, generator=generator) / DIRECTIONS**0.5
        outputs = {}
        for name, mean in self.logits.items():
            own = torch.randn(mean.shape, generator=generator)
            outputs[name] = mean + self.spread * (torch.einsum("d,dnc->nc", common, self.directions[name]) + own) / 2**0.5
        outputs["forget"][torch.arange(len(self.labels["forget"])), self.labels["forget"]] += shift
        vector = torch.randn(4, generator=generator)
        return Predictions(vector=vector, features=None, labels=self.labels, **outputs)


def world(forget: int, generator: torch.Generator, *, spread: float = 0.15) -> World:
    """Sets with labels drawn from the common probabilities."""
    sizes = {"retain": RETAINED, "forget": forget, "holdout": HELD_OUT}
    logits = {name: 1.5 * torch.randn(size, CLASSES, generator=generator) for name, size in sizes.items()}
    directions = {name: torch.randn(DIRECTIONS, size, CLASSES, generator=generator) for name, size in sizes.items()}
    labels = {name: each.softmax(1).multinomial(1, generator=generator).squeeze(1) for name, each in logits.items()}
    return World(logits, directions, labels, spread)


def audited(base: AuditRecord, unlearned: Predictions, full: Predictions, retrains: Sequence[Predictions]) -> AuditRecord:
    """A record with the figures of these models, by the audit's own functions; the first Retrain has the run's seed.

    Without attacks, which would take most of the time: tests/auditing/test_membership.py knows what they give by chance.
    """
    models = {"full": full, "unlearned": unlearned, "retrain": retrains[0]}
    others = dict(enumerate(retrains[1:], start=1))
    sizes = {name: len(each) for name, each in unlearned.labels.items()}
    return replace(
        base,
        request=replace(base.request, forget=sizes["forget"], retain=sizes["retain"], whole_classes=()),
        subject=replace(base.subject, holdout=sizes["holdout"]),
        reference=ReferenceSummary(made=True, seed=0, other_seeds=tuple(others)),
        accuracy=sections.accuracies(models, ()),
        loss=sections.losses(models),
        membership=Membership(),
        distances=comparisons.distances(torch.zeros(4), models, others, seed=0),
    )
