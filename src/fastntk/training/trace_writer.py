"""Writing a trace while a path is walked, and what one of some counts would hold: :mod:`fastntk.training.trace`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastntk.base.text import byte_size
from fastntk.data import Samples
from fastntk.training.losses import LossFunction
from fastntk.training.series import Series, SeriesWriter
from fastntk.training.trace import Trace, TraceFacts

HALF_ABOVE = 256 * 2**20
"""Bytes of single-precision features above which they are kept in half precision."""
GRADIENTS_UP_TO = 2 * 2**30
"""Bytes of the body's gradients up to which they are kept; without them only the head can be replayed."""


class TraceWriter:
    """Takes a path step by step, in memory or into ``folder``; nothing is kept of one that is never finished.

    ``body``: numbers of the body's gradient; ``bias``: of that of the head's bias, 0 where it is not tuned; ``soft``: classes of
    soft targets, 0 where targets are labels.
    """

    def __init__(
        self,
        *,
        features: int,
        body: int,
        width: int,
        dtype: torch.dtype,
        half: bool,
        gradients: bool,
        folder: Path | None = None,
        soft: int = 0,
        bias: int = 0,
    ) -> None:
        def series(name: str, shape: tuple[int, ...], kind: torch.dtype) -> SeriesWriter:
            return SeriesWriter(shape, kind, None if folder is None else folder / f"{name}.bin")

        self.folder = folder
        self._series = {
            "samples": series("samples", (), torch.int32),
            "features": series("features", (features,), torch.float16 if half and dtype == torch.float32 else dtype),
        }
        if gradients:
            self._series |= {"gradients": series("gradients", (body,), dtype), "weights": series("weights", (width,), dtype)}
        if soft:
            self._series["targets"] = series("targets", (soft,), dtype)
        if bias:
            self._series["bias"] = series("bias", (bias,), dtype)
        self._bounds, self._epochs = [0], list[int]()
        self._rates, self._clips, self._norms = list[list[float]](), list[float](), list[float]()
        self._parts, self._shares = [0], list[float]()

    @property
    def keeps_gradients(self) -> bool:
        """Whether the body's path is recorded as well."""
        return "gradients" in self._series

    @property
    def steps(self) -> int:
        """Steps so far."""
        return len(self._rates)

    def nbytes(self, name: str) -> int:
        """Bytes of one of the parts that grow, so far."""
        return self._series[name].nbytes if name in self._series else 0

    def epoch(self, weights: Tensor) -> None:
        """A new epoch begins, or the last one is over, at these tuned parameters (d,)."""
        self._epochs.append(self.steps)
        if "weights" in self._series:
            self._series["weights"].append(weights.unsqueeze(0))

    def step(
        self,
        samples: Tensor,
        features: Tensor,
        gradient: Tensor | None,
        *,
        rate: float | Sequence[float],
        clip: float = 1.0,
        norm: float = math.nan,
        parts: Sequence[tuple[int, float]] = (),
        targets: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """One step of the optimiser: the positions of its samples, the head's inputs, the body's gradient (b,), the head's
        ``bias``'s (C,).

        ``rate``: one for all groups, or one each. ``norm``: of all the body's gradient. ``parts``: number of samples and share of
        each batch, where there were several.
        """
        self._series["samples"].append(samples.to(torch.int32))
        self._series["features"].append(features)
        if "gradients" in self._series:
            assert gradient is not None
            self._series["gradients"].append(gradient.unsqueeze(0))
        if "targets" in self._series:
            assert targets is not None
            self._series["targets"].append(targets)
        if "bias" in self._series:
            assert bias is not None
            self._series["bias"].append(bias.unsqueeze(0))
        self._bounds.append(self._bounds[-1] + len(samples))
        for count, share in parts or ((len(samples), 1.0),):
            self._parts.append(self._parts[-1] + count)
            self._shares.append(share)
        self._rates.append([rate] if isinstance(rate, float) else list(rate))
        self._clips.append(clip)
        self._norms.append(norm)

    def leave_body(self) -> None:
        """Keep nothing of the body's path after all: there is no room for it."""
        for name in ("gradients", "weights"):
            self._series.pop(name).discard()

    def cut(self, steps: int) -> None:
        """Keep the path up to here, at least one step of it."""
        visits = self._bounds[steps]
        parts = self._parts.index(visits)
        self._epochs = [first for first in self._epochs if first < steps]
        for name, series in self._series.items():
            series.cut({"gradients": steps, "bias": steps, "weights": len(self._epochs)}.get(name, visits))
        self._bounds, self._parts, self._shares = self._bounds[: steps + 1], self._parts[: parts + 1], self._shares[:parts]
        self._rates, self._clips, self._norms = self._rates[:steps], self._clips[:steps], self._norms[:steps]

    def narrow(self) -> None:
        """Keep the features in half precision from here on, and those that are here already too."""
        self._series["features"].narrow()

    def finish(
        self,
        facts: TraceFacts,
        listed: Samples,
        *,
        relabel: Tensor | None = None,
        clips: Tensor | None = None,
        norms: Tensor | None = None,
        varying: dict[str, Tensor] | None = None,
        function: LossFunction | None = None,
    ) -> tuple[Trace, dict[str, str]]:
        """The trace, and the SHA-256 of each file by name.

        ``relabel``: by the positions that were recorded, those in ``listed``. ``clips``, ``norms`` (S,): where they are known
        only now.
        """
        if relabel is not None:
            self._series["samples"].replace(lambda positions: relabel[positions.long()].to(torch.int32))
        outcomes = {name: writer.finish() for name, writer in self._series.items()}
        series: dict[str, Series] = {name: part for name, (part, _) in outcomes.items()}
        measured = torch.tensor(self._norms, dtype=torch.float64) if norms is None else norms
        several = len(self._shares) > self.steps or any(share != 1 for share in self._shares)
        trace = Trace(
            facts=facts,
            listed=without_images(listed),
            bounds=torch.tensor(self._bounds),
            rates=torch.tensor(self._rates, dtype=torch.float64).reshape(self.steps, len(facts.groups)),
            clips=torch.tensor(self._clips, dtype=torch.float64) if clips is None else clips,
            epoch_steps=torch.tensor(self._epochs),
            samples=series["samples"],
            features=series["features"],
            gradients=series.get("gradients"),
            weights=series.get("weights"),
            folder=self.folder,
            varying=varying or {},
            norms=None if bool(measured.isnan().any()) or not len(measured) else measured,
            parts=torch.tensor(self._parts) if several else None,
            shares=torch.tensor(self._shares, dtype=torch.float64) if several else None,
            targets=series.get("targets"),
            bias=series.get("bias"),
            function=function,
        )
        return trace, {name: digest for name, (_, digest) in outcomes.items() if digest is not None}

    def close(self) -> None:
        """Let go of the files, of which nothing will be kept."""
        for writer in self._series.values():
            writer.abandon()


def without_images(samples: Samples) -> Samples:
    """The same ids, labels and class names, with inputs of no pixels."""
    labels = samples.labels.detach().cpu()
    part = Samples(torch.empty(len(samples), 0), labels, ids=samples.ids, classes=samples.classes)
    return part.counting(samples.num_classes)


def describe(
    visits: int, features: int, steps: int, body: int, epochs: int, width: int, itemsize: int, bias: int = 0
) -> dict[str, Any]:
    """What a trace of these counts would hold and take: the rules of what is kept, and in which precision."""
    single = visits * features * itemsize
    half = single > HALF_ABOVE and itemsize == 4
    gradients = steps * body * itemsize <= GRADIENTS_UP_TO
    path = (steps * body + (epochs + 1) * width) * itemsize if gradients else 0
    total = visits * 4 + (single // 2 if half else single) + path + steps * (24 + bias * itemsize)
    return {"half": half, "gradients": gradients, "nbytes": total, "size": byte_size(total)}
