"""How fast this machine is on this model: a few seconds of measuring, on which estimates rest.

Times are the best of a few short repeats. Memory is counted, not sampled: :class:`LiveBytes` follows every tensor that
torch makes and drops, so the peak of a chunk does not depend on what the allocator had at hand. What it cannot see are
the scratch buffers inside a kernel.

Nothing here changes the model. Not for estimates themselves: see :mod:`fastntk.planning`.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fastntk.data import Samples
from fastntk.models import logits
from fastntk.tangent import RowEngine
from fastntk.training.loop import batch_loss
from fastntk.training.network import fast_layout
from fastntk.training.recipe import Recipe

MATRIX = 768
PATIENCE = 1.5
"""Seconds a single timing may take; slower networks are timed on fewer images."""


@dataclass(frozen=True)
class Calibration:
    """Seconds per image of a forward pass, of its rows and of a training step; rates of the machine; bytes per image.

    ``gemm32``, ``gemm64``, ``cholesky``: floating-point operations a second. ``read``: bytes a second in products with
    stored rows. ``row_bytes``: live memory while making the rows of one image, the rows themselves not included.
    ``dispatch``: seconds of one small tensor operation.
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

    def details(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)


class LiveBytes(TorchDispatchMode):
    """While active, counts the bytes of tensors made inside that are alive; ``peak`` is the most there were at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((*args, *(kwargs or {}).values()))}
        for storage in _storages((out,)):
            # Views and in-place results share a storage that existed before.
            if storage._cdata not in given and storage._cdata not in self._seen:
                self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        size, address = storage.nbytes(), storage._cdata

        def gone(_: object) -> None:
            self.now -= size
            self._seen.pop(address, None)

        self._seen[address] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def _storages(items: Iterable[Any]) -> Iterable[torch.UntypedStorage]:
    for item in items:
        if isinstance(item, Tensor):
            yield item.untyped_storage()
        elif isinstance(item, list | tuple):
            yield from _storages(item)


def calibrate(engine: RowEngine, samples: Samples, recipe: Recipe, *, chunk: int) -> Calibration:
    """Measure, on the first samples; the engine has been checked and its model is in eval mode."""
    inputs = fast_layout(engine.model, samples.inputs[: max(chunk, recipe.batch_size)])
    labels = samples.labels[: len(inputs)].to(inputs.device)
    parameters = list(engine.subset.parameters.values())

    def forward(size: int) -> None:
        with torch.no_grad():
            logits(engine.model, inputs[:size])

    def step(size: int) -> None:
        loss = batch_loss(logits(engine.model, inputs[:size]), labels[:size], recipe)
        torch.autograd.grad(loss, parameters, allow_unused=True)

    return Calibration(
        forward=_per_image(forward, min(chunk, len(inputs))),
        rows=_per_image(lambda size: engine.rows(inputs[:size]), min(chunk, len(inputs))),
        step=_per_image(step, min(recipe.batch_size, len(inputs))),
        row_bytes=live_bytes_per_image(engine, inputs),
        gemm32=_gemm_rate(torch.float32),
        gemm64=_gemm_rate(torch.float64),
        cholesky=_cholesky_rate(),
        read=_read_rate(),
        dispatch=_best(lambda: torch.zeros(8), repeats=20),
        threads=torch.get_num_threads(),
    )


def live_bytes_per_image(engine: RowEngine, inputs: Tensor) -> int:
    """Peak of live tensors while making rows, per image, beyond the rows; it grows linearly with the chunk."""
    count = min(2, len(inputs))
    with LiveBytes() as live:
        rows = engine.rows(inputs[:count])
    return int(max(0, live.peak - rows.body.nbytes) // count)


def _per_image(work: Callable[[int], object], size: int) -> float:
    """Seconds an image at batches of ``size``, or of fewer images where that would take long."""
    small = min(2, size)
    work(small)  # the first call pays for memory and kernels
    first = _best(lambda: work(small), repeats=1) / small
    count = min(size, max(small, int(PATIENCE / max(first, 1e-9))))
    return _best(lambda: work(count), repeats=2 if first * count < PATIENCE / 2 else 1) / count


def _best(work: Callable[[], object], *, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _gemm_rate(dtype: torch.dtype) -> float:
    a = torch.rand(MATRIX, MATRIX, dtype=dtype)
    return 2.0 * MATRIX**3 / _best(lambda: a @ a, repeats=3)


def _cholesky_rate() -> float:
    size = 2 * MATRIX
    a = torch.full((size, size), 0.5, dtype=torch.float64)
    a.diagonal().fill_(size)
    return size**3 / 3.0 / _best(lambda: torch.linalg.cholesky(a), repeats=2)


def _read_rate() -> float:
    rows, vector = torch.rand(4096, 4096), torch.rand(4096)
    return rows.nbytes / _best(lambda: rows @ vector, repeats=3)
