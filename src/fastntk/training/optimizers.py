"""Optimisers of a recorded path, rebuilt from their name and options, on a stack of vectors of tuned parameters.

Most of them treat every number by itself: a vector of many parameters, or a stack of several such vectors, then takes the very
steps that the parameters would take one by one. Some look at one parameter as a whole (a low-rank moment, an orthogonal step):
those get every parameter of every vector by itself, in its own shape. What needs the loss again at every step (a line search)
cannot be rebuilt and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import InputError

ELEMENTWISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop")
BY_PARAMETER = ("Adafactor", "Muon")
KNOWN = (*ELEMENTWISE, *BY_PARAMETER)
IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Options that say how a step is computed, not where it leads."""
CONSTRUCTOR = ("initial_accumulator_value",)
"""Options that torch takes from the constructor's arguments alone, whatever a group says."""


@dataclass(frozen=True)
class Group:
    """Tuned parameters with the same options, the rate aside."""

    names: tuple[str, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Span:
    """Where a parameter lies in a vector, and its shape."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


def check_optimizer(name: str) -> None:
    """Refuse one that cannot be rebuilt."""
    if name not in KNOWN:
        raise InputError(
            f"The optimiser {name!r} cannot be rebuilt from a trace: it needs more than the gradients, or is not one of "
            f"torch.optim. Known: {', '.join(KNOWN)}."
        )


class StackOptimizer:
    """One optimiser on ``values`` (L, p), which it changes in place: every row is a vector with parameters at ``spans``."""

    def __init__(self, name: str, groups: Sequence[Group], values: Tensor, spans: Sequence[Span]) -> None:
        check_optimizer(name)
        owners = {each: number for number, group in enumerate(groups) for each in group.names}
        strangers = [span.name for span in spans if span.name not in owners]
        if strangers:
            raise InputError(f"The optimiser of this trace has no group for {', '.join(strangers)}: the trace is damaged.")
        self._values = values
        self._views: list[tuple[Tensor, int, int, int | None]] = []
        members: list[list[Tensor]] = [[] for _ in groups]
        for number, start, stop, shape in _pieces(spans, owners, whole=name in BY_PARAMETER):
            lanes = [None] if shape is None else list(range(len(values)))
            for lane in lanes:
                view = values[:, start:stop] if lane is None or shape is None else values[lane, start:stop].view(shape)
                members[number].append(view)
                self._views.append((view, start, stop, lane))
        self._numbers = [number for number, views in enumerate(members) if views]
        settings = [{"params": members[number], **_typed(groups[number].options)} for number in self._numbers]
        try:
            kind = getattr(torch.optim, name)
            options: dict[str, Any] = {} if name in BY_PARAMETER and name != "Adafactor" else {"foreach": False}
            if name == "Adagrad":  # it fills its state in the beginning, with what the constructor is given
                options["initial_accumulator_value"] = settings[0].get("initial_accumulator_value", 0)
            self._optimizer: torch.optim.Optimizer = kind(settings, lr=1.0, **options)
            unknown = {option for group in groups for option in group.options} - set(self._optimizer.defaults)
            if unknown:
                raise ValueError(f"it has no {', '.join(sorted(unknown))}")
        except (TypeError, ValueError) as error:
            option_sets = [dict(group.options) for group in groups]
            raise InputError(f"torch.optim.{name} refuses the options of this trace ({option_sets}): {error}") from error

    def step(self, gradient: Tensor, rates: Sequence[float], varying: Sequence[Mapping[str, Any]] = ()) -> None:
        """One step with this gradient (L, p), a rate for each group, and options that are others at this step."""
        for view, start, stop, lane in self._views:
            view.grad = gradient[:, start:stop] if lane is None else gradient[lane, start:stop].view(view.shape)
        for number, group in zip(self._numbers, self._optimizer.param_groups):
            group["lr"] = rates[number]
            if varying:
                group.update(varying[number])
        self._optimizer.step()


def _pieces(
    spans: Sequence[Span], owners: Mapping[str, int], *, whole: bool
) -> list[tuple[int, int, int, tuple[int, ...] | None]]:
    """(group, start, stop, shape): a parameter each if they are needed ``whole``, else as long stretches of one group as there
    are, with no shape."""
    if whole:
        return [(owners[span.name], span.start, span.stop, span.shape) for span in spans]
    pieces: list[tuple[int, int, int, tuple[int, ...] | None]] = []
    for span in sorted(spans, key=lambda each: each.start):
        number = owners[span.name]
        if pieces and pieces[-1][0] == number and pieces[-1][2] == span.start:
            pieces[-1] = (number, pieces[-1][1], span.stop, None)
        else:
            pieces.append((number, span.start, span.stop, None))
    return pieces


def _typed(options: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
