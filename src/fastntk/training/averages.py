"""What a recorded step is the mean of, as the shares of batches of unequal size in their steps show.

With n the size of a batch, N that of its step and s the batch's share (its gradient over that of its own mean loss), but for a
common factor:

    batch   s = 1         the mean of the batches' means
    step    s = n/N       the mean of all the step's samples
    sum     s = n         a sum over them, divided by nothing or by a number that does not follow from them
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import torch

Average = Literal["batch", "step", "sum"]
REMEMBERED = 1000
"""Steps of unequal batches, and batches of a size, that are looked at."""
CLEAR = 0.05
"""How far shares may be from those of a rule, over the usual one."""
_RULES: dict[str, Callable[[int, int], float]] = {
    "sum": lambda count, total: count,
    "inverse": lambda count, total: 1 / count,
    "batch": lambda count, total: 1.0,
    "step": lambda count, total: count / total,
}
"""The share of a batch of so many samples in a step of so many, but for a common factor."""


class Shares:
    """The shares of a path's batches, by the sizes of batch and step."""

    def __init__(self) -> None:
        self._unequal: list[tuple[float, float]] = []
        self._known: defaultdict[tuple[int, int], list[float]] = defaultdict(list)

    def add(self, counts: Sequence[int], shares: Sequence[float]) -> None:
        """One step: how many samples each of its batches had, and the batch's share."""
        for count, share in zip(counts, shares):
            history = self._known[count, sum(counts)]
            if len(history) < REMEMBERED:
                history.append(share)
        if len(set(counts)) > 1 and len(self._unequal) < REMEMBERED:
            part = torch.tensor(shares, dtype=torch.float64) / sum(shares)
            size = torch.tensor(counts, dtype=torch.float64)
            self._unequal.append((float((part - size / size.sum()).abs().max()), float((part - 1 / len(part)).abs().max())))

    def averages(self) -> tuple[Average, ...]:
        """What they may be by what they show; nothing where all batches are of one size."""
        away = self._away()
        nearest = sorted(away, key=lambda name: away[name])[:2]
        if nearest and away[nearest[0]] < min(CLEAR, away[nearest[1]] / 4):
            if nearest[0] == "sum":
                return ("sum",)
            if nearest[0] == "inverse":
                warnings.warn(
                    "batches count the less, the larger they are, as where the loss given to record is a sum over samples and "
                    "the loop's is their mean: give the mean, or a replay without some samples will be off",
                    stacklevel=4,
                )
        if self._unequal:
            by_size, equal = torch.tensor(self._unequal).median(0).values.tolist()
            return ("step",) if by_size < 0.02 and by_size < equal / 4 else ("batch",)
        return ("batch", "step") if away and away["batch"] < min(CLEAR, away["sum"] / 4) else ()

    def _away(self) -> dict[str, float]:
        """How far they are from each of the rules, on average over all sizes but the usual one; nothing without others."""
        usual = max(self._known, key=lambda key: len(self._known[key]), default=(0, 0))
        middle = {key: float(torch.tensor(values, dtype=torch.float64).median()) for key, values in self._known.items()}
        others = [key for key in middle if key != usual]
        if not others or not middle[usual] > 0:
            return {}
        return {
            name: sum(abs(middle[key] / middle[usual] - share(*key) / share(*usual)) for key in others) / len(others)
            for name, share in _RULES.items()
        }


def average_of(given: Average | None, shown: Sequence[Average]) -> Average:
    """What a step is the mean of: as given, else as batches of unequal size show; said where these differ."""
    if given is None:
        return shown[0] if shown else "batch"
    if shown and given not in shown:
        how = {"batch": "alike", "step": "by their size in a step", "sum": "by their size, as in a sum"}[shown[0]]
        warnings.warn(
            f"average={given!r} was given, but batches of unequal size counted {how}, which is average={shown[0]!r}: a replay "
            "without some of their samples would be off",
            stacklevel=4,
        )
    return given
