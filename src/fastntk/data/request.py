"""A deletion request, by class or by id, and the split of the data it asks for.

    D = D_r ∪ D_f, disjoint, both in the order of D

Not for the unlearning itself: this only decides which samples have to go, and refuses what cannot be met.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastntk.base.errors import InputError, listing
from fastntk.data.samples import Samples, as_ids


@dataclass(frozen=True, eq=False)
class Split:
    """Positions to retain (n_r,) and to forget (n_f,), ascending, and the classes wholly forgotten."""

    retain: Tensor
    forget: Tensor
    whole_classes: tuple[int, ...]

    @property
    def keep(self) -> Tensor:
        """True for the samples that stay, (n,): the mask that training loops take."""
        mask = torch.ones(len(self.retain) + len(self.forget), dtype=torch.bool)
        mask[self.forget] = False
        return mask

    def of_whole_classes(self, labels: Tensor) -> Tensor:
        """Which of the samples to forget belong to a class that goes altogether, (n_f,); ``labels`` (n,) are those of all."""
        return torch.isin(labels[self.forget], torch.tensor(self.whole_classes, dtype=labels.dtype))


@dataclass(frozen=True, init=False)
class ForgetRequest:
    """What to forget: classes (int = label, str = class name), ids (int or str), or both, meaning their union."""

    classes: tuple[int | str, ...] | None
    ids: tuple[str, ...] | None

    def __init__(self, classes: Any = None, ids: Any = None) -> None:
        object.__setattr__(self, "classes", None if classes is None else _as_classes(classes))
        object.__setattr__(self, "ids", None if ids is None else as_ids(ids))

    def resolve(self, samples: Samples, *, allow_empty: bool = False) -> Split:
        """Split the samples; a request that names nothing (``[]``) needs ``allow_empty=True``."""
        if self.classes is None and self.ids is None:
            raise InputError("nothing to forget: give classes=[...], ids=[...] or both")
        if not self.classes and not self.ids and not allow_empty:
            raise InputError("the request is empty: name at least one class or id to forget")
        forget = torch.zeros(len(samples), dtype=torch.bool)
        labels = samples.labels.cpu()
        for label in class_labels(self.classes or (), samples):
            members = labels == label
            if not bool(members.any()):
                raise InputError(f"class {_title(label, samples)} has no samples in this data: nothing to forget")
            forget |= members
        forget[_positions(self.ids or (), samples)] = True
        if len(samples) == 0 or bool(forget.all()):
            what = [f"class {item}" for item in self.classes or ()] + [f"id {item}" for item in self.ids or ()]
            raise InputError(
                f"nothing would be left to retain: {listing(what)} cover all {len(samples)} samples; "
                "to forget everything, discard the model"
            )
        whole = sorted(set(labels[forget].tolist()) - set(labels[~forget].tolist()))
        return Split(
            retain=(~forget).nonzero().flatten(),
            forget=forget.nonzero().flatten(),
            whole_classes=tuple(whole),
        )


def class_labels(classes: Iterable[int | str], samples: Samples) -> tuple[int, ...]:
    """Return the labels of classes given as label (int) or name (str); unknown ones are refused together."""
    items = tuple(classes)
    names = samples.classes or ()
    unknown = [item for item in items if (item not in names if isinstance(item, str) else not 0 <= item < samples.num_classes)]
    numbers = [item for item in unknown if isinstance(item, str) and re.fullmatch(r"\s*[+-]?\d+\s*", item)]
    if numbers:
        raise InputError(
            f"no class is named {listing(map(repr, numbers))}; labels are given as int: "
            f"classes=[{listing(int(item) for item in numbers)}]. {_known(samples)}"
        )
    if unknown:
        raise InputError(f"unknown classes: {listing(map(repr, unknown))}. {_known(samples)}")
    return tuple(names.index(item) if isinstance(item, str) else item for item in items)


def parse_classes(text: str, samples: Samples) -> tuple[int, ...]:
    """Return the labels in a command line's ``a,b,c``: each a class name or, if none has it, an integer label.

    A name that holds a comma itself can be given alone.
    """
    names = samples.classes or ()
    parts = [text] if text in names else [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError(f"no class in {text!r}: give names or labels separated by commas. {_known(samples)}")
    items = [int(part) if part not in names and part.removeprefix("-").isdecimal() else part for part in parts]
    return class_labels(items, samples)


def _as_classes(classes: Any) -> tuple[int | str, ...]:
    if isinstance(classes, (Tensor, np.ndarray)):
        classes = classes.tolist()
    if isinstance(classes, (str, int, np.integer)):
        classes = (classes,)
    if not isinstance(classes, Iterable):
        raise InputError(f"classes are int (labels) or str (names), or a sequence of them, not {type(classes).__name__}")
    values = list(classes)
    wrong = [item for item in values if isinstance(item, bool) or not isinstance(item, (str, int, np.integer))]
    if wrong:
        raise InputError(f"classes are int (labels) or str (names), not {listing(map(repr, wrong))}")
    return tuple(item if isinstance(item, str) else int(item) for item in values)


def _positions(ids: tuple[str, ...], samples: Samples) -> Tensor:
    twice = [name for name, times in Counter(ids).items() if times > 1]
    if twice:
        raise InputError(f"the request names ids more than once: {listing(twice)}; name each once")
    return samples.index_of(ids)


def _title(label: int, samples: Samples) -> str:
    return str(label) if samples.classes is None else f"{label} ({samples.classes[label]})"


def _known(samples: Samples) -> str:
    class_list = f", named {listing(samples.classes, most=12)}" if samples.classes else ""
    return f"Labels are 0…{samples.num_classes - 1}{class_list}"
