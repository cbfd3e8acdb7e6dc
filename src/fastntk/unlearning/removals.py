"""Many small removals at once: what every group of samples would lose if the model had never seen it.

All groups are lanes of one replay along the recorded path (:mod:`fastntk.unlearning.path_replay.replay`): the features are read
once for all of them. No model is made; ``unlearn`` makes one for a single request, which ends where the group's lane does.

    logits   f_i = W h_i + b     h_i: the head's input at the sample's last visit; beyond depth ``head`` moved as the replay says
    loss     cross-entropy of f_i
    margin   the label's logit less the largest other one: negative where the prediction is wrong
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import BudgetError, InputError, listing
from fastntk.base.gradients import with_gradients
from fastntk.base.memory import memory_allowed
from fastntk.base.progress import track
from fastntk.base.text import byte_size
from fastntk.data import Samples
from fastntk.data.samples import as_ids
from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.unlearning.method import trace_of
from fastntk.unlearning.path_replay.checking import MISS, body_share, missing_text, replay_miss, whole_text
from fastntk.unlearning.path_replay.columns import Columns, columns_of
from fastntk.unlearning.path_replay.depths import Depth, DepthSize, parsed, size_at, survey
from fastntk.unlearning.path_replay.judging import Watched, predicted
from fastntk.unlearning.path_replay.motion import RowMotion
from fastntk.unlearning.path_replay.network import network_of
from fastntk.unlearning.path_replay.options import path_epochs
from fastntk.unlearning.path_replay.replay import replay

Group = int | str | Sequence[int | str]

FIGURES = ("loss_before", "loss_after", "loss_change", "margin_before", "margin_after", "margin_change")
PARAMETER_COPIES = 12
"""Numbers that a lane holds for each of its parameters: values, gradients, what the optimiser keeps, and copies of them."""
FEATURE_COPIES = 5
"""Arrays of the size of a batch's features that a lane holds during a step; as many of the size of its logits."""


@dataclass(frozen=True, eq=False)
class Removals:
    """Per group, in the order given, what its samples' predictions are before and after they are left out of the training.

    ``positions``: per group, its samples' positions in the run's data (k,). ``losses``, ``margins``: per group (2, k), before and
    after, one column for each sample, NaN for one that the training never looked at; means are of the others. ``depth``,
    ``checkpoints``: as replayed. ``alone``: groups that were replayed by
    themselves, because they leave some batch with no sample. ``replay_miss``: how far the replay of all samples ended from the
    trained weights, over the fine-tuning's own length; beyond 0.05 the figures are of another training, and a warning says so.
    ``seconds``: of the whole call.
    """

    positions: tuple[Tensor, ...]
    losses: tuple[Tensor, ...]
    margins: tuple[Tensor, ...]
    depth: Depth
    checkpoints: tuple[int, ...]
    alone: tuple[int, ...]
    replay_miss: float
    seconds: float

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, group: int) -> dict[str, float]:
        """The mean figures of one group, by name."""
        return {name: float(getattr(self, name)[group]) for name in FIGURES}

    def __iter__(self) -> Iterator[dict[str, float]]:
        return (self[group] for group in range(len(self)))

    @property
    def loss_before(self) -> Tensor:
        """Mean cross-entropy of each group's samples by the model as it is, (G,)."""
        return _means(self.losses, 0)

    @property
    def loss_after(self) -> Tensor:
        """The same by the model that never saw the group, (G,)."""
        return _means(self.losses, 1)

    @property
    def loss_change(self) -> Tensor:
        """After less before, (G,): how much the group's own presence lowers its loss."""
        return self.loss_after - self.loss_before

    @property
    def margin_before(self) -> Tensor:
        """Mean margin of each group's samples by the model as it is, (G,)."""
        return _means(self.margins, 0)

    @property
    def margin_after(self) -> Tensor:
        """The same by the model that never saw the group, (G,)."""
        return _means(self.margins, 1)

    @property
    def margin_change(self) -> Tensor:
        """After less before, (G,)."""
        return self.margin_after - self.margin_before

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; samples are named by position, not by id."""
        columns: dict[str, list[float]] = {name: getattr(self, name).tolist() for name in FIGURES}
        groups = [
            {"positions": where.tolist(), **{name: values[k] for name, values in columns.items()}}
            for k, where in enumerate(self.positions)
        ]
        facts = {"depth": self.depth, "checkpoints": list(self.checkpoints), "replay_miss": self.replay_miss}
        return facts | {"seconds": self.seconds, "groups": groups}


@with_gradients
def removals(
    run: Run,
    groups: Sequence[Group],
    *,
    depth: Depth = "head",
    checkpoints: int | Sequence[int] | None = None,
    memory_budget: int | None = None,
) -> Removals:
    """What leaving out each of these groups of ids would change for the group's own samples, all in one call.

    A group is a sequence of ids, or a single id; groups may overlap, each is left out by itself. ``depth`` and ``checkpoints``
    are those of ``path-replay``, but for ``auto``, which climbs for one request at a time. ``depth="head"`` needs the run's
    trace alone, no images; deeper ones are as by ``exact=0``, with no epoch on the network itself. ``memory_budget`` in bytes
    (default: 70 % of what is available): groups are taken in as many turns as that asks for, and the result is the same.
    """
    started = time.perf_counter()
    if not isinstance(run, Run):
        raise InputError(f"removals takes a run, got {type(run).__name__}; the run of a result is result.as_run().")
    trace = trace_of(run)
    positions = _positions(groups, trace.listed)
    last = _last_visits(trace, positions)
    size = _size(run, depth)
    epochs = path_epochs(checkpoints, trace.epochs, least=1) if size.depth else ()
    names = network_of(run, trace).names(size.depth) if size.depth else ()
    columns = columns_of(run, trace, names)
    budget = memory_allowed(memory_budget)
    motion = _motion(run, trace, size.depth, columns, epochs, budget) if size.depth else None
    anchor = columns.anchor(run, trace)
    alone = _gaps(trace, positions)
    most = _lanes_at_once(trace, columns, budget, itemsize=run.anchor.element_size())
    losses, margins = [torch.empty(0)] * len(positions), [torch.empty(0)] * len(positions)
    miss = 0.0
    for part in track(list(_turns(alone, most)), "removals"):
        keep = torch.ones(len(part), len(trace.listed), dtype=torch.bool)
        for row, group in zip(keep, part):
            row[positions[group]] = False
        lanes = replay(trace, anchor, keep, spans=columns.spans, motion=motion).lanes
        miss = replay_miss(run, columns, lanes)  # of the recorded lane, the same in every turn
        for lane, group in enumerate(part, start=1):
            mask = last[positions[group]] >= 0
            watch = _watched(trace, positions[group][mask], last[positions[group]][mask])
            before, after = (
                predicted(watch, lanes, each, step=trace.steps, motion=motion, constant=anchor.get("constant")).double()
                for each in (0, lane)
            )
            losses[group] = _placed([_losses(logits, watch.labels) for logits in (before, after)], mask)
            margins[group] = _placed([_margins(logits, watch.labels) for logits in (before, after)], mask)
    if not miss <= MISS:
        warnings.warn(f"removals: {missing_text(miss)}: the figures are not those of this model.", stacklevel=2)
    if whole := whole_text(body_share(run, trace), body_share(run, trace, names)):
        warnings.warn(f"removals: {whole}.", stacklevel=2)
    return Removals(
        positions=positions,
        losses=tuple(losses),
        margins=tuple(margins),
        depth=parsed(depth),
        checkpoints=tuple(epochs),
        alone=tuple(alone.nonzero().flatten().tolist()),
        replay_miss=miss,
        seconds=time.perf_counter() - started,
    )


def _positions(groups: Sequence[Group], listed: Samples) -> tuple[Tensor, ...]:
    """The positions of each group's samples; everything that is wrong with the groups is said here."""
    if isinstance(groups, str) or not isinstance(groups, Iterable) or not (groups := list(groups)):
        raise InputError(f"groups is a sequence of groups of ids, at least one; got {groups!r}.")
    places = []
    for number, group in enumerate(groups):
        names = as_ids(group)
        if not names:
            raise InputError(f"group {number} is empty: name at least one id in each group.")
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InputError(f"group {number} names ids more than once: {listing(twice)}; name each once.")
        try:
            where = listed.index_of(names)
        except InputError as error:
            raise InputError(f"group {number}: {error}") from error
        if len(where) == len(listed):
            raise InputError(f"group {number} has all {len(listed)} samples: nothing would be left to train on.")
        places.append(where)
    return tuple(places)


def _last_visits(trace: Trace, positions: Sequence[Tensor]) -> Tensor:
    """Per sample its last visit (n,), −1 where there is none; a group without any is refused."""
    last = trace.last_visits
    for number, where in enumerate(positions):
        if not bool((last[where] >= 0).any()):
            never = [trace.listed.ids[i] for i in where.tolist()]
            raise InputError(
                f"group {number}: the recorded training never looked at {listing(never)}: leaving them out changes nothing."
            )
    return last


def _gaps(trace: Trace, positions: Sequence[Tensor]) -> Tensor:
    """Which groups (G,) fill some batch by themselves; each is looked at by its own visits only."""
    order = trace.visited.argsort(stable=True)
    starts = torch.searchsorted(trace.visited[order], torch.arange(len(trace.listed) + 1))
    steps = torch.searchsorted(trace.bounds, torch.arange(trace.visits), right=True) - 1
    sizes = trace.bounds.diff()
    alone = torch.zeros(len(positions), dtype=torch.bool)
    for group, where in enumerate(positions):
        visits = torch.cat([order[starts[i] : starts[i + 1]] for i in where.tolist()])
        unique_steps, counts = steps[visits].unique(return_counts=True)
        alone[group] = bool((counts == sizes[unique_steps]).any())
    return alone


def _size(run: Run, depth: Depth) -> DepthSize:
    parsed_depth = parsed(depth)
    if parsed_depth == "auto":
        raise InputError("removals needs one depth for all groups: head, a number of blocks or all; 'auto' is for one request.")
    return size_at(survey(run, {"depth": parsed_depth}), parsed_depth)


def _motion(run: Run, trace: Trace, depth: int, columns: Columns, epochs: Sequence[int], allowed: int) -> RowMotion:
    """Rows of the moving part, in memory where half of what is allowed holds them."""
    numbers = len(trace.listed) * trace.facts.classes * len(columns.body) * len(epochs)
    place = "memory" if numbers * run.anchor.element_size() <= allowed // 2 else "disk"
    points, _ = network_of(run, trace).rows(depth, epochs, place=place, scratch=None, chunk=None)
    return RowMotion(points, columns.inside)


def _lanes_at_once(trace: Trace, columns: Columns, allowed: int, *, itemsize: int) -> int:
    facts = trace.facts
    parameters = len(columns.head) + (0 if columns.bias is None else len(columns.bias)) + len(columns.body)
    batch = int(trace.bounds.diff().max()) if trace.steps else 0
    lane = len(trace.listed) * (itemsize + 1)  # who takes part
    lane += itemsize * (PARAMETER_COPIES * parameters + FEATURE_COPIES * batch * (facts.features + facts.classes))
    most = allowed // lane - 1  # lane 0 is the recorded path
    if most < 1:
        raise BudgetError(
            f"a replay takes {byte_size(2 * lane)}, memory_budget allows {byte_size(allowed)}: raise it, or go less deep."
        )
    return int(most)


def _turns(alone: Tensor, most: int) -> Iterator[list[int]]:
    """Groups that are replayed together: as many as fit, those with gaps one by one."""
    together = (~alone).nonzero().flatten().tolist()
    yield from (together[start : start + most] for start in range(0, len(together), most))
    yield from ([group] for group in alone.nonzero().flatten().tolist())


def _watched(trace: Trace, positions: Tensor, visits: Tensor) -> Watched:
    features = torch.stack([trace.features[visit] for visit in visits.tolist()])
    return Watched(positions, torch.ones(len(positions), dtype=torch.bool), trace.listed.labels[positions], features)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    own = logits.gather(1, labels[:, None]).squeeze(1)
    return own - logits.scatter(1, labels[:, None], -torch.inf).amax(1)


def _placed(figures: Sequence[Tensor], seen: Tensor) -> Tensor:
    """Figures before and after (2, k) of the samples that were ``seen`` (n,); NaN for the others."""
    out = torch.full((2, len(seen)), torch.nan, dtype=figures[0].dtype)
    out[:, seen] = torch.stack(list(figures))
    return out


def _means(values: Sequence[Tensor], row: int) -> Tensor:
    return torch.stack([each[row].nanmean() for each in values])
