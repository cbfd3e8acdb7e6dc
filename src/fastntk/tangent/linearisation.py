"""One linearisation of a run, enough for every request on it: rows, outputs and the anchor's features.

    f(w) ≈ f_θ + J (w − θ)       J at θ (default), at the anchor, or half-way

It holds information on all samples it was made from, the forgotten ones included: keep it only as long as requests
are served from it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fastntk.base.errors import BudgetError, InputError
from fastntk.base.gradients import with_gradients
from fastntk.base.memory import memory_allowed
from fastntk.base.text import byte_size
from fastntk.data import Samples
from fastntk.linalg import HeadRows
from fastntk.tangent import RowEngine, TangentOperator, checked_engine
from fastntk.tangent.in_memory import rows_in_memory
from fastntk.tangent.on_disk import rows_in_scratch, rows_on_disk
from fastntk.training.network import check_samples, fast_copy
from fastntk.training.run import Run

Point = Literal["trained", "anchor", "midpoint"]
RowsAt = Literal["auto", "memory", "disk", "stream"]
Place = Literal["memory", "disk", "stream"]


@dataclass(frozen=True, eq=False)
class Linearisation:
    """Rows of all of a run's samples at one point, and the true outputs there, at θ and at the anchor.

    ``point`` (d,): where J was taken. ``outputs`` (n, C): f_θ; ``anchor_outputs``: f_w0. ``features`` and
    ``anchor_features`` (n, H): the head's inputs at θ and w0, where the model ends in a linear head. ``place``: where
    the rows are: in memory, on disk (mapped), or nowhere (``stream``: made anew in each pass; no replay then).
    ``engine``: who made them, on a working copy that stays at ``point``, on the device of the run's model. All tensors here are
    on the CPU.
    """

    at: Point
    point: Tensor
    theta: Tensor
    anchor: Tensor
    rows: HeadRows | TangentOperator
    place: Place
    outputs: Tensor
    anchor_outputs: Tensor
    features: Tensor | None
    anchor_features: Tensor | None
    routes: dict[str, object]
    seconds: float
    samples: Samples
    version: tuple[int, int] | None
    engine: RowEngine = field(repr=False)
    memo: dict[str, Any] = field(default_factory=dict, repr=False)
    """What methods work out once for all requests."""

    def __getstate__(self) -> dict[str, Any]:
        # A copy's tensors count their writes anew; whether the data changed since is what has to survive.
        return self.__dict__ | {"version": None if self.samples.version != self.version else self.version}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.version is not None:
            self.__dict__["version"] = self.samples.version

    def check_run(self, run: Run) -> None:
        """Refuse a run whose weights or data are not those this was made from."""
        if not torch.equal(self.theta, run.subset.get().cpu()) or not torch.equal(self.anchor, run.anchor.cpu()):
            raise InputError("This linearisation was made from other weights than the run's: make a new one.")
        if self.samples.version != self.version or (run.data is not self.samples and run.data.digest() != self.samples.digest()):
            raise InputError("This linearisation was made from other data than the run's: make a new one.")


def check_choices(at: str, rows: str) -> None:
    """Refuse a point of linearisation, and a place for rows, that there is not."""
    if at not in get_args(Point):
        raise InputError(f"The linearisation point must be one of {', '.join(get_args(Point))}; got {at!r}.")
    if rows not in get_args(RowsAt):
        raise InputError(f"rows must be one of {', '.join(get_args(RowsAt))}; got {rows!r}.")


@with_gradients
def linearise_run(
    run: Run,
    *,
    at: Point = "trained",
    chunk: int | None = None,
    rows: RowsAt = "auto",
    folder: str | Path | None = None,
    memory_budget: int | None = None,
) -> Linearisation:
    """Compute everything unlearning needs from the network, once, on a copy; later requests reuse it.

    ``rows``: ``memory``; ``disk``, in ``folder``, resumable after a kill; ``stream``, never stored; ``auto``: disk if a folder
    is given, else memory if the rows fit ``memory_budget`` (default: 70 % of what is available), else the disk of the system's
    folder for temporary files while they are needed, else stream.
    """
    check_choices(at, rows)
    check_samples(run.model, run.data)
    work = fast_copy(run)
    engine = checked_engine(work, run.subset.on(work), run.data.inputs)
    place = _place(engine, run.data.inputs, rows, folder, memory_budget)
    return linearise(run, engine, at=at, place=place, folder=folder, chunk=chunk)


def linearise(
    run: Run,
    engine: RowEngine,
    *,
    at: Point,
    place: Place,
    folder: str | Path | None = None,
    scratch: str | Path | None = None,
    chunk: int | None = None,
) -> Linearisation:
    """The linearisation by an engine that was checked on a working copy of the run's model, with the rows where they are wanted.

    Rows on disk without a ``folder`` are kept below ``scratch`` while they are read.
    """
    start = time.perf_counter()
    subset, inputs = engine.subset, run.data.inputs
    # Rows are stored on the CPU; so is all that is computed with them.
    theta, anchor = run.subset.get().cpu(), run.anchor.to("cpu", copy=True)
    point = {"trained": theta, "anchor": anchor, "midpoint": (theta + anchor) / 2}[at]
    subset.set(theta)
    outputs, features = engine.outputs(inputs)
    subset.set(anchor)
    anchor_outputs, anchor_features = engine.outputs(inputs)
    subset.set(point)
    rows: HeadRows | TangentOperator
    if place == "stream":
        rows = TangentOperator(engine.model, subset, inputs, engine=engine)
    elif place == "memory":
        rows = rows_in_memory(engine, inputs, chunk=chunk)
    elif folder is None:
        rows = rows_in_scratch(engine, inputs, scratch, chunk=chunk, samples_digest=run.data.digest())
    else:
        rows = rows_on_disk(engine, inputs, folder, chunk=chunk, samples_digest=run.data.digest())
    return Linearisation(
        at=at,
        point=point,
        theta=theta,
        anchor=anchor,
        rows=rows,
        place=place,
        outputs=outputs,
        anchor_outputs=anchor_outputs,
        features=features,
        anchor_features=anchor_features,
        routes=engine.routes,
        seconds=time.perf_counter() - start,
        samples=run.data,
        version=run.data.version,
        engine=engine,
    )


def _place(engine: RowEngine, inputs: Tensor, rows: RowsAt, folder: str | Path | None, budget: int | None) -> Place:
    """Where the rows go, and a refusal where that cannot be."""
    if rows == "auto" and folder is not None:
        return "disk"
    size = engine.dtype.itemsize * len(inputs) * (engine.classes * len(engine.body_columns) + (engine.features or 0))
    limit = memory_allowed(budget)
    if rows == "memory" and size > limit:
        raise BudgetError(
            f"The rows take {byte_size(size)}, the budget is {byte_size(limit)}: give rows='disk' with a folder, "
            "rows='stream' (fast-ntk only), or tune fewer parameters."
        )
    if rows != "auto":
        return rows
    free = shutil.disk_usage(tempfile.gettempdir()).free
    return "memory" if size <= limit else "disk" if size < free else "stream"
