"""Depths of a replay: which blocks may leave the recorded path, what their rows cost, and in which order ``auto`` tries them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastntk.base.errors import InputError
from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.unlearning.path_replay.network import network_of

Depth = str | int
"""``head``, a number of blocks, ``all`` or ``auto``."""
WORDS = ("head", "all", "auto")
WORTHWHILE = 4
"""A probe of one block comes first where the deepest depth costs at least so many times as much."""
OVERHEAD = 0.05
"""Of a Retrain, about what a climb takes besides rows and exact epochs: its replays, the noise and the check."""


@dataclass(frozen=True)
class DepthSize:
    """A depth of so many blocks. ``numbers``: tuned parameters outside the head that may move; ``passes``: what the rows of one
    image cost, in training passes of it (counted operations)."""

    depth: int
    numbers: int
    passes: float

    def share(self, checkpoints: int, epochs: int) -> float:
        """Of a Retrain's cost, for the rows at so many checkpoints."""
        return self.passes * checkpoints / max(1, epochs)


def parsed(depth: Depth) -> Depth:
    """The depth as given, numbers in words turned into numbers; anything else is refused."""
    if isinstance(depth, str) and depth.isdecimal():
        depth = int(depth)
    if isinstance(depth, bool) or not (depth in WORDS or (isinstance(depth, int) and depth >= 0)):
        raise InputError(f"depth must be {', '.join(WORDS)} or a number of blocks, got {depth!r}.")
    return depth


def size_at(sizes: Sequence[DepthSize], depth: Depth) -> DepthSize:
    """That of a depth as :func:`parsed` gives it, of those that :func:`survey` found; ``auto`` has none."""
    return sizes[-1] if depth == "all" else sizes[0 if depth == "head" else int(depth)]


def survey(run: Run, options: dict[str, Any]) -> tuple[DepthSize, ...]:
    """Every depth there is, from the head on; only the head where no more is asked for or possible.

    Without images, or without the body's gradients in the trace, nothing but the head can be replayed; a depth that asks for more
    is refused with the reason.
    """
    depth = parsed(options["depth"])
    head = DepthSize(0, 0, 0.0)
    if run.trace is None:
        return (head,)
    trace = run.trace
    if depth in ("head", 0):
        return (head,)
    reason = only_head(run, trace)
    if reason is not None:
        tuned_head = not (trace.facts.body or trace.facts.left)
        if depth == "auto" or (depth == "all" and tuned_head):
            return (head,)
        absent = trace.gradients is not None and run.samples is None
        give = ", or give them: dataclasses.replace(run, samples=...)" if absent else ""
        raise InputError(f"depth={depth!r} is not possible: {reason}. Take depth='head'{give}.")
    network = network_of(run, trace)
    sizes = (head, *(DepthSize(k, network.numbers(k), network.costs[k]) for k in range(1, len(network.blocks) + 1)))
    rest = trace.facts.left
    if isinstance(depth, int) and depth >= len(sizes):
        others = (
            f"; the others have no path in the trace{_why_left(trace.facts.requests)}" if rest else "; depth='all' takes them all"
        )
        raise InputError(f"depth={depth} is not possible: there are {len(sizes) - 1} blocks that may move{others}.")
    if depth == "all" and rest:
        raise InputError(
            f"depth='all' is not possible: {len(rest)} tuned parameters have no path in the trace"
            f"{_why_left(trace.facts.requests)}. Take a number of blocks up to {len(sizes) - 1}, or ask the run before it."
        )
    return sizes


def only_head(run: Run, trace: Trace) -> str | None:
    """Why nothing but the head can be replayed; None where more can."""
    if not (trace.facts.body or trace.facts.left):
        return "only the head is tuned"
    if trace.gradients is None:
        return "the trace has no gradients of the parameters outside the head" + _why_left(trace.facts.requests)
    if run.samples is None:
        return "rows need the images, and this run was made or loaded without its data"
    try:
        _ = network_of(run, trace).costs  # of rows that it makes
    except InputError as error:
        return f"rows of this model cannot be made: {str(error).rstrip('.')}"
    return None


def rungs(sizes: Sequence[DepthSize], budget: float, checkpoints: int, epochs: int, *, exact: int = 0) -> list[DepthSize]:
    """The depths that ``auto`` tries: the head, and the deepest that ``budget`` of a Retrain has room for.

    One block is tried between them where that is cheap beside the deepest: it may show that the head is enough. ``exact``: epochs
    that the deepest one has besides its rows; ``OVERHEAD`` is set aside.
    """

    def deepest(room: float) -> DepthSize | None:
        return next((size for size in sizes[:0:-1] if size.share(checkpoints, epochs) <= room), None)

    room = budget - OVERHEAD - exact / max(1, epochs)
    last = deepest(room)
    if last is None:
        return [sizes[0]]
    probe = sizes[1]
    after = deepest(room - probe.share(checkpoints, epochs))
    if after is not None and after.share(checkpoints, epochs) >= WORTHWHILE * probe.share(checkpoints, epochs):
        return [sizes[0], probe, after]
    return [sizes[0], last]


def _why_left(requests: int) -> str:
    if requests:
        return " (an earlier request left those parameters where they were)"
    return " (they would have taken too much room, or had no gradient at some steps)"
