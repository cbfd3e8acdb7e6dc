"""Where a recorded loop's path goes, step by step: into memory or a new folder, as much of it as there is room for."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fastntk.base.atomic import new_folder
from fastntk.base.errors import listing
from fastntk.data import Samples
from fastntk.training.averages import Average, Shares
from fastntk.training.live_optimizer import Numbers, varying
from fastntk.training.losses import LossFunction
from fastntk.training.measured_step import Step, clipping
from fastntk.training.passes import Part
from fastntk.training.trace import Trace, TraceFacts
from fastntk.training.trace_folder import read_trace, seal_trace
from fastntk.training.trace_writer import HALF_ABOVE, TraceWriter
from fastntk.training.tuned_head import TunedHead
from fastntk.tuning import Subset

EXPECTED_STEPS = 1000
"""Steps for which the body's gradients should have room, where the loop does not say how many there will be."""
QUEUE = 16
"""Steps whose numbers may be on their way from the device at once."""


@dataclass(frozen=True, eq=False)
class Ended:
    """Of the whole path: what each step was clipped by and the norm of its body's gradient (S,), the norm that was clipped to,
    the middle one of the steps' errors, and their mean by the size of the gradient. ``averages``: what batches of unequal
    size show that a step may be the mean of (nothing: there were none)."""

    clips: Tensor
    norms: Tensor
    max_norm: float | None
    error: float
    mean_error: float
    averages: tuple[Average, ...]


class PathStore:
    """``kept``: the parameters of the body whose path is kept: from the head inwards, as many as have room (bytes) for this many
    steps; none once the gradients, or the parameters by epoch, take more than that."""

    def __init__(
        self,
        subset: Subset,
        head: TunedHead,
        trace: bool | str | Path,
        *,
        max_norm: float | None,
        steps: int | None,
        room: int,
    ) -> None:
        self._subset, self._head, self._room, self._max_norm = subset, head, room, max_norm
        self._like = subset.get()
        self.kept = self._with_room(room // (steps or EXPECTED_STEPS))
        self._target = None if trace is True else Path(str(trace)).absolute()
        self._stack = contextlib.ExitStack()
        self._folder: Path | None = None
        if self._target is not None:
            self._folder = self._stack.enter_context(new_folder(self._target))
            self._folder.chmod(0o700)
            self._abandoned = weakref.finalize(self, _abandon, self._stack)
        self._writer: TraceWriter | None = None
        self._queue: list[Step] = []
        self._shares = Shares()
        self._measures: list[Tensor] = []
        self._options: list[Numbers] = []

    def _with_room(self, allowed: int) -> tuple[str, ...]:
        parameters = self._subset.parameters
        for number, name in enumerate(reversed(self._head.body)):
            allowed -= parameters[name].nbytes
            if allowed < 0:
                return self._head.body[len(self._head.body) - number :]
        return self._head.body

    def open(self, part: Part, *, soft: bool) -> None:
        """The first batch is here; before that the kind of its features and targets is not known."""
        if self._writer is not None:
            return
        features = part.features
        assert features is not None
        parameters = self._subset.parameters
        self._writer = TraceWriter(
            features=features.shape[1],
            body=sum(parameters[name].numel() for name in self.kept),
            width=self._subset.numel,
            dtype=self._like.dtype,
            half=features.dtype in (torch.float16, torch.bfloat16),
            gradients=bool(self.kept) or not self._head.body,
            folder=self._folder,
            soft=part.targets.shape[1] if soft else 0,
            bias=0 if self._head.bias is None else parameters[self._head.bias].numel(),
        )

    @property
    def _opened(self) -> TraceWriter:
        assert self._writer is not None
        return self._writer

    @property
    def keeps_body(self) -> bool:
        """Whether steps come with a gradient of the body (of no number, where there is no body)."""
        return self._opened.keeps_gradients

    def epoch(self) -> None:
        """An epoch begins at the parameters as they are now."""
        self._drain()
        self._check_room()
        self._opened.epoch(self._subset.get())

    def add(self, step: Step) -> None:
        """A step was taken."""
        step.leave()
        self._queue.append(step)
        while self._queue and (len(self._queue) > QUEUE or self._queue[0].arrived):
            self._write(self._queue.pop(0))

    def _drain(self) -> None:
        while self._queue:
            self._write(self._queue.pop(0))

    def _write(self, step: Step) -> None:
        step.wait()
        writer, tensors = self._opened, step.tensors
        measures = tensors["measures"].cpu()
        self._measures.append(measures)
        self._options.append(self._options[-1] if self._options and self._options[-1] == step.numbers else step.numbers)
        rounding = max(1e-6, float(measures[1]))
        shares = [1.0 if abs(share - 1) <= rounding else share for share in tensors["shares"].tolist()]
        writer.step(
            step.positions,
            tensors["features"],
            tensors.get("gradient") if writer.keeps_gradients else None,
            rate=[group["lr"] for group in step.numbers],
            parts=list(zip(step.counts, shares)),
            targets=step.targets,
            bias=tensors.get("bias"),
        )
        self._shares.add(step.counts, shares)
        self._check_room()
        if writer.nbytes("features") > HALF_ABOVE and self._like.dtype == torch.float32:
            writer.narrow()

    def _check_room(self) -> None:
        """Give up the body's path where it has no room any more, with the tuned parameters of one more epoch."""
        writer = self._opened
        most = max(writer.nbytes("gradients"), writer.nbytes("weights") + self._like.nbytes)
        if writer.keeps_gradients and self._head.body and most > self._room:
            writer.leave_body()
            self.kept = ()

    def leave(self, skipped: Sequence[str]) -> None:
        """Parameters of the body that the coming step passes over, for they have no gradient: a replay could not do that.

        Before the first step the path is kept of what lies between them and the head; later of no body.
        """
        if not skipped or not self.kept:
            return
        if self._writer is None:
            self.kept = self.kept[max(self.kept.index(name) for name in skipped) + 1 :]
        else:
            self._drain()
            self._writer.leave_body()
            self.kept = ()
        warnings.warn(
            f"{len(skipped)} tuned parameters have no gradient here ({listing(skipped, most=3)}), and the optimiser passes "
            "them over. The body's path is not kept from there inwards: requests can go "
            f"{'as deep as that' if self.kept else 'no deeper than the head'}",
            stacklevel=2,
        )

    def cut(self, steps: int) -> None:
        """Keep the path up to here."""
        self._drain()
        self._opened.cut(steps)
        del self._measures[steps:]

    def end(self) -> Ended:
        """The last step was taken."""
        self._drain()
        self._opened.epoch(self._subset.get())
        measures = torch.stack(self._measures)
        clips, most = clipping(measures, self._max_norm)
        errors, sizes = measures[:, 1], measures[:, 3] * measures[:, 0].abs()
        mean = float((errors * sizes).norm() / sizes.norm().clamp_min(1e-30))
        return Ended(clips, measures[:, 2], most, float(errors.median()), mean, self._shares.averages())

    def finish(
        self, ended: Ended, facts: TraceFacts, listed: Samples, relabel: Tensor | None, function: LossFunction | None
    ) -> Trace:
        """The trace; from its folder, where it has one."""
        trace, digests = self._opened.finish(
            facts,
            listed,
            relabel=relabel,
            clips=ended.clips,
            norms=ended.norms,
            # of the whole training: of an option that changed after the path was cut, the groups know the last value only
            varying={name: table[: self._opened.steps] for name, table in varying(self._options).items()},
            function=function,
        )
        if self._folder is None or self._target is None:
            return trace
        seal_trace(trace, self._folder, digests)
        self._stack.close()
        self._abandoned.detach()
        file_trace = read_trace(self._target, verify=False)
        return file_trace if function is None else file_trace.with_loss(function)

    def close(self) -> None:
        """Keep nothing."""
        if self._writer is not None:
            self._writer.close()
        if self._target is not None:
            self._abandoned()


class _Abandoned(BaseException):
    """Tells the new folder that it will not be finished."""


def _abandon(stack: contextlib.ExitStack) -> None:
    """Remove the folder that a stack was to finish."""
    with contextlib.suppress(_Abandoned):
        stack.__exit__(_Abandoned, _Abandoned(), None)
