"""``path-replay``: the recorded fine-tuning walked again without the forgotten samples, beside the path that was recorded.

How much of the body may leave its recorded path is the depth: nothing (``head``: the trace alone is needed), the last blocks, or
all that is tuned. The formulas are in :mod:`fastntk.unlearning.path_replay.replay`, measurements in docs/results-path.md.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg.choose import CHUNK_BYTES
from fastntk.planning import Problem, Route
from fastntk.planning.problem import Rows, without_trace
from fastntk.training.trace import Trace
from fastntk.training.trace_path import recorded_path
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.path_replay.columns import Columns, columns_of
from fastntk.unlearning.path_replay.depths import Depth, DepthSize, only_head, parsed, rungs, survey
from fastntk.unlearning.path_replay.judging import Watched, change, noise, predicted, rounded, watched, within
from fastntk.unlearning.path_replay.motion import Correction, RowMotion
from fastntk.unlearning.path_replay.network import PathNetwork, network_of
from fastntk.unlearning.path_replay.replay import Exact, Lanes, replay
from fastntk.unlearning.path_replay.rewriting import Rewriter

BUDGET = 0.2
"""Of a Retrain, what ``auto`` may spend on rows and exact epochs."""
MISS = 0.05
"""How far the replay of all samples may end from the trained weights, over the fine-tuning's own length."""
CHECKED = 64
"""Samples of each set on which the network is asked whether it does what the replay said."""
OPERATIONS_A_STEP = 130
"""Small tensor operations of one step of a replay."""
FLOPS = 1e10
"""Floating-point operations a second that estimates assume where none were measured."""


def path_replay(
    task: Task,
    *,
    depth: Depth = "auto",
    checkpoints: int | Sequence[int] | None = None,
    correction: int | Sequence[int] | None = None,
    exact: int | Sequence[int] | None = None,
    budget: float = BUDGET,
    rows: str = "auto",
    scratch: str | Path | None = None,
    memory_budget: int | None = None,
    disk_budget: int | None = None,
    chunk: int | None = None,
    validate: bool = True,
) -> Outcome:
    """Replay the trace without the forgotten samples.

    ``checkpoints``: how many points of the path have rows (or their epochs); ``correction``: at how many points of the new
    path the true features are looked at. ``exact``: how many first epochs (or which, counted from 0) are trained on the network
    itself, without the forgotten samples; by default one of twenty, and none at depth ``head``. ``budget``: what ``auto`` may
    spend on rows and exact epochs, as a share of a Retrain.
    """
    job = _Job(task, place=_place(task), scratch=scratch, chunk=chunk, exact=_exact(exact, task.trace.epochs))
    sizes = survey(task.run, {"depth": depth})
    epochs = path_epochs(checkpoints, task.trace.epochs, least=1)
    points = path_epochs(correction, task.trace.epochs, least=0)
    chosen = parsed(depth)
    if chosen == "auto":
        walked, climb = _climb(job, sizes, budget, epochs, points)
    else:
        size = sizes[-1] if chosen == "all" else sizes[0 if chosen == "head" else int(chosen)]
        walked, climb = job.walk(size, epochs, points), None
    return job.outcome(walked, sizes, epochs, climb, validate=validate)


@dataclass(frozen=True, eq=False)
class _Walk:
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


class _Job:
    """One request: what all its replays share."""

    def __init__(
        self, task: Task, *, place: Rows, scratch: str | Path | None, chunk: int | None, exact: tuple[int, ...] = ()
    ) -> None:
        self.task, self.run, self.trace, self.split = task, task.run, task.trace, task.split
        self.keep = task.keep.unsqueeze(0)
        self._place, self._scratch, self._chunk = place, scratch, chunk
        self.exact = exact
        self._taken: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    @property
    def network(self) -> PathNetwork:
        """The network, where a depth needs it."""
        return network_of(self.run, self.trace)

    def walk(self, size: DepthSize, epochs: Sequence[int], points: Sequence[int]) -> _Walk:
        """Replay at one depth, with its correction."""
        run, trace = self.run, self.trace
        names = self.network.names(size.depth) if size.depth else ()
        columns = columns_of(run, trace, names)
        anchor = columns.anchor(run, trace)
        if not size.depth:
            return self._walked(size, names, columns, None, 0.0, False, ())
        reused = self.network.has_rows(size.depth, epochs)
        started = time.perf_counter()
        found, seconds = self.network.rows(
            size.depth, epochs, place="disk" if self._place == "disk" else "memory", scratch=self._scratch, chunk=self._chunk
        )
        if not reused:
            self._count("rows", started)
        motion = RowMotion(found, columns.inside)
        if points:
            motion, extra = self._corrected(motion, columns, anchor, points)
            seconds += extra
        return self._walked(size, names, columns, motion, seconds, reused, tuple(points))

    def probe(self, size: DepthSize, epochs: Sequence[int]) -> _Walk:
        """Replay at one depth from rows alone, without correction and exact epochs: to see how much it changes."""
        exact, self.exact = self.exact, ()
        try:
            return self.walk(size, epochs, ())
        finally:
            self.exact = exact

    def _walked(
        self,
        size: DepthSize,
        names: tuple[str, ...],
        columns: Columns,
        motion: RowMotion | None,
        rows_seconds: float,
        reused: bool,
        corrected: tuple[int, ...],
    ) -> _Walk:
        started = time.perf_counter()
        rewriter = Rewriter(self.run, self.trace, self.split, columns, names)
        anchor = columns.anchor(self.run, self.trace)
        lanes = replay(
            self.trace, anchor, self.keep, motion=motion, observe=rewriter, exact=self._by_network(columns, motion)
        ).lanes
        vector = columns.moved(self.run.subset.get(), lanes, 1)
        trace = rewriter.finish(lanes, vector)
        self._count("replay", started)
        return _Walk(
            size, names, columns, motion, lanes, vector, trace, rows_seconds, reused, corrected, self.exact if names else ()
        )

    def _corrected(
        self, motion: RowMotion, columns: Columns, anchor: dict[str, Tensor], points: Sequence[int]
    ) -> tuple[RowMotion, float]:
        """The motion with what the true features show at a few points of the path that it leads to, and the seconds of what
        serves later requests too."""
        trace, network = self.trace, self.network
        assert trace.weights is not None
        started = time.perf_counter()
        steps = [int(trace.epoch_steps[epoch]) for epoch in points]
        first = replay(trace, anchor, self.keep, motion=motion, points=steps, exact=self._by_network(columns, motion))
        everyone = torch.arange(len(trace.listed))
        retained = self.split.retain
        extra, seconds = [], 0.0
        for epoch, step in zip(points, steps):
            lanes = first.points[step]
            known = network.recorded_features(epoch)
            seconds += network.seconds[f"features, epoch {epoch}"]
            true = torch.zeros_like(known)
            true[retained] = network.features(columns.moved(trace.weights[epoch], lanes, 1), retained)[1] - known[retained]
            said = torch.zeros_like(known)
            for part in everyone[retained].split(256):
                said[part] = motion.at(step, part).forward(lanes.body - lanes.body[:1])[1]
            extra.append(true - said)
        self._count("correction", started)
        return RowMotion(motion.checkpoints, motion.columns, Correction(tuple(steps), tuple(extra))), seconds

    def _by_network(self, columns: Columns, motion: RowMotion | None) -> Exact | None:
        """Gradients of the network itself in the epochs where they are asked for; nothing where the body does not move."""
        if not self.exact or motion is None or len(self.split.forget) == 0:
            return None
        trace = self.trace
        starts = trace.epoch_steps.tolist()
        chosen = {step for epoch in self.exact for step in range(starts[epoch], starts[epoch + 1])}
        order = torch.cat([part for part in (columns.head, columns.bias, columns.body) if part is not None])
        recorded = self._recorded(order)

        def exact(step: int, samples: Tensor, lanes: Lanes) -> tuple[Tensor, Tensor] | None:
            if step not in chosen:
                return None
            known = self._taken.get(step)
            if known is not None and torch.equal(known[0], lanes.values[1]):  # a second walk begins as the first one
                return known[1], known[2]
            base = recorded(step).clone()
            base[order] = lanes.values[1]
            gradient, features = self.network.gradient(base, samples)
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

    def _count(self, stage: str, started: float) -> None:
        self.task.stages[stage] = self.task.stages.get(stage, 0.0) + time.perf_counter() - started

    def expected(self, walk: _Walk, watch: Watched) -> Tensor:
        """Logits (k, C) that a walk expects at its end."""
        constant = walk.columns.anchor(self.run, self.trace).get("constant")
        return predicted(watch, walk.lanes, 1, step=self.trace.steps, motion=walk.motion, constant=constant)

    def outcome(
        self, walk: _Walk, sizes: Sequence[DepthSize], epochs: Sequence[int], climb: dict[str, Any] | None, *, validate: bool
    ) -> Outcome:
        """The new vector, its trace, and what is known of both."""
        run, facts = self.run, self.trace.facts
        head = [name for name in (facts.head_weight, facts.head_bias) if name is not None]
        moved = [name for name in run.subset.names if name in head or name in walk.names]
        left = [name for name in run.subset.names if name not in moved]
        everything = walk.size is sizes[-1] and not facts.left and not left
        details = {
            "depth": "head" if not walk.size.depth else "all" if everything else walk.size.depth,
            "blocks": walk.size.depth,
            "moved": moved,
            "left": left,
            "checkpoints": list(epochs) if walk.size.depth else [],
            "correction": list(walk.corrected),
            "exact": list(walk.exact),
            "rows_seconds": walk.rows_seconds,
            "rows_reused": walk.reused,
            "climb": climb,
            "next_depth": _next_depth(walk.size, sizes, len(epochs), self.trace.epochs),
            "trace": self.trace.summary(),
            "replay_miss": self._miss(walk),
        }
        trace, details["chain"], details["validity"] = self._checked(walk, validate=validate)
        if left:
            details["note"] = (
                f"{len(left)} of {len(run.subset.names)} tuned tensors were left where the forgotten samples helped to put them"
            )
        return Outcome(walk.vector, details, trace=trace)

    def _miss(self, walk: _Walk) -> float:
        """How far the recorded lane ended from the trained weights, over the fine-tuning's own length."""
        theta, origin = self.run.subset.get(), self.run.anchor
        columns = walk.columns
        ended = theta.clone()
        ended[columns.head] = walk.lanes.head[0].reshape(-1)
        if columns.bias is not None and walk.lanes.bias is not None:
            ended[columns.bias] = walk.lanes.bias[0]
        if walk.size.depth:
            ended[columns.body] = walk.lanes.body[0]
        return float((ended - theta).norm() / (theta - origin).norm().clamp_min(1e-30))

    def _checked(self, walk: _Walk, *, validate: bool) -> tuple[Trace, dict[str, Any], dict[str, Any]]:
        """Does the trace lead to the trained weights, does the network do what the replay said, do errors of requests in a row
        add up? Returns the new trace, what is known of the chain, and the verdict."""
        miss = self._miss(walk)
        reasons = []
        if miss > MISS:
            reasons.append(f"the recorded path, walked again, misses the trained weights by {miss:.2f} of the way")
        evidence: dict[str, Any] = {"replay_miss": miss, "thresholds": {"replay_miss": MISS, "retrain": RETRAIN}}
        drift = self.trace.facts.drift
        if walk.size.depth and validate and self.run.samples is not None:
            started = time.perf_counter()
            errors, apart = self._errors(walk)
            self._count("validity", started)
            evidence["error"] = errors
            drift += apart
            if errors.get("retain", 0.0) > RETRAIN:
                reasons.append(f"the network does not follow the prediction (error {errors['retain']:.2f} on retained samples)")
        facts = dataclasses.replace(walk.trace.facts, drift=drift)
        chain: dict[str, Any] = {"requests": facts.requests, "drift": drift, "noise": None}
        if self.trace.facts.requests and drift:
            chain["noise"] = self._noise(watched(self.trace, self.split))["retain"]
            if drift > chain["noise"]:
                reasons.append(
                    f"the errors of {facts.requests} requests in a row add up to {drift:.3f} of total variation, more than two "
                    f"seeds differ ({chain['noise']:.3f}): ask the run they began with for all of them at once"
                )
        verdict = {"verdict": "retrain instead" if reasons else "ok", "reasons": reasons, "step_length": 1.0, **evidence}
        return dataclasses.replace(walk.trace, facts=facts), chain, verdict

    def _noise(self, watch: Watched) -> dict[str, float]:
        """How far two seeds would be apart, from the trace alone."""
        started = time.perf_counter()
        figures = noise(self.run, self.trace, watch, self.keep[0])
        self._count("noise", started)
        return figures

    def _errors(self, walk: _Walk) -> tuple[dict[str, float], float]:
        """‖actual − predicted‖ / ‖predicted − before‖ of centred logits, on a few samples of each set; and the mean total
        variation of actual and predicted answers on the retained ones."""
        watch = watched(self.trace, self.split, most=CHECKED)
        theta = self.run.subset.get()
        before, _ = self.network.features(theta, watch.positions)
        after, _ = self.network.features(walk.vector, watch.positions)
        at_theta = Watched(watch.positions, watch.forgotten, watch.labels, self.network.features(theta, watch.positions)[1])
        said = self.expected(walk, at_theta)
        sets = {"retain": ~watch.forgotten, "forget": watch.forgotten}
        errors = {name: _error(after[where], before[where], said[where]) for name, where in sets.items() if bool(where.any())}
        return errors, change(after, said, watch)["retain"]


RETRAIN = 0.8


def _climb(
    job: _Job, sizes: Sequence[DepthSize], budget: float, epochs: Sequence[int], points: Sequence[int]
) -> tuple[_Walk, dict[str, Any]]:
    """Deeper and deeper, until a further depth changes the answers by less than two seeds differ, or the budget ends."""
    ladder = rungs(sizes, _share(budget), len(epochs), job.trace.epochs, exact=len(job.exact))
    assert job.task.route is not None
    planned = job.task.route.settings["depth"]
    if planned != "auto":
        fits = "deeper ones do not fit the memory and disk allowed, or where rows may be"
        alone = {"budget": budget, "tried": [planned], "changes": [], "noise": None, "stopped": fits}
        return job.walk(sizes[planned], epochs, points), alone
    walk = job.walk(ladder[0], epochs, points)
    record: dict[str, Any] = {"budget": budget, "tried": [0], "changes": [], "noise": None}
    if len(ladder) == 1:
        why = only_head(job.run, job.trace) if len(sizes) == 1 else "the next depth is beyond the budget"
        return walk, record | {"stopped": why}
    watch = watched(job.trace, job.split)
    limit = job._noise(watch)
    record["noise"] = rounded(limit)
    answers = job.expected(walk, watch)
    for size in ladder[1:]:
        deeper = job.walk(size, epochs, points) if size is ladder[-1] else job.probe(size, epochs)
        new = job.expected(deeper, watch)
        moved = change(new, answers, watch)
        record["tried"].append(size.depth)
        record["changes"].append(rounded(moved))
        walk, answers = deeper, new
        if within(moved, limit):
            return walk, record | {"stopped": "a further depth changed the answers by less than two seeds differ"}
    everything = ladder[-1] is sizes[-1]
    return walk, record | {"stopped": "all that can move was moved" if everything else "the budget ended"}


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
    if isinstance(asked, bool) or not isinstance(asked, int | Sequence) or isinstance(asked, str):
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
    if not asked or not all(isinstance(epoch, int) and 0 < epoch <= epochs for epoch in asked):
        raise InputError(f"{what}: points of the path are epochs from 1 to {epochs}, got {tuple(asked)}.")
    return tuple(sorted(set(asked)))


def _share(budget: object) -> float:
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget >= 0:
        raise InputError(f"budget must be a share of a Retrain, 0 or more, got {budget!r}.")
    return float(budget)


EXACT = 20
"""One epoch of so many is trained on the network itself, where nothing else is asked for."""


def _exact(asked: int | Sequence[int] | None, epochs: int) -> tuple[int, ...]:
    """Epochs, counted from 0, that are trained on the network itself: so many first ones, or those named."""
    asked = epochs // EXACT if asked is None else asked
    chosen = tuple(range(asked)) if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0 else asked
    if not isinstance(chosen, Sequence) or not all(isinstance(epoch, int) and 0 <= epoch < epochs for epoch in chosen):
        raise InputError(f"exact is a number of first epochs, or epochs from 0 to {epochs - 1}; got {asked!r}.")
    return tuple(sorted(set(chosen)))


def _error(actual: Tensor, before: Tensor, said: Tensor) -> float:
    def centred(logits: Tensor) -> Tensor:
        return logits.double() - logits.double().mean(1, keepdim=True)

    miss = (centred(actual) - centred(said)).norm()
    step = (centred(said) - centred(before)).norm()
    return 0.0 if miss == 0 else float(miss / step.clamp_min(1e-12 * (1 + centred(before).norm())))


def _next_depth(size: DepthSize, sizes: Sequence[DepthSize], checkpoints: int, epochs: int) -> dict[str, Any] | None:
    """What a further depth would cost; None where there is none."""
    if size.depth + 1 >= len(sizes):
        return None
    further = sizes[size.depth + 1]
    return {"depth": further.depth, "numbers": further.numbers, "of_retrain": further.share(max(1, checkpoints), epochs)}


def _place(task: Task) -> Rows:
    assert task.route is not None
    return task.route.rows


def _cost(problem: Problem) -> list[Route]:
    """``auto`` first where it is asked for, then every depth there is; else the one asked for, in memory or on disk."""
    if problem.trace is None:
        return [without_trace(Route(problem.method, "none", "replay", math.nan))]
    sizes: Sequence[DepthSize] = problem.surveyed
    options = problem.options
    chosen = parsed(options["depth"])  # type: ignore[arg-type]
    epochs = len(path_epochs(options["checkpoints"], problem.trace.epochs, least=1))  # type: ignore[arg-type]
    points = len(path_epochs(options["correction"], problem.trace.epochs, least=0))  # type: ignore[arg-type]
    if chosen == "auto":
        exact = len(_exact(options["exact"], problem.trace.epochs))  # type: ignore[arg-type]
        ladder = rungs(sizes, _share(options["budget"]), epochs, problem.trace.epochs, exact=exact)
        return [
            *_routes(problem, ladder, epochs, points, "auto"),
            *(route for size in sizes for route in _routes(problem, [size], epochs, points, _name(size, sizes))),
        ]
    size = sizes[-1] if chosen == "all" else sizes[0 if chosen == "head" else int(chosen)]
    return _routes(problem, [size], epochs, points, _name(size, sizes))


def _name(size: DepthSize, sizes: Sequence[DepthSize]) -> str:
    if not size.depth:
        return "depth head"
    return "depth all" if size is sizes[-1] else f"depth {size.depth}"


def _routes(problem: Problem, ladder: Sequence[DepthSize], checkpoints: int, points: int, name: str) -> list[Route]:
    """Walks at these depths, with rows in memory or on disk where there are any."""
    s, speed, trace = problem.sizes, problem.speed, problem.trace
    assert trace is not None
    step = OPERATIONS_A_STEP * speed.dispatch
    head = 12.0 * trace.visits * s.classes * trace.features / FLOPS
    seconds, most = 0.0, 0
    for size in ladder:
        rows = s.samples * s.classes * size.numbers * s.itemsize
        read = 3.0 * trace.epochs * min(2, checkpoints) * rows / (speed.replay if math.isfinite(speed.replay) else 2e9)
        walks = 2 if points and size.depth else 1
        seconds += walks * (trace.steps * step + head + (read if size.depth else 0.0))
        if size.depth:
            seconds += checkpoints * s.samples * size.passes * speed.step + 2 * points * s.samples * speed.forward
            most = max(most, checkpoints * rows)
    exact = len(_exact(problem.options["exact"], trace.epochs))  # type: ignore[arg-type]
    if most:
        seconds += exact * s.retain * speed.step
    features = 2 * trace.visits * trace.features * s.itemsize
    work = features + CHUNK_BYTES + 16 * 8 * s.parameters
    fixed = problem.fixed_seconds
    settings = {"depth": "auto" if name == "auto" else ladder[-1].depth}
    if most == 0:
        return [Route(problem.method, "none", name, seconds + fixed, work, settings=settings)]
    making = s.input_copy + s.chunk * (problem.speed.row_bytes + s.classes * ladder[-1].numbers * s.itemsize)
    places: list[Rows] = [place for place in problem.places if place in ("memory", "disk")]
    if not places:
        why = "its rows are read at every step, and cannot be made as needed: rows are 'memory' or 'disk'"
        return [Route(problem.method, "stream", name, seconds + fixed, settings=settings, fits=False, why_not=why)]
    held = {place: work + making + (most if place == "memory" else 0) for place in places}
    place = next((place for place in places if held[place] <= problem.memory), places[-1])
    return [
        Route(problem.method, place, name, seconds + fixed, held[place], disk=most if place == "disk" else 0, settings=settings)
    ]


METHOD = Method(
    name="path-replay",
    summary="the recorded fine-tuning walked again without the forgotten samples",
    run=path_replay,
    cost=_cost,
    needs=frozenset({"trace"}),
    survey=survey,
)
