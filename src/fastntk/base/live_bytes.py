"""How much memory a computation holds at once: counted, not sampled.

:class:`LiveBytes` follows every tensor that torch makes and drops. What it cannot see are the scratch buffers inside a kernel.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


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
        inputs = {storage._cdata for storage in _storages((*args, *(kwargs or {}).values()))}
        for storage in _storages((out,)):
            # Views and in-place results share a storage that existed before.
            if storage._cdata not in inputs and storage._cdata not in self._seen:
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
