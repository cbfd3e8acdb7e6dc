"""Rows on disk: written once, chunk by chunk, mapped into memory ever after.

    folder/body.bin       (n, C, b) numbers in the parameters' dtype, sample by sample
    folder/features.bin   (n, H) head features, where the head is tuned
    folder/state.json     what the rows are of (digests), how many chunks are finished, and the SHA-256 of each chunk

Space is reserved before the first row is made, so a full disk shows at once. Data is flushed before the state advances,
and chunks have fixed boundaries: a killed job resumes at the last recorded chunk and ends with the same bytes as one
that was never interrupted (on the same machine and number of threads). Nothing opens an unfinished folder as rows.

Whoever opens rows again compares chunks with their digests: all of them up to :data:`CHECKED_BYTES`; of larger rows the first,
the last and as many others, drawn anew each time, as make up so much; a warning says how many that were. Damage is refused.

The files hold information on the data: a sample's rows say much about the sample. They are readable by their owner only
(mode 0600) and have to be erased together with what is forgotten. Not a cache that looks after itself: a folder made
for other weights, data or chunks is refused, never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

import numpy as np
import torch
from torch import Tensor

from fastntk.base.atomic import is_temporary, scratch_folder, write_file
from fastntk.base.digest import json_digest, tensor_digest
from fastntk.base.errors import BudgetError, InputError, listing
from fastntk.base.progress import track
from fastntk.base.schema import Count, JsonObject, Sha256, parse, read_json
from fastntk.base.text import byte_size
from fastntk.linalg import HeadRows
from fastntk.models.card import fingerprint_of
from fastntk.tangent.rows import RowEngine, chunk_size, iter_rows

FORMAT = 2
SCRATCH = "fastntk-rows"
"""Name of the folders that rows are in while nobody gave one."""
STATE, BODY, FEATURES = "state.json", "body.bin", "features.bin"
SECONDS_BETWEEN_STATES = 5.0
"""A kill loses at most this much work (or one chunk); flushing after every chunk would wait for the disk."""
CHECKED_BYTES = 2**31
"""Bytes of stored rows that are compared with their digests on opening: some seconds."""

_DTYPES: dict[torch.dtype, type[np.floating[Any]]] = {
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
_NO_RESERVE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _State(TypedDict):
    """The file ``state.json``; ``digests``: by file, of each finished chunk."""

    key: JsonObject
    chunks: Count
    complete: bool
    digests: dict[str, list[Sha256]]


@dataclass(frozen=True)
class _File:
    """One raw file: its path and the array in it."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def per_sample(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def size(self) -> int:
        return self.shape[0] * self.per_sample

    def chunk_digest(self, number: int, *, chunk: int) -> str:
        """SHA-256 of the rows of one chunk, from the disk."""
        first, last = number * chunk, min((number + 1) * chunk, self.shape[0])
        with self.path.open("rb") as stream:
            stream.seek(first * self.per_sample)
            return hashlib.sha256(stream.read((last - first) * self.per_sample)).hexdigest()

    def load(self) -> Tensor:
        """The mapped array; copy-on-write, so that nobody can change the file through it."""
        if self.size == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.from_numpy(np.memmap(self.path, dtype=_DTYPES[self.dtype], mode="c", shape=self.shape))


def rows_on_disk(
    engine: RowEngine,
    inputs: Tensor,
    folder: str | Path,
    *,
    chunk: int | None = None,
    samples_digest: str | None = None,
) -> HeadRows:
    """Return the rows of all inputs (n, …) from ``folder``, computing what is not there yet.

    The engine has been checked (:func:`fastntk.tangent.checked_engine`). ``samples_digest`` stands in for a digest of
    the inputs, where one is known (``Samples.digest()``). Raises :class:`InputError` for a folder of other or damaged rows and
    :class:`BudgetError` where the disk is too small.
    """
    folder = Path(folder)
    if engine.dtype not in _DTYPES:
        raise InputError(f"Rows of {engine.dtype} on {inputs.device} cannot be stored: expected {listing(_DTYPES)}.")
    size = chunk_size(chunk)
    files = _files(engine, inputs, folder)
    key = _key(engine, inputs, files, chunk=size, samples_digest=samples_digest)
    state = _progress_of(folder, key)
    if state["chunks"]:
        _check_sizes(files)
        _check_chunks(files, state)
    if not state["complete"]:
        _finish(engine, inputs, folder, files, state=state)
    body, *features = (file.load() for file in files)
    return engine.assemble(body, features[0] if features else None)


def rows_in_scratch(
    engine: RowEngine, inputs: Tensor, scratch: str | Path | None, *, chunk: int | None = None, samples_digest: str | None = None
) -> HeadRows:
    """:func:`rows_on_disk` below ``scratch`` (default: the system's folder for temporary files), for as long as they are read.

    Their files are deleted at once; the space is free again when the last who reads them is done.
    """
    with scratch_folder(Path(scratch or tempfile.gettempdir()), SCRATCH) as folder:
        return rows_on_disk(engine, inputs, folder, chunk=chunk, samples_digest=samples_digest)


def bytes_on_disk(folder: str | Path) -> int:
    """Bytes of rows that a folder holds already, finished chunks only; 0 for one that holds none. Whose they are is not asked."""
    folder = Path(folder)
    try:
        state = read_json(folder / STATE)
        whole = sum((folder / name).stat().st_size for name in state["key"]["files"])
        chunks = math.ceil(state["key"]["input shape"][0] / state["key"]["chunk"])
        return int(whole if state["complete"] else whole * state["chunks"] // max(chunks, 1))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return 0


def _files(engine: RowEngine, inputs: Tensor, folder: Path) -> list[_File]:
    n = len(inputs)
    files = [_File(folder / BODY, (n, engine.classes, len(engine.body_columns)), engine.dtype)]
    if engine.weight_columns is not None:
        files.append(_File(folder / FEATURES, (n, engine.weight_columns.shape[1]), engine.dtype))
    return files


def _key(engine: RowEngine, inputs: Tensor, files: list[_File], *, chunk: int, samples_digest: str | None) -> dict[str, Any]:
    """What decides every byte of the rows; digests and shapes only."""
    return {
        "format": FORMAT,
        "weights": json_digest(fingerprint_of(engine.model)),
        "inputs": samples_digest or tensor_digest(inputs),
        "input shape": list(inputs.shape),
        "tuned parameters": list(engine.subset.names),
        "column order": tensor_digest(engine.body_columns),
        "chunk": chunk,
        "dtype": str(engine.dtype),
        "files": {file.path.name: list(file.shape) for file in files},
    }


def _progress_of(folder: Path, key: dict[str, Any]) -> _State:
    """What of the rows is in a folder already; refuse one that holds anything else."""
    path = folder / STATE
    if not path.exists():
        if folder.is_dir():
            other = [entry.name for entry in folder.iterdir() if not is_temporary(entry)]
            if other:
                raise InputError(
                    f"{folder} holds other files ({listing(sorted(other), most=3)}) and no {STATE}: "
                    "give an empty or a new folder for the rows."
                )
        return {"key": key, "chunks": 0, "complete": False, "digests": {name: [] for name in key["files"]}}
    try:
        state = parse(read_json(path), _State, what=STATE)
    except InputError as error:
        raise InputError(f"{path} cannot be used ({error}): delete the folder and compute the rows again.") from error
    earlier = state["key"]
    if earlier != key:
        names = [name for name in key if earlier.get(name) != key[name]]
        raise InputError(
            f"{folder} holds rows for something else: it differs in {listing(names)}. "
            "Give another folder, or delete this one to compute the rows again."
        )
    whole = math.ceil(key["input shape"][0] / key["chunk"])
    counts = {name: len(digests) for name, digests in state["digests"].items()}
    if counts != dict.fromkeys(key["files"], state["chunks"]) or state["complete"] != (state["chunks"] == whole):
        raise InputError(f"{path} contradicts itself: delete the folder and compute the rows again.")
    return state


def _check_chunks(files: list[_File], state: _State) -> None:
    """Compare chunks with their digests, all or a sample that includes both ends."""
    chunk, count = state["key"]["chunk"], state["chunks"]
    per_chunk = max(1, chunk * sum(file.per_sample for file in files))
    numbers, most = list(range(count)), max(2, CHECKED_BYTES // per_chunk)
    if count > most:
        numbers = sorted({0, count - 1, *random.sample(numbers, most - 2)})
        warnings.warn(
            f"{files[0].path.parent}: {len(numbers):,} of {count:,} chunks of the stored rows were compared with their digests",
            stacklevel=3,
        )
    for file in files:
        digests = state["digests"][file.path.name]
        mismatches = [number for number in numbers if file.chunk_digest(number, chunk=chunk) != digests[number]]
        if mismatches:
            raise InputError(
                f"{file.path} was changed: the SHA-256 of its chunks {listing(mismatches)} is not what was stored. "
                "Delete the folder and compute the rows again."
            )


def _check_sizes(files: list[_File]) -> None:
    for file in files:
        size = file.path.stat().st_size if file.path.is_file() else None
        if size != file.size:
            raise InputError(
                f"{file.path} should have {file.size} bytes and {'is missing' if size is None else f'has {size}'}: "
                "the folder is damaged. Delete it and compute the rows again."
            )


def _finish(engine: RowEngine, inputs: Tensor, folder: Path, files: list[_File], *, state: _State) -> None:
    """Write the chunks that are missing; what this call made is taken back if not even one could be kept."""
    chunk, start = state["key"]["chunk"], state["chunks"]
    missing = [folder, *folder.parents]
    missing = missing[: next(i for i, path in enumerate(missing) if path.exists())]
    new: list[Path] = [] if start else [folder / STATE, *(file.path for file in files)]
    safe_count = start
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_space(folder, files)
        if start == 0:
            _record(folder, state)
        with _opened(folder, files, fresh=start == 0) as handles:
            for count in _write_chunks(engine, inputs, files, handles, state=state):
                state |= {"chunks": count, "complete": count == math.ceil(len(inputs) / chunk)}
                _record(folder, state)
                safe_count = count
    except BaseException as error:
        busy = isinstance(error, BlockingIOError)
        if safe_count == 0 and not busy:
            _take_back(new, missing)
        if busy:
            raise InputError(f"Another process is writing rows to {folder}: wait for it or give another folder.") from error
        if not isinstance(error, OSError):
            raise
        raise _explained(error, folder, files, finished=safe_count) from error


def _write_chunks(
    engine: RowEngine, inputs: Tensor, files: list[_File], handles: list[BinaryIO], *, state: _State
) -> Iterator[int]:
    """Append chunk after chunk, and their digests to the state; yield now and then, and at the end, how many are safe."""
    chunk, start = state["key"]["chunk"], state["chunks"]
    for file, handle in zip(files, handles):
        handle.seek(start * chunk * file.per_sample)
    chunks = math.ceil(len(inputs) / chunk)
    rest = iter_rows(engine, inputs[start * chunk :], chunk=chunk)
    last = time.monotonic()
    for number, (_, rows) in enumerate(track(rest, "Jacobian rows to disk", total=chunks - start), start=start + 1):
        for file, handle, part in zip(files, handles, (rows.body, rows.features)):
            assert part is not None
            data = part.detach().cpu().contiguous().numpy().data
            handle.write(data)
            state["digests"][file.path.name].append(hashlib.sha256(data).hexdigest())
        if number == chunks or time.monotonic() - last >= SECONDS_BETWEEN_STATES:
            for handle in handles:
                handle.flush()
                os.fsync(handle.fileno())
            yield number
            last = time.monotonic()


def _record(folder: Path, state: _State) -> None:
    write_file(folder / STATE, json.dumps(state, indent=1).encode(), overwrite=True)


@contextlib.contextmanager
def _opened(folder: Path, files: list[_File], *, fresh: bool) -> Iterator[list[BinaryIO]]:
    """The files, at full size, open for writing by this process alone."""
    if not fresh:
        _check_sizes(files)
    with contextlib.ExitStack() as stack:
        handles: list[BinaryIO] = []
        for file in files:
            handle = os.fdopen(os.open(file.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
            handles.append(stack.enter_context(handle))
            _lock(handle)
            if fresh:
                _reserve(handle, file.size)
        yield handles


def _lock(handle: BinaryIO) -> None:
    """One writer at a time; the system frees the lock when the process ends, however it ends."""
    if os.name == "posix":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _reserve(handle: BinaryIO, size: int) -> None:
    """Give a file its full size on the disk now, so that no later write can fail for want of space."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _NO_RESERVE:
                raise
    os.ftruncate(handle.fileno(), size)


def _check_space(folder: Path, files: list[_File]) -> None:
    """Refuse before anything is written where the disk cannot hold the files."""
    present = sum(file.path.stat().st_blocks * 512 for file in files if file.path.exists())
    size = sum(file.size for file in files) - present
    free = shutil.disk_usage(folder).free
    if size > free:
        raise BudgetError(f"The rows need {byte_size(size)} on the disk of {folder}, {byte_size(free)} are free. {_advice()}")


def _explained(error: OSError, folder: Path, files: list[_File], *, finished: int) -> InputError:
    total = byte_size(sum(file.size for file in files))
    rest = f"; {finished} finished chunks are kept, the same call resumes there" if finished else "; nothing was left behind"
    if error.errno in _FULL:
        return BudgetError(f"The disk (or quota) of {folder} is full: the rows need {total}{rest}. {_advice()}")
    return InputError(f"Rows cannot be written to {folder}: {error.strerror or error}{rest}. Give a writable folder.")


def _advice() -> str:
    return "Free some space, give a folder on another disk, tune fewer parameters or use fewer samples."


def _take_back(files: list[Path], folders: list[Path]) -> None:
    for path in files:
        with contextlib.suppress(OSError):
            path.unlink()
    for path in folders:
        with contextlib.suppress(OSError):
            path.rmdir()
