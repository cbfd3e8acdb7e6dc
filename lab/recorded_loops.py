"""Training loops of the kinds that people have, on real images, small enough for two cores; see :mod:`lab.recorded`.

own-loop     ResNet-20, norm+head: AdamW, warm-up, label smoothing, clipping, crops and flips, dropout (:mod:`lab.own_loop`)
lora         ViT-S/14 with LoRA of rank 8 by peft, in the same loop
trainer      ViT-S/14, norm+head, in Hugging Face's Trainer: AdamW in two groups, warm-up, smoothing, clipping, accumulation
whole-cnn    ResNet-20, all weights, in the same loop as the first
whole-vit    a small ViT, all weights, from random ones, in the same loop
whole-vit-s14  ViT-S/14, all weights, from pre-trained ones, in the loop of LoRA
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.data import Samples
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.reproduce.cells import CALTECH_50, RESNET, VIT
from fastntk.reproduce.experiment import Experiment, open_experiment
from fastntk.training.run import Run
from fastntk.tuning import tune
from lab.own_loop import LoopOptions, own_fit

HOLDOUT = 400
"""Images of the hold-out set that are looked at."""
DEPTHS: dict[str, dict[str, Any]] = {
    "head": {"depth": "head"},
    "last block": {"depth": 1},
    "all, 2 checkpoints, corrected": {"depth": "all", "checkpoints": 2, "correction": 2, "exact": 2},
}
WHOLE: dict[str, dict[str, Any]] = {
    "head": {"depth": "head"},
    "last block": {"depth": 1},
    "all": {"depth": "all", "checkpoints": 1, "exact": 0},
}
CNN = LoopOptions(epochs=10, batch_size=32, dropout=0.1)
TRANSFORMER = LoopOptions(epochs=5, batch_size=16, lr=1e-3, pad=4, dropout=0.1)

Train = Callable[..., "Run | nn.Module"]


@dataclass(frozen=True, eq=False)
class Bench:
    """A loop: its data, and ``train(seed, keep, record=…)``, which gives the run where it is recorded, else the model.

    ``rows``: options of ``path-replay`` by the row's label. ``options``: those of the loop. ``origin``: a digest of the data and
    weights that it starts from.
    """

    title: str
    samples: Samples
    holdout: Samples
    rows: dict[str, dict[str, Any]]
    train: Train
    options: LoopOptions
    origin: str


def _data(opened: Experiment) -> tuple[Samples, Samples]:
    holdout = opened.holdout
    step = max(1, len(holdout) // HOLDOUT)
    return opened.samples, holdout.subset(torch.arange(0, len(holdout), step)[:HOLDOUT])


def _cnn(shared: Path) -> Experiment:
    return open_experiment(replace(RESNET, images_per_class=30), shared=shared, work=Path())


def _vit(shared: Path) -> Experiment:
    setting = replace(VIT, only_classes=CALTECH_50[:10], images_per_class=20, tune="norm+head")
    return open_experiment(setting, shared=shared, work=Path())


def _in_own_loop(make: Callable[[], nn.Module], spec: str, samples: Samples, options: LoopOptions) -> Train:
    def train(seed: int, keep: Tensor | None, *, record: bool) -> Run | nn.Module:
        model = make()
        subset = tune(model, spec)
        run = own_fit(model, subset, samples, options, seed=seed, keep=keep, trace=True if record else None)
        return model if run is None else run

    return train


def _own_loop(shared: Path) -> Bench:
    opened = _cnn(shared)
    samples, holdout = _data(opened)
    train = _in_own_loop(lambda: copy.deepcopy(opened.model), "norm+head", samples, CNN)
    return Bench("ResNet-20, BatchNorm and head, a plain loop", samples, holdout, DEPTHS, train, CNN, opened.identity)


def _whole_cnn(shared: Path) -> Bench:
    opened = _cnn(shared)
    samples, holdout = _data(opened)
    options = replace(CNN, lr=5e-4)
    train = _in_own_loop(lambda: copy.deepcopy(opened.model), "all", samples, options)
    return Bench("ResNet-20, all weights, a plain loop", samples, holdout, WHOLE, train, options, opened.identity)


def _whole_vit(shared: Path) -> Bench:
    ensure_operators()
    from timm.models.vision_transformer import VisionTransformer

    opened = _cnn(shared)
    samples, holdout = _data(opened)
    options = replace(CNN, lr=1e-3, epochs=20)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return VisionTransformer(img_size=32, patch_size=4, embed_dim=64, depth=4, num_heads=4, num_classes=10)

    train = _in_own_loop(make, "all", samples, options)
    title = "a ViT of 4 blocks, all weights from random ones, a plain loop"
    return Bench(title, samples, holdout, WHOLE, train, options, opened.identity)


def _whole_vit_s14(shared: Path) -> Bench:
    opened = _vit(shared)
    samples, holdout = _data(opened)
    options = replace(TRANSFORMER, lr=1e-4)
    train = _in_own_loop(lambda: copy.deepcopy(opened.model), "all", samples, options)
    rows = {label: options for label, options in WHOLE.items() if label != "all"}  # whose rows would cost many trainings
    title = "ViT-S/14, all weights from pre-trained ones, a plain loop"
    return Bench(title, samples, holdout, rows, train, options, opened.identity)


def _lora(shared: Path) -> Bench:
    ensure_operators()
    from peft import LoraConfig, get_peft_model

    opened = _vit(shared)
    samples, holdout = _data(opened)

    def make() -> nn.Module:
        torch.manual_seed(0)  # the starting A of the adapters
        config = LoraConfig(r=8, lora_alpha=16, target_modules=["qkv"], modules_to_save=["head"])
        return get_peft_model(copy.deepcopy(opened.model), config)

    train = _in_own_loop(make, "lora+head", samples, TRANSFORMER)
    rows = {label: options for label, options in WHOLE.items() if label != "all"}  # whose rows would cost many trainings
    title = "ViT-S/14, LoRA of rank 8 and head, a plain loop"
    return Bench(title, samples, holdout, rows, train, TRANSFORMER, opened.identity)


def _trainer(shared: Path) -> Bench:
    from lab.recorded_trainer import trainer_fit

    opened = _vit(shared)
    samples, holdout = _data(opened)
    options = replace(TRANSFORMER, lr=3e-3)

    def train(seed: int, keep: Tensor | None, *, record: bool) -> Run | nn.Module:
        network = copy.deepcopy(opened.model)
        return trainer_fit(network, "norm+head", samples, options, seed=seed, keep=keep, record=record)

    title = "ViT-S/14, LayerNorm and head, Hugging Face's Trainer"
    return Bench(title, samples, holdout, DEPTHS, train, options, opened.identity)


LOOPS: dict[str, Callable[[Path], Bench]] = {
    "own-loop": _own_loop,
    "lora": _lora,
    "trainer": _trainer,
    "whole-cnn": _whole_cnn,
    "whole-vit": _whole_vit,
    "whole-vit-s14": _whole_vit_s14,
}
