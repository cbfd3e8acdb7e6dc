"""What a recorded step is the mean of, as the shares of batches of unequal size in their steps show.

With n the size of a batch, N that of its step and s the batch's share (its gradient over that of its own mean loss), but for a
common factor:

    batch   s = 1         the mean of the batches' means
    step    s = n/N       the mean of all the step's samples
    sum     s = n         a sum over them, divided by nothing or by a number that does not follow from them
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch

Average = Literal["batch", "step", "sum"]
REMEMBERED = 1000
"""Steps of unequal batches, comparisons of two sizes, and sizes, that are looked at."""
CLEAR = 0.05
"""How far shares may be from those of a rule, over the larger of two that are compared."""
_RULES: dict[str, Callable[[int, int], float]] = {
    "sum": lambda count, total: count,
    "inverse": lambda count, total: 1 / count,
    "batch": lambda count, total: 1.0,
    "step": lambda count, total: count / total,
}
"""The share of a batch of so many samples in a step of so many, but for a common factor."""
Size = tuple[int, int]
"""How many samples a batch has, and its step."""


class Shares:
    """The shares of a path's batches, over those that batches of another size had just before them.

    What a loop multiplies all its losses with may change on the way, so that shares of different times say nothing of sizes: a
    share is compared with the one that a batch of the size before it would have had now, if its own went on as they did.
    """

    def __init__(self) -> None:
        self._unequal: list[tuple[float, float]] = []
        self._batches, self._before = 0, (0, 0)
        self._latest: dict[Size, list[tuple[float, float]]] = {}
        self._ratios: list[tuple[Size, Size, float]] = []
        self._rough: list[tuple[Size, Size, float]] = []

    def add(self, counts: Sequence[int], shares: Sequence[float]) -> None:
        """One step: how many samples each of its batches had, and the batch's share."""
        by_size: defaultdict[Size, list[tuple[float, float]]] = defaultdict(list)
        for place, (count, share) in enumerate(zip(counts, shares)):
            by_size[count, sum(counts)].append((self._batches + place, share))
        means = {
            size: (sum(place for place, _ in each) / len(each), sum(share for _, share in each) / len(each))
            for size, each in by_size.items()
        }
        self._compare(means)
        for size, mean in means.items():
            self._latest[size] = [*self._latest.pop(size, [])[-1:], mean]
        while len(self._latest) > max(REMEMBERED, len(means)):
            del self._latest[next(iter(self._latest))]
        self._batches, self._before = self._batches + len(counts), next(iter(means))
        if len(means) > 1 and len(self._unequal) < REMEMBERED:
            part = torch.tensor(shares, dtype=torch.float64) / sum(shares)
            by_count = torch.tensor(counts, dtype=torch.float64) / sum(counts)
            self._unequal.append((float((part - by_count).abs().max()), float((part - 1 / len(part)).abs().max())))

    def _compare(self, means: Mapping[Size, tuple[float, float]]) -> None:
        """Of the coming step, by the size of its batches: their place and share."""
        latest = self._latest.get(self._before, [])
        if not latest or min(share for _, share in latest) <= 0:
            return
        (first, start), (last, end) = ((place, math.log(share)) for place, share in (latest[0], latest[-1]))
        ratios = self._rough if len(latest) == 1 else self._ratios
        for size, (place, share) in means.items():
            if size == self._before or share <= 0 or len(ratios) >= REMEMBERED:
                continue
            onward = 0.0 if len(latest) == 1 else min(1.0, (place - last) / (last - first))
            ratio = math.log(share) - end - onward * (end - start)
            # Of the smaller to the larger, whichever came first: a jump between epochs is then in the minority.
            ratios.append((self._before, size, ratio) if self._before > size else (size, self._before, -ratio))

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
        """How far they are from each of the rules, on average over all pairs of sizes; nothing where there is one size."""
        by_pair: defaultdict[tuple[Size, Size], list[float]] = defaultdict(list)
        for large, small, ratio in self._ratios or self._rough:
            by_pair[large, small].append(ratio)
        middle = {pair: float(torch.tensor(each, dtype=torch.float64).median().exp()) for pair, each in by_pair.items()}
        away: dict[str, float] = {}
        for name, share in _RULES.items() if middle else ():
            wanted = {(large, small): share(*small) / share(*large) for large, small in middle}
            away[name] = sum(abs(middle[pair] - each) / max(1.0, each) for pair, each in wanted.items()) / len(wanted)
        return away


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
