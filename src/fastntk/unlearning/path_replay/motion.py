"""How features move when the body leaves its recorded path: rows at checkpoints of the path, lifted to features.

    M_i(t) = Σ_k α_k(t) P_k J_i,k       P_k = W_k⁺

J_i,k (C, m): rows of sample i at checkpoint k; W_k: the head there. P J moves the features by the least that explains how the
logits move. α interpolates linearly in time between the two checkpoints around t; before the first and after the last it is 1.

A correction adds what the true features, seen at a few points of a new path, have beyond that: 0 at the start, linear in between.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Rows (n, C, m) of all samples at one step of the path, and the lift W⁺ (H, C) of the head there.

    ``columns`` (m,): where they are in rows on disk that hold more, or hold them in another order; None: as they are.
    """

    step: int
    rows: Tensor
    lift: Tensor
    on_disk: bool = False
    columns: Tensor | None = None

    def of(self, samples: Tensor) -> Tensor:
        """Rows of these samples, (B, C, m), as precise as the head."""
        rows = self.rows[samples].to(self.lift.dtype)
        return rows if self.columns is None else rows[:, :, self.columns]

    def cut(self, columns: Tensor) -> Checkpoint:
        """These columns of the rows: of rows in memory a copy, of rows on disk those of a batch whenever they are read."""
        if not self.on_disk:
            return Checkpoint(self.step, self.rows[:, :, columns].contiguous(), self.lift)
        inside = columns if self.columns is None else self.columns[columns]
        return Checkpoint(self.step, self.rows, self.lift, on_disk=True, columns=inside)


@dataclass(frozen=True, eq=False)
class Correction:
    """What the features of each sample (n, H) have at some steps beyond what M says."""

    steps: tuple[int, ...]
    features: tuple[Tensor, ...]

    def at(self, step: int, samples: Tensor) -> Tensor:
        """(B, H), linear in time, 0 at the start."""
        steps = (0, *self.steps)
        k = min(max(bisect.bisect_right(steps, step), 1), len(steps) - 1)
        share = min(1.0, (step - steps[k - 1]) / max(1, steps[k] - steps[k - 1]))
        out = share * self.features[k - 1][samples]
        return out if k == 1 else out + (1 - share) * self.features[k - 2][samples]


class RowMotion:
    """M from rows at checkpoints."""

    def __init__(self, checkpoints: Sequence[Checkpoint], columns: Tensor, correction: Correction | None = None) -> None:
        self.checkpoints = sorted(checkpoints, key=lambda each: each.step)
        self.columns = columns
        self.correction = correction

    def at(self, step: int, samples: Tensor) -> RowLocal:
        """The motion of these samples at one step."""
        active = [(share, point.of(samples), point.lift) for share, point in self._active(step)]
        extra = None if self.correction is None else self.correction.at(step, samples)
        return RowLocal(active, extra)

    def _active(self, step: int) -> list[tuple[float, Checkpoint]]:
        points = self.checkpoints
        k = bisect.bisect_right([point.step for point in points], step)
        if k == 0 or k == len(points):
            return [(1.0, points[min(k, len(points) - 1)])]
        before, after = points[k - 1], points[k]
        share = (step - before.step) / (after.step - before.step)
        return [(weight, point) for weight, point in ((1 - share, before), (share, after)) if weight > 0]


class RowLocal:
    """M of one batch: pairs of share, rows (B, C, m) and lift (H, C)."""

    def __init__(self, active: list[tuple[float, Tensor, Tensor]], extra: Tensor | None) -> None:
        self._active, self._extra = active, extra

    def forward(self, moved: Tensor) -> Tensor:
        """See :class:`fastntk.unlearning.path_replay.replay.Local`."""
        total: Tensor | None = None
        for share, rows, lift in self._active:
            count, classes, width = rows.shape
            outputs = (rows.view(-1, width) @ moved.T).view(count, classes, -1)  # (B, C, L)
            part = torch.einsum("bcl,hc->lbh", outputs, share * lift)
            total = part if total is None else total + part
        assert total is not None
        if self._extra is not None:
            total[1:] += self._extra
        return total

    def backward(self, features: Tensor) -> Tensor:
        """See :class:`fastntk.unlearning.path_replay.replay.Local`."""
        total: Tensor | None = None
        for share, rows, lift in self._active:
            count, classes, width = rows.shape
            weights = torch.einsum("lbh,hc->lbc", features, share * lift).reshape(-1, count * classes)
            part = weights @ rows.view(-1, width)
            total = part if total is None else total + part
        assert total is not None
        return total
