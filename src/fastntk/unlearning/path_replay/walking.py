"""Replays of one request at the depths that are asked for: rows, correction, exact epochs and the new trace brought together."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fastntk.planning.problem import Rows
from fastntk.training.trace import Trace
from fastntk.training.trace_path import recorded_path
from fastntk.unlearning.method import Task
from fastntk.unlearning.path_replay.columns import Columns, columns_of
from fastntk.unlearning.path_replay.depths import DepthSize
from fastntk.unlearning.path_replay.judging import Watched, noise, predicted
from fastntk.unlearning.path_replay.motion import Correction, RowMotion
from fastntk.unlearning.path_replay.network import PathNetwork, network_of
from fastntk.unlearning.path_replay.replay import Exact, Lanes, replay
from fastntk.unlearning.path_replay.rewriting import Rewriter


@dataclass(frozen=True, eq=False)
class Walk:
    """One replay and what it rests on."""

    size: DepthSize
    names: tuple[str, ...]
    columns: Columns
    motion: RowMotion | None
    lanes: Lanes
    vector: Tensor
    trace: Trace
    rows_seconds: float
    reused: bool
    corrected: tuple[int, ...]
    exact: tuple[int, ...]


class Walker:
    """One request: what all its replays share."""

    def __init__(self, task: Task, *, place: Rows, scratch: str | Path | None, chunk: int | None) -> None:
        self.task, self.run, self.trace, self.split = task, task.run, task.trace, task.split
        self.keep = task.keep.unsqueeze(0)
        self._place, self._scratch, self._chunk = place, scratch, chunk
        self._taken: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    @property
    def network(self) -> PathNetwork:
        """The network, where a depth needs it."""
        return network_of(self.run, self.trace)

    def walk(self, size: DepthSize, epochs: Sequence[int] = (), points: Sequence[int] = (), exact: Sequence[int] = ()) -> Walk:
        """Replay at one depth: rows at the starts of ``epochs``, a correction at ``points``, ``exact`` epochs by the network.

        At depth ``head`` there is none of them.
        """
        names = self.network.names(size.depth) if size.depth else ()
        columns = columns_of(self.run, self.trace, names)
        motion, seconds, reuse = None, 0.0, False
        if size.depth:
            motion, seconds, reuse = self._motion(size.depth, columns, epochs, points, exact)
        else:
            points, exact = (), ()
        started = time.perf_counter()
        budget = self.task.row_options.memory_budget
        rewriter = Rewriter(self.run, self.trace, self.split, columns, names, allowed=budget, scratch=self._scratch)
        lanes = replay(
            self.trace,
            columns.anchor(self.run, self.trace),
            self.keep,
            spans=columns.spans,
            motion=motion,
            observe=rewriter,
            exact=self._by_network(columns, exact),
        ).lanes
        vector = columns.moved(self.run.subset.get().cpu(), lanes, 1)  # a replay runs on the CPU
        trace = rewriter.finish(lanes, vector)
        self._taken.clear()
        self.count("replay", started)
        return Walk(size, names, columns, motion, lanes, vector, trace, seconds, reuse, tuple(points), tuple(exact))

    def _motion(
        self, depth: int, columns: Columns, epochs: Sequence[int], points: Sequence[int], exact: Sequence[int]
    ) -> tuple[RowMotion, float, bool]:
        """How features move at this depth, the seconds of what serves later requests too, and whether its rows were there."""
        reuse = self.network.has_rows(depth, epochs)
        started = time.perf_counter()
        place = "disk" if self._place == "disk" else "memory"
        checkpoints, seconds = self.network.rows(depth, epochs, place=place, scratch=self._scratch, chunk=self._chunk)
        if not reuse:
            self.count("rows", started)
        motion = RowMotion(checkpoints, columns.inside)
        if points:
            motion, extra = self._corrected(motion, columns, points, exact)
            seconds += extra
        return motion, seconds, reuse

    def _corrected(
        self, motion: RowMotion, columns: Columns, points: Sequence[int], exact: Sequence[int]
    ) -> tuple[RowMotion, float]:
        """The motion with what the true features show at a few points of the path that it leads to, and the seconds of what
        serves later requests too."""
        trace, network = self.trace, self.network
        assert trace.weights is not None
        started = time.perf_counter()
        steps = [int(trace.epoch_steps[epoch]) for epoch in points]
        anchor = columns.anchor(self.run, trace)
        # The walk that follows begins as this one, so what the network said is kept for it.
        by_network = self._by_network(columns, exact, keep=True)
        first = replay(trace, anchor, self.keep, spans=columns.spans, motion=motion, points=steps, exact=by_network)
        retained = self.split.retain
        extra, seconds = [], 0.0
        for epoch, step in zip(points, steps):
            lanes = first.points[step]
            features = network.recorded_features(epoch)
            seconds += network.seconds[f"features, epoch {epoch}"]
            true = torch.zeros_like(features)
            true[retained] = network.features(columns.moved(trace.weights[epoch], lanes, 1), retained)[1] - features[retained]
            estimate = torch.zeros_like(features)
            for part in retained.split(256):
                estimate[part] = motion.at(step, part).forward(lanes.body - lanes.body[:1])[1]
            extra.append(true - estimate)
        self.count("correction", started)
        return RowMotion(motion.checkpoints, motion.columns, Correction(tuple(steps), tuple(extra))), seconds

    def _by_network(self, columns: Columns, epochs: Sequence[int], *, keep: bool = False) -> Exact | None:
        """Gradients of the network itself in these epochs; None where there are none, or nothing is forgotten.

        ``keep``: remember them until the next walk is over.
        """
        if not epochs or len(self.split.forget) == 0:
            return None
        trace = self.trace
        starts = trace.epoch_steps.tolist()
        steps = {step for epoch in epochs for step in range(starts[epoch], starts[epoch + 1])}
        order = torch.cat([part for part in (columns.head, columns.bias, columns.body) if part is not None])
        recorded = self._recorded(order)

        def exact(
            step: int, samples: Tensor, targets: Tensor, parts: Sequence[tuple[slice, float]], lanes: Lanes
        ) -> tuple[Tensor, Tensor] | None:
            if step not in steps:
                return None
            memo = self._taken.get(step)
            if memo is not None and torch.equal(memo[0], lanes.values[1]):  # a second walk begins as the first one
                return memo[1], memo[2]
            base = recorded(step).to("cpu", copy=True)
            base[order] = lanes.values[1]
            gradient, features = self.network.gradient(base, samples, targets, parts)
            if keep:
                self._taken[step] = lanes.values[1].clone(), gradient[order], features
            return gradient[order], features

        return exact

    def _recorded(self, moving: Tensor) -> Callable[[int], Tensor]:
        """The tuned parameters (d,) on the recorded path before a step (steps in rising order): those that are left stay there.

        Where an earlier request left some, their path is known by epoch only, and they are held at the epoch's start.
        """
        trace, subset, weights = self.trace, self.run.subset, self.trace.weights
        assert weights is not None
        if len(moving) == subset.numel or trace.facts.left:
            starts = trace.epoch_steps.tolist()
            return lambda step: weights[bisect.bisect_right(starts, step) - 1].to(self.run.anchor)
        path = recorded_path(trace, subset, self.run.anchor)
        return lambda step: next(each.weights for each in path if each.number == step)

    def count(self, stage: str, started: float) -> None:
        """Add the seconds since ``started`` to a stage of the request."""
        self.task.stages[stage] = self.task.stages.get(stage, 0.0) + time.perf_counter() - started

    def expected(self, walk: Walk, watch: Watched) -> Tensor:
        """Logits (k, C) that a walk expects at its end."""
        constant = walk.columns.anchor(self.run, self.trace).get("constant")
        return predicted(watch, walk.lanes, 1, step=self.trace.steps, motion=walk.motion, constant=constant)

    def noise(self, watch: Watched) -> dict[str, float]:
        """How far two seeds would be apart, from the trace alone."""
        started = time.perf_counter()
        figures = noise(self.run, self.trace, watch, self.keep[0])
        self.count("noise", started)
        return figures
