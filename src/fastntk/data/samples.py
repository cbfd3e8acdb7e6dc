"""In-memory data with permanent ids: what is trained on, and what a deletion request points at.

Inputs are model-ready: nothing here casts, resizes or normalises (that is done when a source is loaded, see
:mod:`fastntk.data.sources`). Not for data larger than memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastntk.base.errors import InputError, listing
from fastntk.base.gradients import recordable, write_count
from fastntk.data.map_style import Reading, read_dataset
from fastntk.models.card import InputSpec

# Control characters, the two line ends of Unicode, and what Python makes of bytes in file names that are no UTF-8.
_ODD = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


Classes = Iterable[str] | Mapping[str, int] | Mapping[int, str] | None
"""Class names as they are given."""


@dataclass(frozen=True, init=False, eq=False)
class Samples:
    """Inputs (n, ...), labels (n,) int64, n unique ids and, where known, the names of the classes.

    Inputs stay on the device they are on; a model on another one gets them batch by batch. Labels are on the CPU. Inputs that
    require gradients are detached, those made under ``torch.inference_mode()`` copied; all others are used as they are.

    ``ids`` may be given as int or str and are compared as strings; the default is "0" … "n-1". ``classes`` are given in the order
    of their labels, or as a mapping that says it: {name: label} or {label: name}.
    ``num_classes`` is the number of names, or the largest label plus one; a subset keeps its parent's.
    """

    inputs: Tensor
    labels: Tensor
    ids: tuple[str, ...]
    classes: tuple[str, ...] | None
    num_classes: int

    def __init__(
        self,
        inputs: Tensor,
        labels: Any,
        ids: Any = None,
        classes: Classes = None,
    ) -> None:
        if not isinstance(inputs, Tensor) or inputs.ndim < 1:
            description = f"a tensor of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
            raise InputError(
                f"inputs must be a model-ready tensor (n, ...), not {description}; see torch.from_numpy, torch.stack"
            )
        names = class_names(classes)
        all_ids = sample_ids(ids, count=len(inputs))
        targets = label_tensor(labels, count=len(inputs))
        _check_labels(targets, all_ids, names)
        largest = int(targets.max()) + 1 if len(targets) else 0
        self._store(inputs, targets, ids=all_ids, classes=names, num_classes=largest if names is None else len(names))

    def _store(
        self,
        inputs: Tensor,
        labels: Tensor,
        *,
        ids: tuple[str, ...],
        classes: tuple[str, ...] | None,
        num_classes: int,
    ) -> None:
        # Data is no step of a differentiable computation, and may be the start of one.
        inputs, labels = recordable(inputs.detach() if inputs.requires_grad else inputs), recordable(labels)
        for name, value in zip(
            ("inputs", "labels", "ids", "classes", "num_classes"), (inputs, labels, ids, classes, num_classes)
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        ids: Any = None,
        classes: Classes = None,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        id_column: str | None = None,
        spec: InputSpec | None = None,
        allow_random: bool = False,
    ) -> Samples:
        """Stack any map-style dataset of (image tensor, label), or of dicts such as rows of a Hugging Face dataset.

        Ids, where none are given: ``id_column`` of the dicts; paths below the root for an image folder of torchvision; those of
        the parent for a ``torch.utils.data.Subset``; else positions. Class names are the dataset's own where it has them.
        Columns that are not named are looked for: pixel_values, image or img, and label, labels, target or fine_label.
        ``spec`` makes inputs of pictures that are no tensors (see ``input_spec``). A dataset whose items change from one
        reading to the next (augmentation) is refused; ``allow_random=True`` keeps one draw.
        """
        if ids is not None and id_column is not None:
            raise InputError("give ids or id_column, not both")
        contents = read_dataset(dataset, Reading(image_column, label_column, id_column, spec, allow_random), own_ids=ids is None)
        names = contents.classes if classes is None else classes
        return cls(contents.inputs, contents.labels, contents.ids if ids is None else ids, names)

    def __getstate__(self) -> dict[str, Any]:
        # A copy's tensors count their writes anew: by its version, a digest of before the last write would pass for today's.
        return {name: value for name, value in self.__dict__.items() if name != "_digest"}

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        kind = f"{tuple(self.inputs.shape)} {self.inputs.dtype}"
        return f"Samples({kind}, {self.num_classes} classes, ids {listing(self.ids, most=3)})"

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.ids)}

    @property
    def classes_without_samples(self) -> tuple[str, ...]:
        """Names of the classes that no sample here belongs to."""
        present = set(self.labels.tolist())
        return tuple(name for label, name in enumerate(self.classes or ()) if label not in present)

    def subset(self, indices: Tensor | Sequence[int]) -> Samples:
        """Return the samples at these positions, in that order, with their ids and all class names."""
        rows = torch.as_tensor(indices)
        if rows.numel() == 0:
            rows = rows.to(torch.int64).reshape(0)
        if rows.ndim != 1 or rows.dtype == torch.bool or rows.is_floating_point():
            raise InputError(f"subset takes positions (k,) of integers, not {rows.dtype} {tuple(rows.shape)}")
        rows = rows.to(torch.int64)
        positions: list[int] = rows.tolist()
        outside = [position for position in positions if not 0 <= position < len(self)]
        if outside:
            raise InputError(f"positions outside 0…{len(self) - 1}: {listing(outside)}")
        part = object.__new__(Samples)
        part._store(
            self.inputs[rows.to(self.inputs.device)],
            self.labels[rows.to(self.labels.device)],
            ids=tuple(self.ids[position] for position in positions),
            classes=self.classes,
            num_classes=self.num_classes,
        )
        _refuse_duplicates(part.ids)
        return part

    def counting(self, num_classes: int) -> Samples:
        """Return the same samples, of a problem with this many classes: some of them may have no sample (any more)."""
        largest = int(self.labels.max()) + 1 if len(self) else 0
        if num_classes < largest or (self.classes is not None and num_classes != len(self.classes)):
            remark = "" if self.classes is None else f" and {len(self.classes)} class names are given"
            raise InputError(f"labels go up to {largest - 1}{remark}: that is not {num_classes} classes")
        part = object.__new__(Samples)
        part._store(self.inputs, self.labels, ids=self.ids, classes=self.classes, num_classes=num_classes)
        return part

    def index_of(self, ids: Any) -> Tensor:
        """Return the positions (k,) of these ids, in the order asked; unknown ids are refused by name."""
        names = as_ids(ids)
        unknown = [name for name in names if name not in self._positions]
        if unknown:
            patterns = "; for patterns see fastntk.matching_ids" if any(set("*?[") & set(name) for name in unknown) else ""
            raise InputError(
                f"unknown ids: {listing(unknown)}; the data has {len(self)} ids: {listing(self.ids, most=3)}{patterns}"
            )
        return torch.tensor([self._positions[name] for name in names], dtype=torch.int64)

    @property
    def version(self) -> tuple[int, int]:
        """Counts writes to inputs and labels that torch saw: who has it can tell cheaply whether they changed since."""
        return write_count(self.inputs), write_count(self.labels)

    def digest(self) -> str:
        """Return the SHA-256 of inputs (type, shape, values), labels, ids and class names.

        Computed once, and again only where torch saw a tensor written to; writes through a shared numpy array go unseen.
        """
        memo: tuple[tuple[int, int], str] | None = self.__dict__.get("_digest")
        if memo is None or memo[0] != self.version:
            memo = self.version, self._computed_digest()
            object.__setattr__(self, "_digest", memo)
        return memo[1]

    def _computed_digest(self) -> str:
        sha = hashlib.sha256()
        head = {"dtype": str(self.inputs.dtype), "shape": list(self.inputs.shape), "classes": self.classes}
        sha.update(json.dumps(head).encode())
        for tensor in (self.inputs, self.labels):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            sha.update(flat.view(torch.uint8).numpy().data)
        sha.update(json.dumps(self.ids).encode())
        return sha.hexdigest()

    def ids_digest(self) -> str:
        """Return the SHA-256 of the ids, in order."""
        return hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()


def as_ids(ids: Any) -> tuple[str, ...]:
    """Return ids as strings; accepts an iterable, array or tensor of int or str, or a single one."""
    if isinstance(ids, (Tensor, np.ndarray)):
        ids = ids.tolist()
    if isinstance(ids, (str, int, np.integer)):
        ids = (ids,)
    if not isinstance(ids, Iterable):
        raise InputError(f"ids must be int or str, or a sequence of them, not {type(ids).__name__}")
    values = [value.item() if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0 else value for value in ids]
    wrong = [value for value in values if isinstance(value, bool) or not isinstance(value, (str, int, np.integer))]
    if wrong:
        raise InputError(f"ids must be int or str, not {listing(f'{value!r} ({type(value).__name__})' for value in wrong)}")
    return _plain(tuple(str(value) for value in values), what="ids")


def ids_in_order(ids: Any) -> tuple[str, ...]:
    """Return ids as strings, one a sample: what has no order cannot say which is whose."""
    if isinstance(ids, (set, frozenset, Mapping)):
        raise InputError(
            f"ids must be in the order of the samples, and a {type(ids).__name__} has none: give a list, an array or a tensor"
        )
    return as_ids(ids)


def _plain(names: tuple[str, ...], *, what: str) -> tuple[str, ...]:
    """Refuse names that no list, table or file of ids can hold: line ends, control characters, bytes that are no UTF-8."""
    odd = [name for name in names if not name.isprintable() and _ODD.search(name)]
    if odd:
        raise InputError(
            f"{what} with line ends, control characters or bytes that are no UTF-8: {listing(map(ascii, odd))}; rename them "
            "(of an image folder: its files and folders)"
        )
    return names


def sample_ids(ids: Any, *, count: int) -> tuple[str, ...]:
    """Return ``count`` unique ids as strings, "0" … when none are given."""
    names = tuple(str(number) for number in range(count)) if ids is None else ids_in_order(ids)
    if len(names) != count:
        raise InputError(f"{len(names)} ids for {count} samples: give one id a sample")
    _refuse_duplicates(names)
    return names


def class_names(classes: Classes) -> tuple[str, ...] | None:
    """Return the class names in the order of their labels, refusing names given twice and what has no order."""
    if classes is None:
        return None
    if isinstance(classes, str):
        raise InputError(f"classes must be a sequence of names, not the single str {classes!r}")
    if isinstance(classes, (set, frozenset)):
        raise InputError(
            f"classes must be in the order of their labels, and a {type(classes).__name__} has none: give classes= as a list, "
            "or as {name: label}"
        )
    names = tuple(str(name) for name in (_by_label(classes) if isinstance(classes, Mapping) else classes))
    _plain(names, what="class names")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"class names given more than once: {listing(twice)}")
    return names


def _by_label(classes: Mapping[Any, Any]) -> list[str]:
    """The names of {name: label} or {label: name} in the order of the labels, which have to be 0 … C - 1."""
    for names, labels in ((classes.keys(), classes.values()), (classes.values(), classes.keys())):
        whole = all(isinstance(label, (int, np.integer)) and not isinstance(label, bool) for label in labels)
        if whole and all(isinstance(name, str) for name in names) and sorted(labels) == list(range(len(classes))):
            by_label = dict(zip(labels, names))
            return [by_label[label] for label in range(len(classes))]
    pairs = listing(f"{key!r}: {value!r}" for key, value in classes.items())
    raise InputError(
        f"classes as a mapping must be {{name: label}} or {{label: name}} with each label of 0…{len(classes) - 1} once, as int; "
        f"got {{{pairs}}}: give classes= as a list of names in the order of their labels"
    )


def label_tensor(labels: Any, *, count: int) -> Tensor:
    """Return labels as an int64 tensor (count,) of its own, on the CPU; floats and wrong shapes are refused."""
    try:
        tensor = torch.as_tensor(labels if isinstance(labels, Tensor) else np.asarray(labels))
    except (TypeError, ValueError) as error:
        raise InputError(f"labels must be integers (n,), not {type(labels).__name__}: {error}") from error
    if tensor.numel() == 0 and tensor.ndim == 1:
        tensor = tensor.to(torch.int64)
    if tensor.ndim != 1:
        raise InputError(f"labels must be one integer a sample, shape (n,), not {tuple(tensor.shape)}")
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise InputError(f"labels must be integers, not {tensor.dtype}; convert them with .to(torch.int64)")
    if len(tensor) != count:
        raise InputError(f"{len(tensor)} labels for {count} inputs: give one label a sample")
    return tensor.detach().to("cpu", torch.int64, copy=True)


def _check_labels(labels: Tensor, ids: tuple[str, ...], classes: tuple[str, ...] | None) -> None:
    bad = labels < 0
    if classes is not None:
        bad |= labels >= len(classes)
    if bool(bad.any()):
        where = listing(ids[position] for position in bad.nonzero().flatten().tolist())
        values = sorted(set(labels[bad].tolist()))
        label_range = "0 or more" if classes is None else f"0…{len(classes) - 1} for the {len(classes)} classes"
        raise InputError(f"labels must be {label_range}; found {listing(values)} at ids {where}")


def _refuse_duplicates(ids: tuple[str, ...]) -> None:
    if len(set(ids)) == len(ids):
        return
    twice = [name for name, times in Counter(ids).items() if times > 1]
    raise InputError(f"ids given more than once: {listing(twice)}; ids are compared as strings and must be unique")
