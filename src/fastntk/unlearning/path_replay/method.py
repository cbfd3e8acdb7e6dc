"""``path-replay``: the recorded fine-tuning walked again without the forgotten samples, beside the path that was recorded.

How much of the body may leave its recorded path is the depth: nothing (``head``: the trace alone is needed), the last blocks, or
all that is tuned. The formulas are in :mod:`fastntk.unlearning.path_replay.replay`, measurements in docs/results-path.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastntk.planning.problem import Rows
from fastntk.training.measured_step import unexplained
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.path_replay.checking import checked
from fastntk.unlearning.path_replay.costs import cost
from fastntk.unlearning.path_replay.depths import Depth, DepthSize, only_head, parsed, size_at, survey
from fastntk.unlearning.path_replay.judging import change, rounded, watched, within
from fastntk.unlearning.path_replay.options import exact_epochs, path_epochs, share
from fastntk.unlearning.path_replay.walking import Walk, Walker
from fastntk.unlearning.residue import statistics_updated

BUDGET = 0.2
"""Of a Retrain, what ``auto`` may spend."""


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
    itself, without the forgotten samples; by default one of twenty, none at depth ``head``, by ``auto``, and for a loop of
    the user's, whose augmented images are not there. ``budget``: what ``auto`` may spend, as a share of a Retrain.
    """
    walker = Walker(task, place=_place(task), scratch=scratch, chunk=chunk)
    sizes = survey(task.run, {"depth": depth})
    epochs = path_epochs(checkpoints, task.trace.epochs, least=1)
    points = path_epochs(correction, task.trace.epochs, least=0)
    by_network = exact_epochs(exact, task.trace.epochs, depth, own_loop=task.trace.facts.mode == "recorded")
    parsed_depth = parsed(depth)
    if parsed_depth == "auto":
        walk, climb = _climb(walker, sizes, share(budget), epochs, points, by_network)
    else:
        walk, climb = walker.walk(size_at(sizes, parsed_depth), epochs, points, by_network), None
    return _outcome(walker, walk, sizes, epochs, climb, validate=validate)


def _climb(
    walker: Walker,
    sizes: Sequence[DepthSize],
    budget: float,
    epochs: Sequence[int],
    points: Sequence[int],
    exact: Sequence[int],
) -> tuple[Walk, dict[str, Any]]:
    """Deeper and deeper, until all further blocks would change the answers by less than two seeds differ, or the budget ends.

    What they would change is judged by the last step: each as much as its blocks did.
    """
    assert walker.task.route is not None
    ladder = [sizes[depth] for depth in walker.task.route.settings["ladder"]]
    walk = walker.walk(ladder[0])
    record: dict[str, Any] = {"budget": budget, "tried": [0], "changes": [], "noise": None}
    if len(ladder) == 1:
        why = "the next depth is beyond the budget, or what may be held"
        if len(sizes) == 1:
            why = only_head(walker.run, walker.trace) or "the trace does not have the path of the whole block next to the head"
        return walk, record | {"stopped": why}
    watch = watched(walker.trace, walker.split)
    limit = walker.noise(watch)
    record["noise"] = rounded(limit)
    answers = walker.expected(walk, watch)
    before = 0
    for size in ladder[1:]:
        deeper = walker.walk(size, epochs, points, exact) if size is ladder[-1] else walker.walk(size, epochs, (), ())
        new = walker.expected(deeper, watch)
        difference = change(new, answers, watch)
        record["tried"].append(size.depth)
        record["changes"].append(rounded(difference))
        walk, answers = deeper, new
        ahead = (sizes[-1].depth - before) / (size.depth - before)
        if within({name: ahead * value for name, value in difference.items()}, limit):
            why = "if every further block changed the answers as much, all would change them by less than two seeds differ"
            repeat = size is not ladder[-1] and (points or exact)  # of the result, but not of a probe
            again = walker.walk(size, epochs, points, exact) if repeat else walk
            return again, record | {"stopped": why}
        before = size.depth
    everything = ladder[-1] is sizes[-1]
    return walk, record | {"stopped": "all that can move was moved" if everything else "the budget ended"}


def _outcome(
    walker: Walker, walk: Walk, sizes: Sequence[DepthSize], epochs: Sequence[int], climb: dict[str, Any] | None, *, validate: bool
) -> Outcome:
    """The new vector, its trace, and what is known of both."""
    run, facts = walker.run, walker.trace.facts
    head = [name for name in (facts.head_weight, facts.head_bias) if name is not None]
    moved_names = [name for name in run.subset.names if name in head or name in walk.names]
    others = [name for name in run.subset.names if name not in moved_names]
    everything = walk.size is sizes[-1] and not facts.left and not others
    details: dict[str, Any] = {
        "depth": "head" if not walk.size.depth else "all" if everything else walk.size.depth,
        "blocks": walk.size.depth,
        "moved": moved_names,
        "left": others,
        "checkpoints": list(epochs) if walk.size.depth else [],
        "correction": list(walk.corrected),
        "exact": list(walk.exact),
        "rows_seconds": walk.rows_seconds,
        "rows_reused": walk.reused,
        "climb": climb,
        "next_depth": _next_depth(walk.size, sizes, len(epochs), walker.trace.epochs),
        "trace": walker.trace.summary(),
    }
    trace, chain, validity = checked(walker, walk, validate=validate)
    details |= {"chain": chain, "validity": validity, "replay_miss": validity["replay_miss"]}
    notes = []
    if climb is not None and others and len(sizes) == 1:
        notes.append(f"depth auto went no further than the head: {climb['stopped']}")
    if others:
        notes.append(
            f"{len(others)} of {len(run.subset.names)} tuned tensors were left where the forgotten samples helped to put them"
        )
    if unexplained(walker.trace.clips, facts.max_norm):
        notes.append("gradients were clipped by a rule that is not known, and the recorded factors were kept: an approximation")
    if statistics_updated(run):
        notes.append("the training used batch statistics, which the forgotten samples were part of: an approximation")
    if notes:
        details["note"] = "; ".join(notes)
    return Outcome(walk.vector, details, trace=trace)


def _next_depth(size: DepthSize, sizes: Sequence[DepthSize], checkpoints: int, epochs: int) -> dict[str, Any] | None:
    """What a further depth would cost; None where there is none."""
    if size.depth + 1 >= len(sizes):
        return None
    further = sizes[size.depth + 1]
    return {"depth": further.depth, "numbers": further.numbers, "of_retrain": further.share(max(1, checkpoints), epochs)}


def _place(task: Task) -> Rows:
    assert task.route is not None
    return task.route.rows


METHOD = Method(
    name="path-replay",
    summary="the recorded fine-tuning walked again without the forgotten samples",
    run=path_replay,
    cost=cost,
    needs=frozenset({"trace"}),
    survey=survey,
)
