"""All rows of a data set, stored: what solves and replays read again and again.

One pass over the network; afterwards nothing here touches it. The body is (n, C, b) in the parameters' dtype, the
head's block is (n, H) features. Stored rows are on the CPU, wherever the network is; solves and replays on them run there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fastntk.base.device import with_float64
from fastntk.base.progress import track
from fastntk.linalg import GramAccumulator, HeadRows
from fastntk.tangent.guards import checked_engine
from fastntk.tangent.rows import RowEngine, chunk_size, iter_rows
from fastntk.tuning import Subset


def linearise(model: nn.Module, subset: Subset, inputs: Tensor, *, chunk: int | None = None) -> HeadRows:
    """Guard, then compute and keep the rows of all inputs (n, …) at the model's present weights."""
    return rows_in_memory(checked_engine(model, subset, inputs), inputs, chunk=chunk)


def rows_in_memory(engine: RowEngine, inputs: Tensor, *, chunk: int | None = None) -> HeadRows:
    """Compute and keep the rows of all inputs by an engine that was checked."""
    n, width = len(inputs), len(engine.body_columns)
    body = torch.empty(n, engine.classes, width, dtype=engine.dtype)
    features = None if engine.weight_columns is None else torch.empty(n, engine.weight_columns.shape[1], dtype=engine.dtype)
    for part, rows in _tracked(engine, inputs, chunk):
        body[part] = rows.body
        if features is not None and rows.features is not None:
            features[part] = rows.features
    return engine.assemble(body, features)


def accumulate(
    engine: RowEngine,
    inputs: Tensor,
    targets: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    chunk: int | None = None,
) -> GramAccumulator:
    """A = JᵀJ and Jᵀt summed straight from the network, on its device; the rows of a few chunks exist at a time.

    Sums in float64 are made on the CPU where the device has no float64.
    """
    sums = GramAccumulator(engine.subset.numel, dtype)
    # Each addition passes over all of A once, so hand over enough rows to be worth it.
    enough = math.ceil(engine.subset.numel / (4 * engine.classes))
    waiting: list[HeadRows] = []
    start = 0
    for part, rows in _tracked(engine, inputs, chunk):
        waiting.append(exact_rows(engine, rows))
        if part.stop - start >= enough or part.stop == len(inputs):
            batch = _join(engine, waiting)
            sums.add(batch, None if targets is None else targets[start : part.stop])
            waiting, start = [], part.stop
    return sums


def exact_rows(engine: RowEngine, rows: HeadRows) -> HeadRows:
    """The rows where sums in float64 can be made of them: as they are, or on the CPU."""
    device = with_float64(rows.body.device)
    if device == rows.body.device:
        return rows
    return engine.assemble(rows.body.to(device), None if rows.features is None else rows.features.to(device))


def _join(engine: RowEngine, parts: list[HeadRows]) -> HeadRows:
    if len(parts) == 1:
        return parts[0]
    features = [rows.features for rows in parts if rows.features is not None]
    return engine.assemble(torch.cat([rows.body for rows in parts]), torch.cat(features) if features else None)


def _tracked(engine: RowEngine, inputs: Tensor, chunk: int | None) -> Iterator[tuple[slice, HeadRows]]:
    size = chunk_size(chunk)
    return track(iter_rows(engine, inputs, chunk=size), "Jacobian rows", total=math.ceil(len(inputs) / size))
