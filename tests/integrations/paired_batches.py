"""Twenty samples, and batches of them whose order is the same with and without some of them: to compare two trainings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

N, CLASSES, SIZE = 20, 3, 5
IDS = [f"img/{k:02d}.png" for k in range(N)]


class Paired:
    """Batches in an order of their own for each epoch; samples that are gone are left out of theirs."""

    def __init__(self, gone: Sequence[int]) -> None:
        self.gone, self.epoch = set(gone), 0

    def __len__(self) -> int:
        return N // SIZE

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += 1
        for start in range(0, N, SIZE):
            yield [k for k in order[start : start + SIZE] if k not in self.gone]
