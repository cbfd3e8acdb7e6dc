"""What a real cell would take on a machine that nobody has here: counted operations over an assumed speed.

    forward     counted floating-point operations of one image / speed
    training    3 forward passes an image, epoch and seed, for every fine-tuning and every Retrain
    unlearning  what each method says of its first route with rows in memory; the rows, C + 1 forward passes an image, once

Memory is that of the route plus images, weights, and the activations of one batch with gradients. Counting runs on shapes
alone: no weights are made or loaded. Nothing is measured: a real machine corrects it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fastntk.base.live_bytes import LiveBytes
from fastntk.models import build_model, logits
from fastntk.models.torchvision_ops import import_optional
from fastntk.planning.calibration import Calibration
from fastntk.planning.problem import Problem, Sizes, TraceSizes, first_fitting
from fastntk.reproduce import costs
from fastntk.reproduce.cells import Cell
from fastntk.reproduce.methods import needs_rows
from fastntk.reproduce.setting import Setting
from fastntk.tangent.rows import DEFAULT_CHUNK
from fastntk.tuning import find_head
from fastntk.tuning import tune as choose
from fastntk.unlearning.path_replay.depths import DepthSize
from fastntk.unlearning.registry import METHODS

CIFAR_SIZE, VIT_SIZE = 32, 224
CIFAR_TEST = 10_000
UNBOUNDED = 2**60
"""A memory budget that everything fits: what is needed is the question here."""


@dataclass(frozen=True)
class Machine:
    """Operations a second in float32 that small batches are assumed to reach, and bytes a second of memory."""

    title: str
    speed: float
    read: float

    def __str__(self) -> str:
        return f"{self.title} ({self.speed / 1e12:g} TFLOP/s in float32 assumed)"


GPU = Machine("a GPU", 5e12, 3e11)
CPU = Machine("a 16-core CPU", 5e11, 3e10)


@dataclass(frozen=True)
class Counted:
    """One network: operations of a forward pass, tuned parameters, features, all parameters, live bytes of one image."""

    flops: int
    tuned: int
    features: int
    parameters: int
    live: int


@dataclass(frozen=True)
class Expected:
    """Seconds of all a cell's work, and the bytes it needs at once."""

    seconds: float
    memory: int


def expected(cell: Cell, machine: Machine) -> Expected:
    """The whole cell: its fine-tunings, Retrains, methods and measurements, over its seeds."""
    setting = cell.setting
    size = CIFAR_SIZE if setting.tune == "norm+head" else VIT_SIZE
    counts = count(setting.model, cell.classes, setting.tune, size)
    forward = counts.flops / machine.speed
    images, classes = costs.images(setting), cell.classes
    sizes = Sizes(
        samples=images,
        retain=images - images // classes,
        classes=classes,
        parameters=counts.tuned,
        body=counts.tuned - classes * (counts.features + 1),
        features=counts.features,
        itemsize=4,
        chunk=DEFAULT_CHUNK,
        input_copy=0,
        weights=4 * counts.parameters,
    )
    unlearning, memory = _unlearning(setting, sizes, _speed(machine, forward, classes, counts.live))
    training = 3 * forward * images * setting.recipe.epochs
    trainings = (len(setting.seeds) + len(setting.retrain_seeds)) * training
    relearning = len(setting.methods) * costs.RELEARNED * costs.EPOCHS_TO_RELEARN * 3 * forward * images / classes
    batch = setting.recipe.batch_size * counts.live
    holdout = classes * setting.holdout_per_class if setting.holdout_per_class else CIFAR_TEST
    measuring = (len(setting.methods) + 2) * (images + holdout) * forward
    data_bytes = (images + holdout) * 3 * size**2 * 4 + 4 * counts.parameters
    return Expected(
        seconds=trainings + len(setting.seeds) * (unlearning + relearning + measuring),
        memory=data_bytes + batch + memory,
    )


@cache
def count(name: str, classes: int, tune: str, size: int) -> Counted:
    """Count a network on shapes alone."""
    model = network_on_meta(name, classes=classes)
    subset = choose(model, tune)
    image = torch.zeros(1, 3, size, size, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        logits(model, image)
    with LiveBytes() as live:
        logits(model, image)
    head = find_head(model)[1]
    assert isinstance(head, nn.Linear)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Counted(counter.get_total_flops(), subset.numel, head.in_features, parameters, live.peak)


def network_on_meta(name: str, *, classes: int) -> nn.Module:
    """A network by its name in settings, without memory for its weights: counts need shapes only."""
    if not name.startswith("timm:"):
        return build_model(name, num_classes=classes).to("meta")
    timm = import_optional("timm", extra="timm")
    with torch.device("meta"):
        model: nn.Module = timm.create_model(name.removeprefix("timm:"), num_classes=classes)
    return model.eval()


def _speed(machine: Machine, forward: float, classes: int, live: int) -> Calibration:
    rows = (classes + 1) * forward
    # Double precision is a part of the units only, and factorisations do not fill them.
    double, factor = machine.speed / 8, machine.speed / 16
    read = machine.read
    return Calibration(
        forward, rows, 3 * forward, 2 * live, machine.speed, double, factor, read, 1e-5, 1, read_many=read, replay=read,
        step_bytes=live,
    )  # fmt: skip


def _unlearning(setting: Setting, sizes: Sizes, speed: Calibration) -> tuple[float, int]:
    """Seconds of all methods of one seed but Full and Retrain, and the most bytes that one needs; rows are made once."""
    seconds, memory, rows = 0.0, 0, 0.0
    epochs, size = setting.recipe.epochs, setting.recipe.batch_size
    steps = epochs * math.ceil(sizes.samples / size)
    path = TraceSizes(epochs, steps, epochs * sizes.samples, sizes.features, sizes.body)
    # Depths between the two, which ``auto`` could climb to, are not counted: they cost it at most its budget, a fifth of Retrain.
    depths = (DepthSize(0, 0, 0.0), DepthSize(1, sizes.body, (sizes.classes + 1) / 3))
    for row in setting.methods:
        if row.method in ("full", "retrain"):
            continue
        method = METHODS[row.method]
        problem = Problem(
            method=row.method,
            sizes=sizes,
            speed=speed,
            options=method.filled(row.options),
            given=frozenset(row.options),
            recipe=setting.recipe,
            places=("memory",),
            ready=False,
            on_disk=0,
            whole_classes=True,
            memory=UNBOUNDED,
            trace=path,
            surveyed=depths,
        )
        route = first_fitting(method.cost(problem))
        assert route is not None
        shared_seconds = problem.linearising_seconds if needs_rows(row.method) else 0.0
        seconds, rows, memory = seconds + route.seconds - shared_seconds, max(rows, shared_seconds), max(memory, route.memory)
    return seconds + rows, memory
