"""Rows of numbers that grow while something is recorded and are read in slices afterwards, in memory or in a file.

A file holds the plain numbers, row after row: it is appended to, never rewritten, and hashed on the way. Reading takes slices, so
a file larger than memory costs no more memory than a slice.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fastntk.base.errors import InputError

Dtype = Literal["float16", "float32", "float64", "int32"]
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float16, torch.float32, torch.float64, torch.int32)}


@dataclass(frozen=True, eq=False)
class Series:
    """``length`` rows of ``shape`` each; ``data`` holds them, or is the file that does."""

    length: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    data: Tensor | Path

    def __len__(self) -> int:
        return self.length

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.length * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, start: int, stop: int) -> Tensor:
        """Rows ``start`` to ``stop``, (stop − start, *shape); those of a series in memory are not copied."""
        if not 0 <= start <= stop <= self.length:
            raise InputError(f"rows {start} to {stop} of a series of {self.length}")
        if isinstance(self.data, Tensor):
            return self.data[start:stop]
        count = (stop - start) * math.prod(self.shape)
        try:
            numbers = np.fromfile(
                self.data, dtype=str(self.dtype).removeprefix("torch."), count=count, offset=start * self._row_bytes
            )
        except FileNotFoundError as error:
            raise InputError(
                f"{self.data} is gone: a trace in a folder is read from there as long as it is used. Put the folder back, or "
                "load the run again from where it was saved."
            ) from error
        if len(numbers) != count:
            raise InputError(f"{self.data} was cut short while it was in use: copy the folder again from where it is whole.")
        return torch.from_numpy(numbers).reshape(stop - start, *self.shape)

    def __getitem__(self, index: int) -> Tensor:
        return self.read(index, index + 1)[0]

    def to_memory(self) -> Tensor:
        """All rows as one tensor."""
        return self.read(0, self.length)

    @classmethod
    def of(cls, rows: Tensor) -> Series:
        """A series in memory."""
        return cls(len(rows), tuple(rows.shape[1:]), rows.dtype, rows)

    def facts(self) -> dict[str, Any]:
        """JSON-able: what has to be known to read the file again."""
        return {"rows": self.length, "shape": list(self.shape), "dtype": str(self.dtype).removeprefix("torch.")}


def _halved(rows: Tensor) -> Tensor:
    """In half precision, a copy; what it cannot hold becomes the largest number that it can."""
    plain = rows.to(torch.float16, copy=True).contiguous()
    if not bool(torch.isfinite(plain).all()) and bool(torch.isfinite(rows).all()):
        most = torch.finfo(torch.float16).max
        warnings.warn(f"numbers beyond ±{most:g} are recorded as that: half precision holds no more", stacklevel=3)
        plain = rows.clamp(-most, most).to(torch.float16).contiguous()
    return plain


class SeriesWriter:
    """Appends rows of one shape and dtype, to memory or to ``path``."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, path: Path | None = None) -> None:
        self._shape, self._dtype, self._path = shape, dtype, path
        self._kept: list[Tensor] = []
        self._length = 0
        self._sha = hashlib.sha256()
        self._stream = None if path is None else path.open("xb")

    @property
    def nbytes(self) -> int:
        """Bytes so far."""
        return self._length * math.prod(self._shape) * self._dtype.itemsize

    def append(self, rows: Tensor) -> None:
        """Add rows (k, *shape)."""
        plain = rows.detach().cpu()
        plain = _halved(plain) if self._dtype == torch.float16 else plain.to(self._dtype, copy=True).contiguous()
        if tuple(plain.shape[1:]) != self._shape:
            raise InputError(f"rows of shape {tuple(plain.shape[1:])} for a series of shape {self._shape}")
        self._length += len(plain)
        if self._stream is None:
            self._kept.append(plain)
            return
        self._write(plain)

    def _write(self, rows: Tensor) -> None:
        data = rows.contiguous().numpy().tobytes()
        assert self._stream is not None
        self._stream.write(data)
        self._sha.update(data)

    def replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Write all rows anew, as ``change`` makes them from those that are here."""
        if self._stream is None:
            self._kept = [change(rows) for rows in self._kept]
            return
        self._stream.close()
        assert self._path is not None
        before, after = self._path, self._path.with_suffix(".new")
        old = Series(self._length, self._shape, self._dtype, before)
        self._sha, self._stream = hashlib.sha256(), after.open("xb")
        step = max(1, 2**24 // max(1, math.prod(self._shape) * self._dtype.itemsize))
        for start in range(0, self._length, step):
            self._write(change(old.read(start, min(start + step, self._length))))
        self._stream.flush()
        after.replace(before)

    def narrow(self) -> None:
        """Go on in half precision, with the rows that are here as well."""
        if self._dtype == torch.float32:
            self.replace(lambda rows: _halved(rows))
            self._dtype = torch.float16

    def cut(self, length: int) -> None:
        """Keep so many rows, the first ones."""
        if self._stream is None:
            self._kept = [torch.cat(self._kept)[:length].clone()]
            self._length = length
        elif length < self._length:
            self._length = length
            self.replace(lambda rows: rows)

    def discard(self) -> None:
        """Forget all rows, and remove the file."""
        self.abandon()
        self._kept = []
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def finish(self) -> tuple[Series, str | None]:
        """The series, and the SHA-256 of its file."""
        if self._stream is None:
            whole = torch.cat(self._kept) if self._kept else torch.empty(0, *self._shape, dtype=self._dtype)
            self._kept = []
            return Series.of(whole), None
        self.close()
        assert self._path is not None
        return Series(self._length, self._shape, self._dtype, self._path), self._sha.hexdigest()

    def abandon(self) -> None:
        """Close the file, though what was not written yet has no room on the disk; its owner removes it."""
        with contextlib.suppress(OSError):
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None and not self._stream.closed:
            self._stream.close()
