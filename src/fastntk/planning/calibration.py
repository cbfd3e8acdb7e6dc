"""How fast this machine is on this model: a few seconds of measuring, on which estimates rest.

Times are the best of a few short repeats. Memory is counted, not sampled (:mod:`fastntk.base.live_bytes`), so the peak of a
chunk does not depend on what the allocator had at hand.

Nothing here changes the model. Not for estimates themselves: see :mod:`fastntk.planning`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastntk.base.live_bytes import LiveBytes
from fastntk.tangent import RowEngine, seconds_of_rows
from fastntk.training.network import fast_copy, fast_layout
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.training.speed import best_time, measure_speed

MATRIX = 768
PRODUCT_BYTES = 64_000_000
"""Rows that products are timed on: more than a cache holds, as real ones are."""
MANY = 5
"""Columns of a product with several vectors; the softmax form fits its damping with so many at once."""


@dataclass(frozen=True)
class Calibration:
    """Seconds per image of a forward pass, of its rows and of a training step; rates of the machine; bytes per image.

    ``gemm32``, ``gemm64``, ``cholesky``: floating-point operations a second. ``read``, ``read_many``, ``replay``: bytes of
    stored rows a second in JᵀJv with one and with five columns, and in a step of a replay. ``row_bytes``, ``step_bytes``: live
    memory while making the rows of one image (the rows themselves not included) and in a training step. ``dispatch``: seconds of
    one small tensor operation. What was not measured is NaN.
    """

    forward: float
    rows: float
    step: float
    row_bytes: int
    gemm32: float
    gemm64: float
    cholesky: float
    read: float
    dispatch: float
    threads: int
    read_many: float = math.nan
    replay: float = math.nan
    step_bytes: int = 0

    def details(self) -> dict[str, Any]:
        """What was measured, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if math.isfinite(value)}


def uncalibrated(engine: RowEngine | None, inputs: Tensor) -> Calibration:
    """No times, only the memory that decides which route fits; counted, so the same on every call."""
    unknown = math.nan
    return Calibration(
        forward=unknown,
        rows=unknown,
        step=unknown,
        row_bytes=0 if engine is None else live_bytes_per_image(engine, inputs),
        gemm32=unknown,
        gemm64=unknown,
        cholesky=unknown,
        read=unknown,
        dispatch=unknown,
        threads=torch.get_num_threads(),
    )


def calibrate(run: Run, engine: RowEngine | None, *, chunk: int) -> Calibration:
    """Measure on the first samples: training steps always, rows and products where there is a (checked) engine.

    Without images only what needs none is measured, which is enough for a replay of the head.
    """
    recipe = run.recipe or Recipe()
    if run.samples is None:
        calibration = uncalibrated(None, run.listed.inputs)
        return replace(calibration, gemm32=_gemm_rate(torch.float32), dispatch=_dispatch_seconds())
    if engine is None:
        work = fast_copy(run)
        subset = run.subset.on(work)
    else:
        work, subset = engine.model, engine.subset
    inputs = fast_layout(work, run.data.inputs[:chunk])
    speed = measure_speed(subset, run.data, recipe, batch=recipe.batch_size)
    calibration = replace(
        uncalibrated(engine, inputs),
        forward=speed.forward,
        step=speed.step,
        step_bytes=speed.step_bytes,
        dispatch=_dispatch_seconds(),
    )
    if engine is None:
        return calibration
    products = _product_rates(engine, count=len(run.data), batch=recipe.batch_size, dtype=engine.dtype)
    return replace(
        calibration,
        rows=seconds_of_rows(engine, inputs),
        gemm32=_gemm_rate(torch.float32),
        gemm64=_gemm_rate(torch.float64),
        cholesky=_cholesky_rate(),
        read=products["read"],
        read_many=products["read_many"],
        replay=products["replay"],
    )


def live_bytes_per_image(engine: RowEngine, inputs: Tensor) -> int:
    """Peak of live tensors while making rows, per image, beyond the rows; it grows linearly with the chunk."""
    count = min(2, len(inputs))
    with LiveBytes() as live:
        rows = engine.rows(inputs[:count])
    return int(max(0, live.peak - rows.body.nbytes) // count)


def _dispatch_seconds() -> float:
    return best_time(lambda: torch.zeros(8), repeats=20)


def _gemm_rate(dtype: torch.dtype) -> float:
    a = torch.rand(MATRIX, MATRIX, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return 2.0 * MATRIX**3 / best_time(lambda: a @ a, repeats=3)


def _cholesky_rate() -> float:
    size = 2 * MATRIX
    a = torch.full((size, size), 0.5, dtype=torch.float64)
    a.diagonal().fill_(size)
    return size**3 / 3.0 / best_time(lambda: torch.linalg.cholesky(a), repeats=2)


def _product_rates(engine: RowEngine, *, count: int, batch: int, dtype: torch.dtype) -> dict[str, float]:
    """Bytes a second in products with rows of this engine's shape."""
    classes, width = engine.classes, len(engine.body_columns)
    images = max(1, min(count, PRODUCT_BYTES // max(classes * width * dtype.itemsize, 1)))
    own = torch.Generator().manual_seed(0)  # the caller's random numbers stay as they are

    def random(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.rand(*shape, dtype=kind, generator=own)

    features = None if engine.weight_columns is None else random(images, int(engine.weight_columns.shape[1]))
    rows = engine.assemble(random(images, classes, width), features)
    rows.product_dtype = dtype
    size = rows.body.nbytes + (0 if features is None else features.nbytes)
    vectors = random(engine.subset.numel, MANY, kind=torch.float64)
    step = vectors[engine.body_columns, 0].to(dtype).requires_grad_()
    order = torch.randperm(images, generator=own)

    def replay() -> None:
        for part in order.split(batch):
            torch.autograd.grad((rows.body[part] @ step).square().sum(), step)

    replay_seconds = best_time(replay, repeats=2) if width else math.inf
    return {
        "read": size / best_time(lambda: rows.gram_matvec(vectors[:, :1]), repeats=3),
        "read_many": size / best_time(lambda: rows.gram_matvec(vectors), repeats=2),
        "replay": size / replay_seconds if width else math.inf,
    }
