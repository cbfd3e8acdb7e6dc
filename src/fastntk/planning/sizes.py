"""What decides a cost besides the machine: counts of samples, columns and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.tangent import RowEngine
from fastntk.tangent.rows import DEFAULT_CHUNK
from fastntk.training.run import Run


@dataclass(frozen=True)
class Sizes:
    """Counts of a run and a request. ``body``: tuned parameters outside the head; ``features``: the head's inputs, 0 where no
    closed form exists for it; ``itemsize``: bytes a number of the rows; ``input_copy``: bytes of the copy that convolutions are
    given; ``weights``: bytes of the whole model.

    For a method without rows no engine is made, and ``body`` and ``features`` are 0.
    """

    samples: int
    retain: int
    classes: int
    parameters: int
    body: int
    features: int
    itemsize: int
    chunk: int
    input_copy: int
    weights: int = 0

    @property
    def forget(self) -> int:
        """Samples that go."""
        return self.samples - self.retain

    @property
    def n_rows(self) -> int:
        """Rows of J, n·C."""
        return self.samples * self.classes

    @property
    def stored(self) -> int:
        """Bytes of all rows, the head's block as features."""
        return self.samples * (self.classes * self.body + self.features) * self.itemsize

    @property
    def body_row_bytes(self) -> int:
        """Bytes of one image's rows outside the head."""
        return self.classes * self.body * self.itemsize


def sizes_of(run: Run, split: Split, engine: RowEngine | None, *, chunk: int | None) -> Sizes:
    """The sizes of a request; without an engine, those that need none."""
    size = DEFAULT_CHUNK if chunk is None else chunk
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"chunk must be ≥ 1, got {size}.")
    samples = run.data
    return Sizes(
        samples=len(samples),
        retain=len(split.retain),
        classes=samples.num_classes if engine is None else engine.classes,
        parameters=run.subset.numel,
        body=0 if engine is None else len(engine.body_columns),
        features=0 if engine is None or engine.weight_columns is None else int(engine.weight_columns.shape[1]),
        itemsize=samples.inputs.dtype.itemsize,
        chunk=min(size, len(samples)),
        input_copy=_input_copy(run.model, samples.inputs),
        weights=sum(tensor.nbytes for tensor in run.model.state_dict().values()),
    )


def _input_copy(model: nn.Module, inputs: Tensor) -> int:
    """Bytes of the channels-last copy that convolutions are given."""
    convolves = inputs.dim() == 4 and any(isinstance(module, nn.Conv2d) for module in model.modules())
    return inputs.nbytes if convolves and not inputs.is_contiguous(memory_format=torch.channels_last) else 0
