"""From tuned vectors to the figures of a record: everything a method is judged by, beside Full and Retrain.

Retrains with other seeds say how far apart two honest retrainings lie. Each distance is kept to the Retrain of the run's own
seed and to each of the others, and the distances of all pairs of Retrains are in every record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fastntk.auditing import accuracy, mean_loss, recovered, relearn, to_dict, total_variation
from fastntk.data import Split
from fastntk.experiments.bench import Bench
from fastntk.experiments.setting import Request


@dataclass(frozen=True, eq=False)
class View:
    """How a tuned vector answers: logits of the training data (n, C) and of the hold-out set."""

    vector: Tensor
    data: Tensor
    holdout: Tensor


@dataclass(eq=False)
class Scene:
    """A request on a bench with its Retrains and Fulls; their answers are computed once."""

    bench: Bench
    request: Request
    split: Split = field(init=False)
    _views: dict[tuple[str, int], View] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.split = self.bench.split(self.request)

    def view(self, vector: Tensor) -> View:
        """Answers of any tuned vector."""
        samples, holdout = self.bench.samples.inputs, self.bench.holdout.inputs
        return View(vector, self.bench.outputs(vector, samples), self.bench.outputs(vector, holdout))

    def full(self, seed: int) -> View:
        """Answers of the run itself."""
        return self._cached("full", seed, lambda: self.bench.fitted(seed).vector)

    def retrain(self, seed: int) -> View:
        """Answers of a Retrain."""
        return self._cached("retrain", seed, lambda: self.bench.retrained(self.request, seed).vector)

    def spread(self) -> dict[str, dict[str, float | None]]:
        """Total variation between every two Retrains, on the forget and the hold-out set, by "seed-seed"."""
        pairs = list(combinations(self.bench.setting.retrain_seeds, 2))
        return {
            where: {f"{a}-{b}": self._tv(self.retrain(a), self.retrain(b), where) for a, b in pairs}
            for where in ("forget", "holdout")
        }

    def measure(self, view: View, seed: int) -> dict[str, Any]:
        """JSON-able figures of one model; ``seed`` is that of its run, whose Full may not exist for an extra Retrain."""
        setting = self.bench.setting
        reference = self.retrain(seed)
        full = self.full(seed) if seed in setting.seeds else None
        others = [other for other in setting.retrain_seeds if other != seed]
        loss, retrain_loss = self._loss(view), self._loss(reference)
        full_loss = None if full is None else self._loss(full)
        reach = (reference.vector - self.bench.anchor).norm()
        return {
            "accuracy": {
                "method": self.accuracies(view),
                "retrain": self.accuracies(reference),
                "full": full and self.accuracies(full),
            },
            "forget_loss": {"method": loss, "retrain": retrain_loss, "full": full_loss},
            "recovered": None if full_loss is None else recovered(loss, full_loss, retrain_loss),
            "weight_distance": float((view.vector - reference.vector).norm() / reach),
            "total_variation": {
                where: {
                    "same_seed": self._tv(view, reference, where),
                    "other_seeds": {str(other): self._tv(view, self.retrain(other), where) for other in others},
                }
                for where in ("forget", "holdout")
            },
            "retrain_spread": self.spread(),
            "relearn": self._relearn(view.vector),
        }

    def _cached(self, kind: str, seed: int, vector: Any) -> View:
        if (kind, seed) not in self._views:
            self._views[kind, seed] = self.view(vector())
        return self._views[kind, seed]

    def accuracies(self, view: View) -> dict[str, float]:
        """Accuracy on retained, forgotten and hold-out samples."""
        labels, split = self.bench.samples.labels, self.split
        return {
            "retain": accuracy(view.data[split.retain], labels[split.retain]),
            "forget": accuracy(view.data[split.forget], labels[split.forget]),
            "holdout": accuracy(view.holdout, self.bench.holdout.labels),
        }

    def _loss(self, view: View) -> float:
        return mean_loss(view.data[self.split.forget], self.bench.samples.labels[self.split.forget])

    def _tv(self, one: View, two: View, where: str) -> float | None:
        """None where a model's outputs are not numbers, as after a diverged ascent."""
        a, b = ((view.holdout if where == "holdout" else view.data[self.split.forget]).double() for view in (one, two))
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            return None
        return total_variation(a.softmax(1), b.softmax(1))

    def _relearn(self, vector: Tensor) -> dict[str, Any]:
        bench = self.bench
        bench.subset.set(vector)
        forgotten = bench.samples.subset(self.split.forget)
        return to_dict(relearn(bench.model, bench.subset, forgotten, cap=bench.setting.relearn_cap).to_record())
