"""A fine-tuning in Hugging Face's Trainer, recorded by its callback; see :mod:`lab.recorded_loops`.

The Trainer decides everything but the order of the batches, which follows from (seed, epoch), as do crops and flips: without some
of the samples the others are seen in the same batches, cropped and flipped the same way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fastntk.data import Samples
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.training.run import Run
from fastntk.tuning import tune
from lab.own_loop import Draws, LoopOptions, batches_of

ensure_operators()
from transformers import PretrainedConfig, Trainer, TrainingArguments  # noqa: E402
from transformers.modeling_outputs import ImageClassifierOutput  # noqa: E402

from fastntk.integrations.huggingface import RecordCallback  # noqa: E402


class Classifier(nn.Module):
    """A network of timm as the Trainer calls its models."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.config = network, PretrainedConfig()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Logits, and the loss where there are labels."""
        logits = self.network(pixel_values)
        loss: Any = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


class Images(Dataset[dict[str, Any]]):
    """Samples as dicts, cropped and flipped as drawn for the epoch at hand."""

    def __init__(self, samples: Samples, options: LoopOptions, seed: int) -> None:
        self.samples, self.options, self.seed = samples, options, seed
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Draw for an epoch."""
        self.draws = Draws.of(self.options, len(self.samples), seed=self.seed, epoch=epoch)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> dict[str, Any]:
        where = torch.tensor([position])
        image = self.draws.apply(self.samples.inputs[where], where)[0]
        return {"pixel_values": image, "labels": int(self.samples.labels[position]), "id": self.samples.ids[position]}


class Order:
    """Batches of positions, epoch after epoch."""

    def __init__(self, images: Images, size: int, keep: Tensor | None, seed: int) -> None:
        self.images, self.size, self.keep, self.seed, self.epoch = images, size, keep, seed, 0

    def __len__(self) -> int:
        return -(-len(self.images) // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        self.images.begin(self.epoch)
        for batch in batches_of(len(self.images), self.size, self.keep, seed=self.seed, epoch=self.epoch):
            yield batch.tolist()
        self.epoch += 1


class PairedTrainer(Trainer):
    """A Trainer with batches of :class:`Order`."""

    order: Order

    def get_train_dataloader(self) -> Any:
        """The loader, as accelerate wants it."""
        loader: Any = DataLoader(self.order.images, batch_sampler=self.order, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


def trainer_fit(
    network: nn.Module, spec: str, samples: Samples, options: LoopOptions, *, seed: int, keep: Tensor | None, record: bool
) -> Run | nn.Module:
    """Fine-tune by the Trainer; the run where it is recorded, else the network as the Trainer left it."""
    model = Classifier(network)
    images = Images(samples, options, seed)
    recorded = RecordCallback(spec, samples=samples)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            gradient_accumulation_steps=2,
            learning_rate=options.lr,
            weight_decay=options.weight_decay,
            warmup_steps=5,
            label_smoothing_factor=options.smoothing,
            max_grad_norm=options.clip or 0.0,
            seed=seed,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
        )
        if not record:
            tune(model, spec)
        trainer = PairedTrainer(model, arguments, train_dataset=images, callbacks=[recorded] if record else [])
        trainer.order = Order(images, options.batch_size, keep, seed)
        trainer.train()
    return recorded.run if record else model
