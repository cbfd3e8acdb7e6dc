"""Train a CIFAR backbone from scratch, so that the weights the package starts from can be made again.

SGD with Nesterov momentum, a one-cycle learning rate, random crops (4 pixels of padding) and flips; every parameter
is trained and BatchNorm gathers its statistics. This is not fine-tuning: ``fastntk.fit`` tunes a small subset, with an
anchor and a recorded recipe, and only that can be unlearned.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from fastntk.base.atomic import write_file
from fastntk.base.digest import file_digest
from fastntk.base.errors import InputError, listing
from fastntk.base.progress import track
from fastntk.models.build import CIFAR_NAMES, build_model
from fastntk.models.forward import logits
from fastntk.training.step import Stepper

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
PADDING = 4


class LabelledImages(Protocol):
    """What is trained on: normalised ``inputs`` (n, 3, h, w) and integer ``labels`` (n,)."""

    @property
    def inputs(self) -> Tensor:
        """Images (n, 3, h, w), normalised."""

    @property
    def labels(self) -> Tensor:
        """Labels (n,)."""


@dataclass(frozen=True)
class Epoch:
    """Mean training loss and accuracy over one epoch (on augmented images, while the weights were moving)."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class Pretrained:
    """The file that was written and how the training went."""

    path: Path
    sha256: str
    history: tuple[Epoch, ...]


def pretrain(
    name: str,
    samples: LabelledImages,
    *,
    epochs: int,
    lr: float,
    batch_size: int,
    seed: int,
    out: str | Path,
) -> Pretrained:
    """Train ``name`` from random weights and write a file for ``build_model(name, weights=out)``.

    The same seed on the same machine gives the same bytes. The file appears only when training is complete.
    """
    target = Path(out)
    classes = _check(name, samples, epochs=epochs, lr=lr, batch_size=batch_size, out=target)
    model = build_model(name, num_classes=classes, image_size=int(samples.inputs.shape[-1]), seed=seed)
    # Dropout (MobileNetV2) draws from the global generator, which is seeded here and restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        history = _train(model, samples, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)
    recipe = {"model": name, "epochs": epochs, "lr": lr, "batch_size": batch_size, "seed": seed}
    record = {**recipe, "images": len(samples.labels), "history": [asdict(epoch) for epoch in history]}
    _write(model, target, record=record)
    return Pretrained(path=target, sha256=file_digest(target), history=history)


def _check(name: str, samples: LabelledImages, *, epochs: int, lr: float, batch_size: int, out: Path) -> int:
    """Refuse what cannot be trained before any time is spent; return the number of classes."""
    if name not in CIFAR_NAMES:
        raise InputError(f"cannot pretrain {name!r}: expected one of {listing(CIFAR_NAMES)}")
    if epochs < 1 or batch_size < 1 or not lr > 0:
        raise InputError(f"epochs={epochs}, batch_size={batch_size}, lr={lr}: all three must be positive")
    if out.suffix != ".safetensors":
        raise InputError(f"out={str(out)!r}: expected a file name that ends in .safetensors")
    inputs, labels = samples.inputs, samples.labels
    if inputs.ndim != 4 or inputs.shape[1] != 3 or len(inputs) != len(labels) or len(labels) == 0:
        raise InputError(
            f"expected images (n, 3, h, w) and n labels, at least one: got {tuple(inputs.shape)} and {tuple(labels.shape)}"
        )
    if int(labels.min()) < 0 or int(labels.max()) < 1:
        raise InputError(
            f"labels run from {int(labels.min())} to {int(labels.max())}: expected 0 … C−1 with at least two classes"
        )
    return int(labels.max()) + 1


def _train(model: nn.Module, samples: LabelledImages, *, epochs: int, lr: float, batch_size: int, seed: int) -> tuple[Epoch, ...]:
    count = len(samples.labels)
    steps = -(-count // batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True)
    # cycle_momentum would move the momentum as well; the recipe keeps it.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=epochs * steps + 1, cycle_momentum=False)
    generator = torch.Generator().manual_seed(seed)
    history: list[Epoch] = []
    stepper = Stepper(
        list(model.parameters()),
        optimizer,
        diverged=lambda value: (
            f"The loss became {value} in epoch {len(history) + 1} of {epochs}: training diverged. "
            f"Lower the learning rate (lr={lr})."
        ),
    )
    model.train()
    for number in range(epochs):
        loss_sum, correct = 0.0, 0
        order = torch.split(torch.randperm(count, generator=generator), batch_size)
        for batch in track(order, f"epoch {number + 1} of {epochs}"):
            labels = samples.labels[batch].long()
            outputs = logits(model, augment(samples.inputs[batch], generator=generator))
            loss = F.cross_entropy(outputs, labels)
            loss_sum += stepper.step(loss) * len(batch)
            schedule.step()
            correct += int((outputs.detach().argmax(dim=1) == labels).sum())
        history.append(Epoch(loss=loss_sum / count, accuracy=correct / count))
    model.eval()
    return tuple(history)


def augment(images: Tensor, *, generator: torch.Generator, padding: int = PADDING) -> Tensor:
    """Shift each image (n, c, h, w) by up to ``padding`` pixels (zeros come in) and mirror half of them, at random."""
    count, channels, height, width = images.shape
    canvas = F.pad(images, (padding,) * 4)
    top, left = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=generator)
    mirror = torch.rand(count, 1, generator=generator) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.where(mirror, torch.arange(width - 1, -1, -1), torch.arange(width))
    return canvas[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def _write(model: nn.Module, target: Path, *, record: dict[str, object]) -> None:
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    # One metadata entry only: safetensors writes several in an order that differs from run to run.
    content = save(tensors, metadata={"fastntk": json.dumps(record, sort_keys=True)})
    write_file(target, content, overwrite=True)
