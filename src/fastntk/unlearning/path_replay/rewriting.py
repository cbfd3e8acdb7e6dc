"""The trace of a new path, written while it is walked: the retained samples' visits only.

Features are those of the new path. Gradients are kept of the parameters that moved; those that were left where they were have
none in the new trace, because the recorded ones hold the forgotten samples' share. A later request cannot move them.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError
from fastntk.base.memory import memory_allowed
from fastntk.data import Split
from fastntk.training.run import Run
from fastntk.training.trace import HOME, Trace
from fastntk.training.trace_writer import TraceWriter
from fastntk.unlearning.path_replay.columns import Columns
from fastntk.unlearning.path_replay.replay import Lanes, Seen

IN_MEMORY = 0.25
"""Of the memory allowed, what a new trace may take before it is written to a temporary folder instead."""


class TemporaryHome:
    """A folder that lives as long as this object."""

    def __init__(self, parent: str | Path | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastntk-trace-", dir=parent))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> TemporaryHome:
        """Copies of a trace share the folder, which goes with the last of them."""
        return self

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "The trace of this result is large and lies in a temporary folder, which a pickle would not hold. Save the result "
            "into a folder of its own instead: fastntk.save_result(result, folder)."
        )


class Rewriter:
    """An observer of a replay with one lane."""

    def __init__(
        self,
        run: Run,
        trace: Trace,
        split: Split,
        columns: Columns,
        moving: Sequence[str],
        *,
        allowed: int | None = None,
        scratch: str | Path | None = None,
    ) -> None:
        self._run, self._trace, self._split, self._columns, self._moving = run, trace, split, columns, tuple(moving)
        self._keep = split.keep
        self._position = self._keep.long().cumsum(0) - 1
        self._epochs = trace.epoch_steps.tolist()
        self._next = 0
        large = trace.nbytes > IN_MEMORY * memory_allowed(allowed)
        self._home = TemporaryHome(scratch) if large else None
        self._writer = TraceWriter(
            features=trace.facts.features,
            body=len(columns.body),
            width=run.subset.numel,
            dtype=run.anchor.dtype,
            half=trace.features.dtype == torch.float16,
            gradients=bool(self._moving) or not (trace.facts.body or trace.facts.left),
            folder=None if self._home is None else self._home.folder,
            soft=0 if trace.targets is None else trace.facts.classes,
            bias=0 if trace.facts.head_bias is None else trace.facts.classes,
        )
        self._steps: list[int] = []

    def __call__(self, seen: Seen) -> None:
        """See :data:`fastntk.unlearning.path_replay.replay.Observer`."""
        step, samples = seen.step, seen.samples
        self._begin_epochs(step, seen.lanes)
        keep = self._keep[samples]
        if not bool(keep.any()):
            return
        trace = self._trace
        parts = trace.parts_of(step)
        counts = [(int(keep[start:stop].sum()), share) for start, stop, share in parts]
        if trace.facts.average == "sum":  # a smaller batch has less of it
            counts = [(count, share * count / (stop - start)) for (count, share), (start, stop, _) in zip(counts, parts)]
        if trace.facts.average == "step":  # the mean of all: batches that are gone leave their share to the others
            total, rest = (sum(share for count, share in counts if count or not nonempty) for nonempty in (False, True))
            counts = [(count, share * total / rest if rest else share) for count, share in counts]
        self._writer.step(
            self._position[samples[keep]],
            seen.features[1][keep],
            torch.empty(0).to(seen.features) if seen.body is None else seen.body[1],
            rate=trace.rates[step].tolist(),
            clip=float(seen.clips[1]),
            norm=math.nan if trace.norms is None else self._norm(seen, float(trace.norms[step])),
            parts=[part for part in counts if part[0]],
            targets=seen.targets[keep],
            bias=None if seen.bias is None else seen.bias[1],
        )
        self._steps.append(step)

    def _norm(self, seen: Seen, recorded: float) -> float:
        """Of the body's gradient on the new path, as far as it moved."""
        if seen.body is None:
            return recorded
        assert self._trace.gradients is not None
        before = self._trace.gradients[seen.step][self._columns.inside]
        return math.sqrt(max(0.0, recorded**2 - float(before.square().sum()) + float(seen.body[1].square().sum())))

    def _begin_epochs(self, step: int, lanes: Lanes) -> None:
        while self._next < len(self._epochs) and self._epochs[self._next] <= step:
            base = self._run.anchor.cpu() if self._trace.weights is None else self._trace.weights[self._next]
            self._writer.epoch(self._columns.moved(base, lanes, 1))
            self._next += 1

    def finish(self, lanes: Lanes, vector: Tensor) -> Trace:
        """The new trace, which ends at ``vector`` (d,)."""
        self._begin_epochs(self._trace.steps, lanes)
        facts = self._trace.facts
        body_names = tuple(name for name in self._run.subset.names if name in facts.left or name in facts.body)
        new = dataclasses.replace(
            facts,
            body=tuple(name for name in facts.body if name in self._moving),
            left=tuple(name for name in body_names if name not in self._moving),
            trained=tensor_digest(vector),
            requests=facts.requests + 1,
        )
        samples = self._trace.listed.subset(self._split.retain)
        varying = {name: values[self._steps] for name, values in self._trace.varying.items()}
        trace, _ = self._writer.finish(new, samples, varying=varying, function=self._trace.function)
        if self._home is not None:
            trace.memo[HOME] = self._home
        return trace
