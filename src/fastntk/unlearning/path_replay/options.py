"""Options of ``path-replay`` as they are given, turned into epochs and shares, or refused with what was expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from fastntk.base.errors import InputError

CHECKPOINTS = ((1 / 3,), (1 / 10, 1 / 3))
"""Where one and two checkpoints lie, as shares of all epochs: chosen on development settings (docs/results-development.md)."""
POINTS = ((1.0,), (1 / 5, 1.0))
"""Where one and two points of the correction lie."""


def path_epochs(asked: int | Sequence[int] | None, epochs: int, *, least: int) -> tuple[int, ...]:
    """Points of the path, as epochs after which they lie: those named, or so many, denser where the path is young.

    ``least``: how many there have to be, and are where nothing is asked for: 1 for checkpoints, 0 for a correction.
    """
    what, few = ("checkpoints", CHECKPOINTS) if least else ("correction", POINTS)
    if asked is None:
        asked = least
    if not _is_whole(asked) and not _is_list(asked):
        raise InputError(f"{what} is a number of points of the path, or their epochs; got {asked!r}.")
    if isinstance(asked, int):
        if asked < least:
            raise InputError(f"{what} is a number of points of the path, {least} or more, or their epochs; got {asked}.")
        if asked == 0:
            return ()
        if epochs == 0:
            return (0,)
        if asked <= len(few):
            return tuple(sorted({min(epochs, max(1, round(share * epochs))) for share in few[asked - 1]}))
        ratio = 10 ** (1 / (asked - 1))
        return tuple(sorted({min(epochs, max(1, round(epochs / 10 * ratio**k))) for k in range(asked)}))
    if not asked or not all(_is_whole(epoch) and 0 < epoch <= epochs for epoch in asked):
        raise InputError(f"{what}: points of the path are epochs from 1 to {epochs}, got {tuple(asked)}.")
    return tuple(sorted(set(asked)))


def share(budget: object) -> float:
    """The budget as a number, or a refusal."""
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget < math.inf:
        raise InputError(f"budget must be a share of a Retrain, 0 or more, got {budget!r}.")
    return float(budget)


EXACT = 20
"""One epoch of so many is trained on the network itself, where nothing else is asked for."""


def exact_epochs(asked: int | Sequence[int] | None, epochs: int, depth: int | str, *, own_loop: bool) -> tuple[int, ...]:
    """Epochs, counted from 0, that are trained on the network itself: so many first ones, or those named.

    Unless they are asked for, ``auto`` has none: what it may spend buys more as depth. Nor has a loop of the user's
    (``own_loop``): its images were augmented, and the network would be shown them as they are.
    """
    if asked is None:
        asked = 0 if depth == "auto" or own_loop else epochs // EXACT
    selection = range(asked) if _is_whole(asked) and asked >= 0 else asked
    if not _is_list(selection) or not all(_is_whole(epoch) and 0 <= epoch < epochs for epoch in selection):
        raise InputError(f"exact is a number of first epochs, or epochs from 0 to {epochs - 1}; got {asked!r}.")
    return tuple(sorted(set(selection)))


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
