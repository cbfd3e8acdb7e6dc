"""Augmented training: how near the replay of the head comes to Retrain where the fine-tuning was a loop of one's own.

The loop is :mod:`lab.own_loop`. Requests, rows, records and resuming are those of :mod:`lab.path`, with another way to train:

    <out>/path/augmented/seed<k>.json, between.json      as there
    <work>/<model>-<training digest>/                    trained vectors, traces and logits; the digest covers the loop's options
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastntk.reproduce.cells import RESNET
from fastntk.reproduce.experiment import Experiment, Trained, open_experiment
from fastntk.reproduce.setting import MethodRow, Request, Setting
from fastntk.training.recipe import Recipe
from lab.own_loop import LoopOptions, own_fit


@dataclass(frozen=True)
class OwnSetting(Setting):
    """A setting that is trained by the loop; of its recipe only the number of epochs is read, which is the loop's."""

    loop: LoopOptions = field(default_factory=LoopOptions)

    @property
    def training(self) -> dict[str, Any]:
        """JSON-able: the loop in the recipe's place."""
        return {**super().training, "recipe": None, "loop": self.loop.to_dict()}


def own_setting(base: Setting, loop: LoopOptions, **changes: Any) -> OwnSetting:
    """The setting's network and data with this loop and other ``changes``."""
    known = {each.name: getattr(base, each.name) for each in fields(Setting)}
    return OwnSetting(**{**known, "recipe": Recipe(epochs=loop.epochs), "loop": loop, **changes})


AUGMENTED = own_setting(
    RESNET,
    LoopOptions(),
    name="augmented",
    requests=(Request("class", 0), Request("random", 0.1, draw_seed=0)),
    seeds=(0, 1, 2),
    extra_retrain_seeds=(),
    methods=(
        MethodRow("head", "path-replay", {"depth": "head"}),
        MethodRow("auto", "path-replay", {"depth": "auto"}),
        MethodRow(
            "all, 2 checkpoints, corrected", "path-replay", {"depth": "all", "checkpoints": 2, "correction": 2, "exact": 2}
        ),
    ),
)


@dataclass(frozen=True, eq=False)
class OwnExperiment(Experiment):
    """An experiment whose models are trained by the loop."""

    @property
    def loop(self) -> LoopOptions:
        """The setting's."""
        assert isinstance(self.setting, OwnSetting)
        return self.setting.loop

    def recipe_of(self, seed: int) -> Recipe | None:
        """None: no recipe of the package describes the loop."""
        return None

    def train(self, seed: int, keep: Tensor | None, *, trace: Path | None = None, epochs: int | None = None) -> Trained:
        """The loop from the anchor, on the kept samples; recorded into ``trace``, a new folder, where one is given."""
        self.subset.set(self.anchor)
        wall, cpu = time.perf_counter(), time.process_time()
        own_fit(self.model, self.subset, self.samples, self.loop, seed=seed, keep=keep, epochs=epochs, trace=trace)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Trained(self.subset.get(), wall, cpu, torch.get_num_threads())


def open_own(setting: Setting, *, shared: Path, work: Path, keep_stale: bool = False) -> OwnExperiment:
    """Build the model and load the data."""
    opened = open_experiment(setting, shared=shared, work=work, keep_stale=keep_stale)
    return OwnExperiment(**{each.name: getattr(opened, each.name) for each in fields(Experiment)})
