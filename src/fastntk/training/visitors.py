"""Who visited a training loop: samples by their ids, in the order in which they first came, and where epochs begin."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import InputError, listing
from fastntk.data import Samples
from fastntk.data.samples import ids_in_order


def names_and_targets(ids: Any, targets: Any) -> tuple[tuple[str, ...], Tensor]:
    """What a batch is announced with: ids as strings, and a copy of its targets, labels (B,) as int64 or soft ones (B, C)."""
    if ids is None or targets is None:
        raise InputError("a batch needs ids and targets: recorder.batch(ids, targets), one of each for every sample.")
    names = ids_in_order(ids)
    try:
        target_tensor = torch.as_tensor(targets).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"ids and targets must be sequences or tensors, one entry a sample: {error}") from error
    if target_tensor.dim() == 0:
        raise InputError("targets must be labels (B,) or soft targets (B, C); got a single number.")
    if len(names) != len(target_tensor):
        raise InputError(f"{len(names)} ids for {len(target_tensor)} targets: give one id a sample.")
    return names, target_tensor if target_tensor.is_floating_point() else target_tensor.long()


class Visitors:
    """Samples seen so far, of a problem with this many classes. ``soft``: their targets are soft, and tell no label for sure: it
    is the class with most of a sample's targets over all its visits."""

    def __init__(self, classes: int) -> None:
        self.soft = False
        self._classes = classes
        self._places: dict[str, int] = {}
        self._labels: list[int] = []
        self._sums = torch.zeros(0, classes)
        self._epoch: set[int] = set()
        self._missed: set[int] = set()
        self._ahead: set[int] = set()
        self._visits = self._all = 0
        self._mixed = self._disagree = False

    def arrive(self, names: tuple[str, ...], targets: Tensor) -> Tensor:
        """The positions of a batch that is announced.

        Refused where a target is no class, or of another kind or a sample's label another one than before.
        """
        soft = targets.is_floating_point()
        if (targets.dim() != (2 if soft else 1)) or (self._places and soft != self.soft):
            raise InputError(
                f"targets must be labels (B,) of integers, or soft targets (B, C), the same kind in all batches; got "
                f"{targets.dtype} {tuple(targets.shape)}."
            )
        self.soft = soft
        if soft and not self._mixed and _mixed(targets):
            self._mixed = True
            warnings.warn(
                "targets have mass on two classes and the same little on all others, as where images are mixed (mixup, CutMix). "
                "A mixed image has one id here: forgetting a sample will leave its share in the images it was mixed into",
                stacklevel=5,
            )
        labels = (targets.argmax(1) if self.soft else targets).tolist()
        wrong = [name for name, label in zip(names, labels) if not 0 <= label < self._classes]
        if wrong:
            raise InputError(f"targets of {listing(wrong)} are not classes 0…{self._classes - 1} of this head.")
        positions = []
        for name, label in zip(names, labels):
            place = self._places.setdefault(name, len(self._places))
            if place == len(self._labels):
                self._labels.append(label)
            elif self._labels[place] != label:
                if not self.soft:
                    raise InputError(f"sample {name!r} had the label {self._labels[place]} before and has {label} now.")
                self._disagree = True
            positions.append(place)
        indices = torch.tensor(positions)
        if soft:
            self._add(indices, targets)
        return indices

    def _add(self, positions: Tensor, targets: Tensor) -> None:
        """Soft targets to the sums of their samples."""
        short = len(self._places) - len(self._sums)
        if short > 0:
            self._sums = torch.cat([self._sums, torch.zeros(max(short, len(self._sums)), self._classes)])
        self._sums.index_add_(0, positions, targets.to("cpu", self._sums.dtype))

    def count(self, positions: Tensor) -> bool:
        """These were looked at. Whether that begins an epoch."""
        places = positions.tolist()
        again = self._begins(places)
        if again:
            self._epoch.clear()
            self._visits, self._missed, self._ahead = 0, self._ahead, set()
        self._epoch.update(places)
        self._missed.difference_update(places)
        self._visits += len(places)
        self._all += len(places)
        return again

    def miss(self, positions: Tensor) -> None:
        """These were announced and not looked at: no visits, but the epoch, or the one that they would begin, may end without
        them."""
        places = positions.tolist()
        (self._ahead if self._begins(places) else self._missed).update(places)

    def _begins(self, places: Sequence[int]) -> bool:
        """Whether these begin an epoch: most of them, but for those that were missed, were here since the last one began, and as
        many visits as there are samples have been, but for those again and a last batch that was dropped."""
        here = sum(place in self._epoch for place in places)
        new = sum(place not in self._epoch and place not in self._missed for place in places)
        return here > new and self._visits + len(self._missed) + len(places) > len(self._places)

    def check_epochs(self, epochs: int) -> None:
        """Warn where so many epochs were noticed, and the samples came at quite another rate."""
        passes = self._all / max(1, len(self._places))
        if not 0.75 * passes - 1 <= epochs <= 1.25 * passes + 1:
            warnings.warn(
                f"{epochs} epochs were noticed, but a sample was seen {passes:.1f} times on average: samples seem to be drawn "
                "with replacement. Call recorder.epoch() where an epoch begins",
                stacklevel=4,
            )

    def listed(self, samples: Samples | None) -> tuple[Samples, Tensor | None]:
        """All of them as a trace lists them, and where each position is in that list (None: at its own place).

        ``samples``: images of them, and maybe of others, whose order the list then has.
        """
        ids = tuple(self._places)
        labels = self._sums[: len(ids)].argmax(1) if self.soft else torch.tensor(self._labels)
        if samples is None:
            # Of a single visit to a mixed image nobody can tell which of its two classes is the sample's own.
            if self._disagree or (self._mixed and self._all < 2 * len(ids)):
                warnings.warn(
                    "labels were taken from mixed targets, and some may be wrong: name ids, not classes, or finish(samples)",
                    stacklevel=3,
                )
            return Samples(torch.empty(len(ids), 0), labels, ids=ids).counting(self._classes), None
        places = samples.index_of(ids)
        others = [ids[k] for k in (samples.labels.cpu()[places] != labels).nonzero().flatten().tolist()]
        if others and not self.soft:
            raise InputError(f"The samples given to finish have other labels than the loop used: {listing(others)}.")
        return samples.counting(max(self._classes, samples.num_classes)) if samples.classes is None else samples, places


def _mixed(targets: Tensor) -> bool:
    """Whether some soft targets (B, C) look like those of two images; with three classes that cannot be told."""
    if targets.shape[1] < 4:
        return False
    first, second, third = targets.topk(3, 1).values.unbind(1)
    low = targets.min(1).values
    return bool(((second - low > 1e-3) & (third - low < 1e-6) & (first < 1)).any())
